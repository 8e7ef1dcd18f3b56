"""`kerasrl_gpu.set_memory_growth`: several processes on one GPU."""

from __future__ import annotations


def set_memory_growth() -> None:
    """Let the backend take GPU memory as it needs it, not all of it at its start.

    Call it once, right behind the imports: it has to come before anything is computed, a model
    being built included. Processes that this one starts inherit it. Without a GPU it does no harm.

    What was taken once stays with this process, deleted models and cleared sessions or not: memory
    goes back to other processes only when this one ends.

    Raises:
        DeviceInUse: a GPU has been started already without it.
        BackendError: this package has no engine for the Keras backend.
    """
    from kerasrl_gpu import engine

    engine.set_memory_growth()

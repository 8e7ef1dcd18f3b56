"""Whether JAX takes a GPU's memory as it needs it, or most of it at the start."""

from __future__ import annotations

import os

import jax
from jax._src import xla_bridge

from kerasrl_gpu.errors import DeviceInUse

VARIABLE = "XLA_PYTHON_CLIENT_PREALLOCATE"
_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"


def memory_growth() -> bool:
    """Whether preallocation is switched off; starts no device."""
    off = os.environ.get(VARIABLE, "") in ("false", "False", "0")
    return off or os.environ.get(_ALLOCATOR, "").lower() == "platform"  # which keeps nothing


def set_memory_growth() -> None:
    """Switch preallocation off, here and in the processes that this one starts.

    Raises:
        DeviceInUse: the GPUs have been started with it.
    """
    if memory_growth():
        return
    # asking for the devices would start them
    started = xla_bridge.backends_are_initialized()
    if started and any(device.platform == "gpu" for device in jax.local_devices()):
        raise DeviceInUse(
            "JAX has started its GPUs already and holds most of their memory, which it gives back "
            "when the process ends. Call kerasrl_gpu.set_memory_growth() right behind the "
            f"imports, or start the program with {VARIABLE}=false."
        )
    os.environ[VARIABLE] = "false"

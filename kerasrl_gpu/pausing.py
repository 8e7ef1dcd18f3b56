"""Pauses: between two steps, with the run saved and what can be freed given back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import time
import warnings
from collections.abc import Callable

from kerasrl_gpu.errors import SpillFailed
from kerasrl_gpu.pool.tiers import FILE


def pause(
    agent,
    path,
    reason: str,
    *,
    until: Callable[[], bool],
    keep: int = 2,
    pool_bytes: int = 0,
    folder=None,
    poll_s: float = 0.2,
) -> None:
    """When the running step has ended: save the run, give memory back, and wait.

    The process, the environment and the compiled calls stay; the next step follows as if nothing
    had been. While it waits, the replay pool lies in a file. A stop that is asked for meanwhile
    ends the wait. A save that fails is a warning.

    Args:
        path: run directory, see `agent.save`.
        reason: a sentence that is told.
        until: asked again and again; True ends the wait.
        keep: checkpoints of this run that stay.
        pool_bytes: of the pool that may stay on the device.
        folder: where the file is made; see `DeviceMemory.spill`.
        poll_s: seconds between two questions.
    """
    agent.runs.request_save(path, keep)

    def wait():
        print(f"step {agent.step}: paused: {reason}", file=sys.stderr)
        start_s = time.monotonic()
        give_back(agent, pool_bytes, folder)
        while not until() and not agent.runs.is_stopping:
            agent.runs.current.callbacks.on_wait()
            time.sleep(poll_s)
        print(f"step {agent.step}: on after {time.monotonic() - start_s:.0f} s", file=sys.stderr)

    agent.runs.request_call(wait)


def give_back(agent, pool_bytes: int = 0, folder=None) -> int:
    """Free what is not needed while nothing is computed; bytes of the pool that left the device."""
    moved = 0
    if agent.on_pool:
        try:
            moved = agent.memory.spill(agent.memory.nbytes - pool_bytes, to=FILE, folder=folder)
        except SpillFailed as error:
            warnings.warn(f"the replay pool stays where it is: {error}", stacklevel=2)
    trim()
    return moved


def trim() -> None:
    """Have freed memory given back to the system, where the C library can do that."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)

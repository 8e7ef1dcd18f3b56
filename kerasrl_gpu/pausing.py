"""Pauses: between two steps, with the run saved and what can be freed given back."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

from kerasrl_gpu import checkpoint
from kerasrl_gpu.errors import ArgumentError, SpillFailed, check_count, in_words
from kerasrl_gpu.pool.tiers import DEVICE, FILE, HOST


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
    verbose: int = 1,
) -> None:
    """When the running step has ended: save the run, give memory back, and wait.

    The process, the environment and the compiled calls stay; the next step follows as if nothing
    had been. While it waits, the replay pool lies in a file, and stays there until `memory.pull`.
    A stop that is asked for ends the wait. A save that fails is a warning.

    Args:
        path: run directory, see `agent.save`.
        reason: a sentence that is told.
        until: asked again and again; True ends the wait.
        keep: checkpoints of this run that stay.
        pool_bytes: of the pool that may stay on the device.
        folder: where the file is made; see `DeviceMemory.spill`.
        poll_s: seconds between two questions.
        verbose: 0 says nothing, 1 when the wait begins and ends.

    Raises:
        ArgumentError: outside `fit`, or another number.
    """
    keep = check_count("keep", keep, 1)
    if not (agent.in_loop and agent.training):
        raise ArgumentError("pause was called outside fit; call it from a callback of a fit.")

    def wait():
        if agent.runs.is_stopping:
            return
        start_s = time.monotonic()
        if verbose:
            print(f"step {agent.step}: paused: {reason}", file=sys.stderr)
        give_back(agent, pool_bytes, folder)
        while not until() and not agent.runs.is_stopping:
            agent.runs.current.callbacks.on_wait()
            time.sleep(poll_s)
        if verbose:
            waited_s = time.monotonic() - start_s
            print(f"step {agent.step}: on after {waited_s:.0f} s", file=sys.stderr)

    agent.runs.request_save(path, keep)
    agent.runs.request_call(wait)


def give_back(agent, pool_bytes: int = 0, folder=None) -> None:
    """Free what is not needed while nothing is computed.

    Args:
        pool_bytes: of the pool that may stay on the device.
        folder: where the file is made that takes the rest.
    """
    if agent.on_pool:
        memory = agent.memory
        try:
            for tier, stays in ((DEVICE, pool_bytes), (HOST, 0)):
                nbytes = max(0, memory.tier_bytes[tier] - stays)
                memory.spill(nbytes, of=tier, to=FILE, folder=folder)
        except SpillFailed as error:
            warnings.warn(f"the replay pool stays where it is: {error}", stacklevel=2)
    trim()


def trim() -> None:
    """Have freed memory given back to the system, where the C library can do that."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)


class Ballast:
    """Memory that is held to be freed when there is too little: saving finds room then.

    Args:
        nbytes: how much; 0 holds nothing.

    Raises:
        ArgumentError: no whole number.
    """

    def __init__(self, nbytes: int):
        self.nbytes, self._held = check_count("ballast_bytes", nbytes), None

    def hold(self) -> None:
        """Take it, unless it is held already, or cannot be had."""
        if self._held is None and self.nbytes:
            with contextlib.suppress(MemoryError):
                self._held = np.ones(self.nbytes, np.uint8)  # zeros would take nothing

    def free(self) -> None:
        """Give it back."""
        self._held = None


def save_last(agent, path, keep: int) -> str:
    """Save a run that has ended; where it went, and how to go on, in words."""
    if not agent.runs.can_resume:
        saved = "It could not be saved once more: its last step was broken off"
    else:
        try:
            agent.save(path, keep=keep)
            saved = "It is saved"
        except Exception as error:  # whatever it is: the older checkpoints stand
            saved = f"It could not be saved once more: {in_words(error).rstrip('.')}"
            warnings.warn(f"step {agent.step}: {saved}.", stacklevel=3)
    newest = next(iter(checkpoint.find(path)), None)
    if newest is None:
        return f"{saved}. There is no checkpoint to go on from."
    return f"{saved}. fit(..., resume={str(path)!r}) goes on from {newest.name}."

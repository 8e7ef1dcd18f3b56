"""Checkpoints while a run goes on, and when it is told to stop."""

import os
import sys
import time
import warnings

from kerasrl_gpu import checkpoint
from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.errors import ArgumentError, check_count, check_number
from kerasrl_gpu.interrupts import StopSignals

_SIGNALS = ("TERM", "INT", "USR1")


class RunCheckpoint(Callback):
    """Saves the run every so many steps or seconds, and at its end; `fit(resume=path)` goes on.

    A save that fails (a full disk) is a warning; the older checkpoints stand, training goes on,
    and the next one is tried when it is due. The same with a loss or a weight that is not finite.
    In a `test` it saves nothing; signals end that, too.

    Args:
        path: run directory; see `agent.save`.
        every_steps: environment steps from one checkpoint to the next; None: by time alone.
        every_s: seconds from one checkpoint to the next; None: by steps alone. Without both the
            run is saved at its end only.
        keep: checkpoints of this run that stay, the newest ones. Those of another run in the same
            directory stay all.
        signals: True makes TERM, INT and USR1 end the run: the step is finished, the run is
            saved, `on_train_end` is called, and `fit` returns with `History.reason`. The second
            signal acts as if this were not here. One that comes during the last save changes the
            reason alone. A tuple of names takes those alone. Nothing is installed in threads other
            than the main one, and what was there before is put back.

    Attributes:
        newest: path of the newest checkpoint there, None where there is none:
            `fit(..., callbacks=[saves], resume=saves.newest)` begins a run, or goes on with it.

    Raises:
        ArgumentError: an argument that cannot be honoured.
        CheckpointError: when training begins, where nothing can be written there.
    """

    def __init__(self, path, every_steps=None, every_s=None, keep=2, *, signals=False):
        super().__init__()
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(f"path={path!r}; pass the run directory, such as path='runs/1'.")
        self.path, self.keep = os.fspath(path), check_count("keep", keep, 1)
        if every_steps is not None:
            every_steps = check_count("every_steps", every_steps, 1)
        if every_s is not None:
            check_number("every_s", every_s, lambda s: s > 0, "a number of seconds above 0")
        self.every_steps, self.every_s = every_steps, every_s
        self._signals = StopSignals(_names(signals), self._stop)
        self._step = self._saved_step = None

    @property
    def newest(self):
        return next(iter(checkpoint.find(self.path)), None)

    def on_train_begin(self, logs=None):
        self._step = self._saved_step = self.agent.step
        self._saved_s = time.monotonic()
        if self.agent.training:
            checkpoint.make_run(self.path)
            self._warn_of_another_run()
        if not self._signals.install():
            warnings.warn(
                "signals do not stop this run: only the main thread can take them.", stacklevel=2
            )

    def on_step_end(self, episode_step, logs=None):
        if not self.agent.training:  # a test; what it plays is no part of the run
            return
        self._step += 1
        due = self.every_steps is not None and self._step % self.every_steps == 0
        if not due and self.every_s is not None:
            due = time.monotonic() - self._saved_s >= self.every_s
        if due:
            self.agent.save(self.path, keep=self.keep)  # written when this step has ended
            self._saved_step, self._saved_s = self._step, time.monotonic()

    def on_train_end(self, logs=None):
        try:
            if self._saved_step != self._step and self.agent.runs.can_resume:
                self._saved_step = self._step
                self.agent.runs.request_save(self.path, self.keep)
                self.agent.runs.save_requested()
            if (logs or {}).get("reason") and self.newest is not None:
                text = f"saved in {self.newest}; fit(..., resume={self.path!r}) goes on from there"
                print(text, file=sys.stderr)
        finally:
            self._signals.restore()

    def _warn_of_another_run(self) -> None:
        newest = self.newest
        if newest is not None and checkpoint.run_of(newest) != self.agent.runs.name:
            warnings.warn(
                f"{newest} is of another run, which this one does not go on with: "
                f"fit(..., resume={self.path!r}) would. It stays beside the new ones.",
                stacklevel=2,
            )

    def _stop(self, name: str) -> None:
        self.agent.request_stop(f"signal {name}")


def _names(signals) -> tuple:
    """The names of the signals; raises ArgumentError unless all of them are known."""
    if signals is True:
        return _SIGNALS
    names = signals or ()
    if not isinstance(names, (tuple, list)) or any(name not in _SIGNALS for name in names):
        raise ArgumentError(f"signals={signals!r}; pass True, or some of {_SIGNALS}.")
    return tuple(names)

"""Watches memory while a run goes on, and keeps the run alive."""

import os
import sys
import time
import warnings

import numpy as np

from kerasrl_gpu import checkpoint, pausing
from kerasrl_gpu import probes as all_probes
from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.errors import ArgumentError, MemoryExit, check_count, check_number
from kerasrl_gpu.guard import actions, events, levels
from kerasrl_gpu.guard.history import History
from kerasrl_gpu.guard.judging import judge
from kerasrl_gpu.guard.levels import EXIT, NORMAL, PAUSE
from kerasrl_gpu.planning import budgets


class MemoryGuard(Callback):
    """Watches memory; shrinks, spills, pauses and ends a run before memory does.

    | state | does |
    | --- | --- |
    | WATCH | looks more often; updates can fail without harm from here on |
    | SHRINK | computes batches in smaller parts; what is learned stays |
    | SPILL | moves the oldest of the replay pool off the device, then to a file |
    | PAUSE | saves, frees what it can, and waits; goes on at the very next step |
    | EXIT | saves, and ends the run with a reason |

    An allocation that fails inside an update is one more reading: something is freed, and the same
    batch is run again.

    Args:
        path: run directory for checkpoints; events go to "memory.jsonl" there, one JSON object a
            line, and a spilled pool into a file without a name on that disk.
        probes: "auto", or callables that return a `probes.Reading`.
        budget: what this run may take of the host's memory: "6GiB", or "70%" of its smallest
            limit. None is that limit.
        every_s: seconds between two looks; from WATCH upwards a fifth of it.
        every_steps: also every so many steps.
        keep: checkpoints of this run that stay.
        ballast_bytes: held from the start, and freed when the run is paused or ended, so that
            saving finds room.
        pause_pool_bytes: of the pool that stays on the device in a pause.
        tuner: the run's BatchTuner, which is asked again once the guard has given all back.
        on_event: called with each `guard.events.Event`.
        verbose: 0 says nothing, 1 a line an event.
        clock: seconds, ever growing.
        **fractions_and_times: watch=0.75, watch_leave=0.70, shrink=0.82, spill=0.88, pause=0.92,
            exit=0.96, max_pause_s=None and so on; see `guard.levels.make`. None switches a state
            off.

    Attributes:
        state: "NORMAL", "WATCH", "SHRINK", "SPILL", "PAUSE" or "EXIT".
        readings: the last ones.
        newest: path of the newest checkpoint, None where there is none.

    Raises:
        ArgumentError: an argument that cannot be honoured; when training begins, also a budget
            below what the run takes.
        CheckpointError: when training begins, where nothing can be written there.
        MemoryExit: from `fit`, with exit status 75, when EXIT was reached and `kerasrl-gpu
            supervise` runs the script; otherwise `fit` returns, and `History.reason` says why.
    """

    def __init__(
        self,
        path,
        *,
        probes="auto",
        budget=None,
        every_s=1.0,
        every_steps=None,
        keep=2,
        ballast_bytes=2**26,
        pause_pool_bytes=0,
        tuner=None,
        on_event=None,
        verbose=1,
        clock=time.monotonic,
        **fractions_and_times,
    ):
        super().__init__()
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentError(f"path={path!r}; pass the run directory, such as path='runs/1'.")
        if probes != "auto" and not all(map(callable, probes)):
            raise ArgumentError(f'probes={probes!r}; pass "auto", or a list of callables.')
        self.path, self.keep = os.fspath(path), check_count("keep", keep, 1)
        self.levels = levels.make(**fractions_and_times)
        self.every_s = check_number("every_s", every_s, lambda s: s >= 0, "seconds, 0 or more")
        if every_steps is not None:
            every_steps = check_count("every_steps", every_steps, 1)
        self.every_steps = every_steps
        self.probes, self.budget = probes, budgets.parse(budget)
        self.ballast_bytes = check_count("ballast_bytes", ballast_bytes)
        self.pause_pool_bytes = check_count("pause_pool_bytes", pause_pool_bytes)
        self.tuner, self.on_event, self.verbose = tuner, on_event, verbose
        self.readings, self._history, self._clock = [], History(), clock
        self._ballast, self._told, self._steps, self._due_s = None, {}, 0, 0.0
        self._checkpoint_s, self._exit_reason, self._checked = None, None, False

    @property
    def state(self) -> str:
        return self._history.state

    @property
    def newest(self):
        return next(iter(checkpoint.find(self.path)), None)

    @property
    def events_path(self) -> str:
        """The file that holds the events; `MemoryTrace(events=…)` marks them."""
        return os.path.join(self.path, "memory.jsonl")

    def get_state(self) -> dict:
        """What the guard has taken from the run; see `Callback`."""
        return {"history": self._history.to_plain()}

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called: all rows are on the device again."""
        self._history = History.from_plain(state["history"])

    def on_train_begin(self, logs=None):
        if not self.agent.training:
            return
        checkpoint.make_run(self.path)
        budget_bytes = actions.budget_bytes(self.budget)
        if self.probes == "auto":
            self.probes = all_probes.auto(self.path, budget_bytes)
        self._actions = actions.Actions(self.agent, self.levels, self.path)
        self._hold()
        trainer = self.agent.trainer
        if trainer is not None:
            trainer.guarded, trainer.on_exhausted = True, self._exhausted
        self._due_s, self._exit_reason, self._checked = self._clock(), None, False

    def on_step_end(self, episode_step, logs=None):
        if not self.agent.training:
            return
        self._steps += 1
        if not self._checked and self.agent.prepared:
            self._check_start()
        by_steps = self.every_steps is not None and self._steps % self.every_steps == 0
        if by_steps or self._clock() >= self._due_s:
            self._look()
        logs.update(self._told)

    def on_episode_end(self, episode, logs=None):
        logs.update(self._told)

    def on_train_end(self, logs=None):
        trainer = self.agent.trainer
        if trainer is not None:
            trainer.guarded, trainer.on_exhausted, trainer.careful = False, None, False
        self._ballast = None
        if self._exit_reason is None:
            return
        self._save_last()
        if "KERASRL_GPU_RESTARTS" in os.environ:
            raise MemoryExit(self._exit_reason)

    # Looking --------------------------------------------------------------------------------------

    def _look(self, failed=False):
        """Read, judge and act; the verdict."""
        self.readings = all_probes.read(self.probes)
        before = self._history.state
        verdict, self._history = judge(
            self.readings,
            self.levels,
            self._history,
            self._clock(),
            checkpoint_s=self._expected_s(),
            checkpoint_bytes=self.agent.memory.nbytes if self.agent.on_pool else 0,
            failed=failed,
            can=self._actions.possible(self.readings),
        )
        calm = verdict.state == NORMAL
        self._due_s = self._clock() + (self.every_s if calm else self.every_s / 5)
        if self.agent.trainer is not None:
            self.agent.trainer.careful = not calm
        worst = None if verdict.reading is None else verdict.reading.fraction
        self._told = {"memory_state": verdict.state, "memory_fraction": worst}
        if verdict.action is not None or verdict.state != before:
            self._record(before, verdict)
        self._act(verdict, failed)
        return verdict

    def _expected_s(self) -> float:
        """Seconds that a checkpoint takes: the last one's, or what 200 MB/s would need."""
        if self._checkpoint_s is None and self.agent.on_pool:
            return self.agent.memory.nbytes / 200e6
        return self._checkpoint_s or 0.0

    def _act(self, verdict, failed) -> None:
        if verdict.action == "pause":
            self._pause(verdict, failed)
        elif verdict.action == "exit":
            self._exit(verdict)
        elif verdict.action in ("shrink", "grow", "spill", "pull"):
            self._actions.do(verdict, steps=self._history.spilled)
            if verdict.state == NORMAL and self.tuner is not None:
                self.tuner.request()
        elif verdict.state == NORMAL:
            self._actions.pull_all(self.readings)

    def _record(self, before, verdict) -> None:
        event = events.Event(
            time.time(),
            self.agent.step,
            before,
            verdict.state,
            verdict.action,
            verdict.reason,
            tuple(self.readings),
        )
        if self.verbose:
            words = f"{before} -> {event.after}" if before != event.after else event.after
            print(f"step {event.step}: memory {words}: {event.reason}", file=sys.stderr)
        try:
            events.append(self.events_path, event)
        except OSError as error:
            warnings.warn(f"an event is missing in {self.events_path}: {error}", stacklevel=2)
        if self.on_event is not None:
            self.on_event(event)

    # Pausing and ending ---------------------------------------------------------------------------

    def _pause(self, verdict, failed) -> None:
        self._ballast = None
        if failed:  # inside an update: nothing is saved there, and the same batch runs again
            pausing.trim()
            while not self._goes_on() and not self.agent.runs.is_stopping:
                time.sleep(self.every_s / 5)
            return
        asked_s = self._clock()

        def goes_on():
            nonlocal asked_s
            if asked_s is not None:
                self._checkpoint_s, asked_s = self._clock() - asked_s, None
            return self._goes_on()

        self.agent.pause(
            self.path,
            verdict.reason,
            until=goes_on,
            keep=self.keep,
            pool_bytes=self.pause_pool_bytes,
            folder=self.path,
            poll_s=max(0.01, self.every_s / 5),
        )

    def _goes_on(self) -> bool:
        """Whether the pause has ended; looks again."""
        self._look()
        if self.state == PAUSE:
            return False
        if self.state != EXIT:
            self._actions.pull_all(self.readings)
            self._hold()
        return True

    def _exit(self, verdict) -> None:
        self._ballast, self._exit_reason = None, f"memory: {verdict.reason}"
        self.agent.request_stop(self._exit_reason)

    def _save_last(self) -> None:
        runs = self.agent.runs
        if runs.can_resume:
            runs.request_save(self.path, self.keep)
            runs.save_requested()
        print(
            f"{self._exit_reason} saved in {self.newest}; "
            f"fit(..., resume={self.path!r}) goes on from there",
            file=sys.stderr,
        )

    def _exhausted(self, error) -> bool:
        """Whether an update whose memory could not be had is to be run again."""
        before = self.state
        verdict = self._look(failed=True)
        if before == verdict.state and verdict.action is None:
            warnings.warn(f"{error} {verdict.reason}", stacklevel=2)
        return verdict.action in ("shrink", "spill", "pause")

    def _hold(self) -> None:
        if self._ballast is None and self.ballast_bytes:
            self._ballast = np.ones(self.ballast_bytes, np.uint8)  # zeros would take nothing

    def _check_start(self) -> None:
        self._checked = True
        actions.check_budget(self.agent, self.budget)

"""Watches memory while a run goes on, and keeps the run alive."""

import math
import os
import sys
import time
import warnings

from kerasrl_gpu import checkpoint, pausing
from kerasrl_gpu import probes as all_probes
from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.errors import ArgumentError, MemoryExit, check_count, check_number, in_words
from kerasrl_gpu.guard import allowance, events, levels
from kerasrl_gpu.guard.actions import Actions
from kerasrl_gpu.guard.history import History
from kerasrl_gpu.guard.judging import judge
from kerasrl_gpu.guard.levels import EXIT, NORMAL, PAUSE
from kerasrl_gpu.planning import budgets

_BYTES_A_S = 200e6  # that a checkpoint writes, before the first one was timed


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
        budget: what this run, with the processes below it, may take of the host's memory:
            "6GiB", or "70%" of its smallest limit. None is that limit.
        every_s: seconds between two looks; from WATCH upwards a fifth of it.
        every_steps: also every so many steps.
        keep: checkpoints of this run that stay.
        ballast_bytes: held from the start, and freed when the run is paused or ended, so that
            saving finds room.
        pause_pool_bytes: of the pool that stay on the device in a pause.
        tuner: the run's BatchTuner, which is asked again once batches are as large as before.
        on_event: called with each `guard.events.Event`, in a pause, too; what it raises is a
            warning.
        verbose: 0 says nothing, 1 a line an event.
        clock: seconds, ever growing.
        **fractions_and_times: watch=0.75, watch_leave=0.70, shrink=0.82, spill=0.88, pause=0.92,
            exit=0.96, max_pause_s=None and so on; see `guard.levels.make`. None switches a state
            off.

    Attributes:
        state: "NORMAL", "WATCH", "SHRINK", "SPILL", "PAUSE" or "EXIT".
        readings: the last ones.
        newest: path of the newest checkpoint, None where there is none.
        events_path: the file with the events; `MemoryTrace(events=...)` marks them.

    What it last saw stands in the logs of steps and episodes: "memory_state" and "memory_fraction",
    NaN where nothing could be read. A `test` is not guarded. What was taken from the agent stays
    so when `fit` ends; a guard that is given to the next `fit` gives it back there.

    Raises:
        ArgumentError: an argument that cannot be honoured; after the first step also a budget
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
        if every_steps is not None:
            every_steps = check_count("every_steps", every_steps, 1)
        if on_event is not None and not callable(on_event):
            raise ArgumentError(f"on_event={on_event!r}; pass a function of an event, or None.")
        self.path, self.keep = os.fspath(path), check_count("keep", keep, 1)
        self.levels = levels.make(**fractions_and_times)
        self.every_s = check_number("every_s", every_s, lambda s: s >= 0, "seconds, 0 or more")
        self._poll_s = min(0.2, max(0.01, self.every_s / 5))  # in a pause, which a stop may end
        self.every_steps, self.budget = every_steps, budgets.parse(budget)
        self.pause_pool_bytes = check_count("pause_pool_bytes", pause_pool_bytes)
        self.tuner, self.on_event, self.verbose = tuner, on_event, verbose
        self._probes, self._clock = all_probes.listed(probes), clock
        self.readings, self._history, self._actions = [], History(), None
        self._ballast = pausing.Ballast(ballast_bytes)
        self._told, self._steps, self._due_s = {}, 0, 0.0
        self._checkpoint_s = self._asked_s = self._exit_reason = None
        self._prepared = self._grew = False

    @property
    def state(self) -> str:
        return self._history.state

    @property
    def newest(self):
        return next(iter(checkpoint.find(self.path)), None)

    @property
    def events_path(self) -> str:
        return os.path.join(self.path, "memory.jsonl")

    def get_state(self) -> dict:
        """What the guard has taken from the run; see `Callback`."""
        taken = None if self._actions is None else self._actions.get_state()
        return {"history": self._history.to_plain(), "actions": taken}

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called."""
        self._history = History.from_plain(state["history"])
        if state["actions"] is not None:
            self._actions.set_state(state["actions"])
        self._count_taken()  # in another process all rows are on the device again

    def on_train_begin(self, logs=None):
        if not self.agent.training:
            return
        checkpoint.make_run(self.path)
        if self._probes is None:
            self._probes = all_probes.auto(self.path, allowance.nbytes(self.budget))
        if self._actions is None or self._actions.agent is not self.agent:
            self._actions, self._history = Actions(self.agent, self.levels, self.path), History()
        self._history = History.from_plain(self._history.to_plain())  # the last run's end is past
        self._ballast.hold()
        self._watch_updates(True)
        self._due_s, self._told = self._clock(), {}
        self._asked_s = self._exit_reason = None
        self._prepared = self._grew = False

    def on_step_end(self, episode_step, logs=None):
        if not self.agent.training:
            return
        self._steps += 1
        if not self._prepared and self.agent.prepared:
            self._prepared = True
            self._watch_updates(True)  # a model that waited for its first observation is there now
            allowance.check(self.agent, self.budget)
        by_steps = self.every_steps is not None and self._steps % self.every_steps == 0
        if by_steps or self._clock() >= self._due_s:
            self._look()
        logs.update(self._told)

    def on_episode_end(self, episode, logs=None):
        if self.agent.training:
            logs.update(self._told)

    def on_train_end(self, logs=None):
        if not self.agent.training:
            return
        self._ballast.free()
        self._watch_updates(False)
        if self._exit_reason is None or logs["reason"] != self._exit_reason:
            return
        saved = pausing.save_last(self.agent, self.path, self.keep)
        restarts = "KERASRL_GPU_RESTARTS" in os.environ
        if self.verbose or restarts:
            print(f"{self._exit_reason} {saved}", file=sys.stderr)
        if restarts:
            raise MemoryExit(self._exit_reason)

    # Looking --------------------------------------------------------------------------------------

    def _look(self, failed=False):
        """Read, judge and act; the verdict."""
        self.readings = all_probes.read(self._probes)
        before, taken_s = self.state, self._checkpoint_s
        pool_bytes = self.agent.memory.nbytes if self.agent.on_pool else 0
        verdict, self._history = judge(
            self.readings,
            self.levels,
            self._history,
            self._clock(),
            checkpoint_s=pool_bytes / _BYTES_A_S if taken_s is None else taken_s,
            checkpoint_bytes=pool_bytes,
            failed=failed,
            can=self._actions.possible(self.readings, self._history.spilled, failed),
        )
        calm = verdict.state == NORMAL
        self._due_s = self._clock() + (self.every_s if calm else self.every_s / 5)
        self._watch_updates(True)
        fraction = math.nan if verdict.reading is None else verdict.reading.fraction
        self._told = {"memory_state": verdict.state, "memory_fraction": fraction}
        if verdict.action is not None or verdict.state != before:
            self._record(before, verdict)
        self._act(verdict, failed)
        self._count_taken()
        return verdict

    def _act(self, verdict, failed) -> None:
        if verdict.action == "pause":
            self._ballast.free()
            self._actions.note_device()
            self._wait_inside() if failed else self._pause(verdict)
        elif verdict.action == "exit":
            self._ballast.free()
            self._exit_reason = f"memory: {verdict.reason}"
            self.agent.request_stop(self._exit_reason)
        elif verdict.action in ("shrink", "grow", "spill", "pull"):
            self._actions.do(verdict, self._history.spilled, failed)
            self._grew = self._grew or verdict.action == "grow"
        elif verdict.state == NORMAL:
            self._actions.pull_all(self.readings)
            if self._grew and self.tuner is not None:
                self.tuner.request()
            self._grew = False

    def _count_taken(self) -> None:
        """What could not be taken, or is back already, is not to be given back."""
        self._history = self._history._replace(
            shrunk=self._actions.nb_parts,
            spilled=self._history.spilled if self._actions.away_bytes else 0,
        )

    def _record(self, before, verdict) -> None:
        found = verdict.state, verdict.action, verdict.reason, tuple(self.readings)
        event = events.Event(time.time(), self.agent.step, before, *found)
        if self.verbose:
            print(f"step {event.step}: memory {event.in_words()}", file=sys.stderr)
        events.append_or_warn(self.events_path, event)
        if self.on_event is None:
            return
        try:
            self.on_event(event)
        except Exception as error:  # a user's; what it is told about matters more
            warnings.warn(f"on_event failed, the run goes on: {in_words(error)}", stacklevel=2)

    # Updates that find no memory ------------------------------------------------------------------

    def _watch_updates(self, on: bool) -> None:
        trainer = self.agent.trainer
        if trainer is not None:
            trainer.guarded, trainer.on_exhausted = on, self._exhausted if on else None
            trainer.careful = on and self.state != NORMAL

    def _exhausted(self, error) -> bool:
        """Whether an update whose memory could not be had is to be run again."""
        before = self.state
        if before == PAUSE:  # it was asked for, and the step has not ended
            self._wait_inside()
            return self.state != PAUSE
        verdict = self._look(failed=True)
        if before == verdict.state and verdict.action is None:
            warnings.warn(f"{in_words(error)} {verdict.reason}", stacklevel=2)
        return verdict.action in ("shrink", "spill", "pause")

    def _wait_inside(self) -> None:
        """Pause inside an update: nothing can be saved there, and the same batch runs again."""
        pausing.trim()
        runs = self.agent.runs
        while runs.current is not None and not runs.is_stopping and not self._goes_on():
            time.sleep(self._poll_s)

    # Pausing and ending ---------------------------------------------------------------------------

    def _pause(self, verdict) -> None:
        self._asked_s = self._clock()
        self.agent.pause(
            self.path,
            verdict.reason,
            until=self._goes_on,
            keep=self.keep,
            pool_bytes=self.pause_pool_bytes,
            folder=self.path,
            poll_s=self._poll_s,
            verbose=0,  # each event is told already
        )

    def _goes_on(self) -> bool:
        """Whether the pause has ended; looks again."""
        if self._asked_s is not None:
            self._checkpoint_s, self._asked_s = self._clock() - self._asked_s, None
        self._look()
        if self.state == PAUSE:
            return False
        if self.state != EXIT:
            self._actions.pull_noted(self.readings, self._ballast.nbytes)
            self._ballast.hold()
        return True

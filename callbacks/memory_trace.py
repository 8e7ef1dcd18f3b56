"""Memory over time: as lines while a run goes on, and as a picture."""

import os
import time
import warnings
from pathlib import Path

from kerasrl_gpu import probes as all_probes
from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.callbacks.checks import check_folder
from kerasrl_gpu.callbacks.readings import memory_bytes
from kerasrl_gpu.errors import ArgumentError, check_number
from kerasrl_gpu.guard import events as records
from kerasrl_gpu.guard import picture as pictures
from kerasrl_gpu.guard.events import Event, Sample


class MemoryTrace(Callback):
    """Writes what the probes read, one JSON object a line, and draws it when training ends.

    A line has the time, the agent's step, the readings, and the replay pool's bytes in each tier;
    see `guard.events.Sample`. A reading that fails is a line's reading that says why; a line that
    the disk refuses is lost, which is said once. A file that is there already is continued.

    Args:
        path: the file, such as "runs/1/trace.jsonl". Its folder has to exist.
        every_s: seconds from one line to the next; looked at after each step.
        probes: "auto", or callables that return a `probes.Reading`.
        picture: True draws beside `path`, with .png for its ending, where matplotlib is installed;
            or the picture's path; False draws only by `draw`.
        events: path of a MemoryGuard's events, to be marked in the picture.
        levels: the guard's `Levels`, to be drawn as lines.
        clock: seconds, ever growing.

    Raises:
        ArgumentError: an argument that cannot be honoured; or, when training begins, `path` cannot
            be written (see `check_folder`).
        ImportError: `picture` is a path, and matplotlib is not installed.
    """

    def __init__(
        self,
        path,
        every_s=1.0,
        probes="auto",
        *,
        picture=True,
        events=None,
        levels=None,
        clock=time.monotonic,
    ):
        super().__init__()
        self.path, self.events = os.fspath(path), events
        self.every_s = check_number("every_s", every_s, lambda s: s >= 0, "seconds, 0 or more")
        if not isinstance(picture, bool):
            pictures.check_path(picture)
        self.probes = all_probes.listed(probes)
        self.picture, self.levels = picture, levels
        self._clock, self._taken_s, self._lost = clock, None, False

    def on_train_begin(self, logs=None):
        check_folder(self.path)
        if self.probes is None:
            self.probes = all_probes.auto(os.path.dirname(self.path) or ".")
        self._step, self._lost = self.agent.step, False
        self._take(run_start=self._step)

    def on_step_end(self, episode_step, logs=None):
        self._step += 1
        self.on_wait()

    def on_wait(self, logs=None):
        if self._clock() - self._taken_s >= self.every_s:
            self._take()

    def on_train_end(self, logs=None):
        self._take()
        if self.picture is False:
            return
        try:
            self.draw(self._picture_path())
        except (ImportError, OSError, ArgumentError) as error:
            warnings.warn(f"the trace in {self.path} was not drawn: {error}", stacklevel=2)

    def draw(self, path=None) -> None:
        """Draw the newest run in the file; see `guard.picture.draw`.

        Args:
            path: of the picture; None: `picture`'s, or beside the file.

        Raises:
            ArgumentError: there is nothing to draw, or it cannot be drawn there.
            ImportError: matplotlib is not installed.
        """
        known = self.events is not None and os.path.exists(self.events)
        marks = records.read(self.events, Event) if known else []
        pictures.draw(path or self._picture_path(), self.read(self.path), marks, self.levels)

    def log_files(self) -> list:
        """The file; a run that goes on from a checkpoint cuts it back to there."""
        return [self.path]

    @staticmethod
    def read(path) -> list[Sample]:
        """The newest run in a file; one that was resumed at step s goes on with what led to s."""
        samples = []
        for sample in records.read(path, Sample):
            if sample.run_start is not None:
                led = sample.run_start > 0
                samples = [old for old in samples if led and old.step <= sample.run_start]
            samples.append(sample)
        return samples

    def _picture_path(self):
        named = not isinstance(self.picture, bool)
        return self.picture if named else Path(self.path).with_suffix(".png")

    def _take(self, run_start=None) -> None:
        readings = tuple(all_probes.read(self.probes))
        sample = Sample(time.time(), self._step, readings, _tier_bytes(self.agent), run_start)
        self._taken_s = self._clock()
        try:
            records.append(self.path, sample)
        except OSError as error:
            if not self._lost:
                warnings.warn(f"{self.path} lacks lines from here on: {error}", stacklevel=2)
            self._lost = True


def _tier_bytes(agent) -> dict | None:
    """Bytes of the replay pool by tier; None where nobody knows its size."""
    tiers = getattr(getattr(agent, "memory", None), "tier_bytes", None)
    if tiers is not None:
        return {tier: int(nbytes) for tier, nbytes in tiers.items()}
    nbytes = memory_bytes(agent)
    return None if nbytes is None else {"device": nbytes}

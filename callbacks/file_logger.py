"""A log file with one line for each episode."""

import json
import math
import os
import warnings

from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.callbacks.checks import check_folder, check_interval
from kerasrl_gpu.callbacks.running import EpisodeSums, as_number


class FileLogger(Callback):
    """Appends one JSON object a line and an episode: metric means, the episode's logs, its number.

    keras-rl writes one JSON object of lists and rewrites the whole file each time; ours is JSON
    Lines, written once. `FileLogger.read(filepath)` gives keras-rl's shape. A line goes out in one
    piece, so a killed run loses no finished episode; an episode that is open when training ends is
    written with `"completed": false`. Where the disk refuses, lines wait. A file that is there
    already is continued, whether by a resumed run or by a new one; `read` returns the newest run.

    Each line has the metrics' names, `episode_reward`, `nb_episode_steps`, `nb_steps`, `episode`,
    `duration` (seconds) and `completed`; the first of a run has `run_start`, the agent's step
    where it began. NaN is written as null, infinities as "inf" and "-inf".

    Args:
        filepath: text or path of the file. Its folder has to exist.
        interval: episodes to a write; None writes each at once. Lines that wait are lost when the
            process is killed.

    Raises:
        ArgumentError: `interval` is no whole number from 1 upwards; or, when training begins,
            `filepath` cannot be written (see `check_folder`).
    """

    def __init__(self, filepath, interval=None):
        super().__init__()
        self.filepath = os.fspath(filepath)
        self.interval = None if interval is None else check_interval(interval, "episodes")
        self._open, self._lines = {}, []

    def on_train_begin(self, logs=None):
        check_folder(self.filepath)
        self.metrics_names = list(self.agent.metrics_names)
        self._open, self._lines = {}, []
        self._run_start = self._step = self.agent.step
        with open(self.filepath, "ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a line that broke off must not spoil the next one
                    file.write(b"\n")

    def on_episode_begin(self, episode, logs=None):
        self._open[episode] = EpisodeSums(self.metrics_names)

    def on_step_end(self, episode_step, logs=None):
        self._step += 1
        episode = logs["episode"]
        if episode not in self._open:  # a resumed run may start in the middle of an episode
            self.on_episode_begin(episode)
        self._open[episode].add(logs)

    def on_episode_end(self, episode, logs=None):
        self._add_line(episode, logs or {}, completed=True)
        if len(self._lines) >= (self.interval or 1):
            self._save_or_warn()

    def on_train_end(self, logs=None):
        for episode in sorted(self._open):
            sums = self._open[episode]
            if sums.steps:
                so_far = {
                    "episode_reward": sums.rewards.total,
                    "nb_episode_steps": sums.steps,
                    "nb_steps": self._step,
                }
                self._add_line(episode, so_far, completed=False)
        self._open = {}
        self.save_data()

    def save_data(self):
        """Append the lines that wait, in one write. Does nothing where none does."""
        if self._lines:
            with open(self.filepath, "ab", buffering=0) as file:
                file.write("".join(self._lines).encode())
            self._lines = []

    def log_files(self) -> list:
        """The file, with every line written that waits."""
        self._save_or_warn()
        return [self.filepath]

    def get_state(self) -> dict:
        """The sums of the episodes that are open."""
        return {episode: sums.get_state() for episode, sums in self._open.items()}

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called; the file was cut back to there before."""
        self._lines, self._open = [], {}
        for episode, sums in state.items():
            self._open[episode] = EpisodeSums(self.metrics_names)
            self._open[episode].set_state(sums)

    def _save_or_warn(self) -> None:
        """`save_data`; where the disk refuses, the lines wait for the next time."""
        try:
            self.save_data()
        except OSError as error:
            warnings.warn(
                f"{self.filepath} cannot be written: {error}. Episodes that wait for it: "
                f"{len(self._lines)}. Make room for them before the run ends.",
                stacklevel=2,
            )

    @staticmethod
    def read(filepath) -> dict[str, list]:
        """The newest run in a log file, as lists by name, sorted by episode.

        A run that was resumed at step s replaces what an earlier one logged after s. A name that
        an episode lacks is NaN there. A line that broke off is left out. A file of keras-rl's own
        is read too.
        """
        rows = {}
        with open(filepath, encoding="utf-8", errors="replace") as file:
            for row in (row for line in file for row in _rows(line)):
                start = row.pop("run_start", None)
                if start is not None:
                    rows = {k: old for k, old in rows.items() if old.get("nb_steps", 0) <= start}
                rows[row["episode"]] = row
        ordered = [rows[episode] for episode in sorted(rows)]
        names = dict.fromkeys(name for row in ordered for name in row)
        return {name: [row.get(name, math.nan) for row in ordered] for name in names}

    def _add_line(self, episode: int, logs: dict, completed: bool) -> None:
        sums = self._open.pop(episode, None) or EpisodeSums(self.metrics_names)
        sums.metrics.flush()
        row = sums.metrics.means() if sums.metrics.seen else {}
        row.update(logs)
        row.update(episode=int(episode), duration=sums.duration_s, completed=completed)
        if self._run_start is not None:
            row["run_start"], self._run_start = self._run_start, None
        plain = {name: _plain(value) for name, value in row.items() if _is_plain(value)}
        self._lines.append(json.dumps(plain, allow_nan=False) + "\n")


def _is_plain(value) -> bool:
    return isinstance(value, str) or as_number(value) is not None


def _plain(value):
    """A value as strict JSON can hold it."""
    if isinstance(value, (str, bool)):
        return value
    number = as_number(value)
    if math.isfinite(number):
        return number
    return None if math.isnan(number) else str(number)


def _rows(line: str) -> list[dict]:
    """The episodes in one line: one, or none of a broken line, or all of a keras-rl file."""
    try:
        row = json.loads(line)
    except ValueError:
        return []
    if not isinstance(row, dict) or "episode" not in row:
        return []
    if isinstance(row["episode"], list):
        return [dict(zip(row, values, strict=True)) for values in zip(*row.values(), strict=True)]
    back = {None: math.nan, "inf": math.inf, "-inf": -math.inf}
    return [{name: back.get(value, value) for name, value in row.items()}]

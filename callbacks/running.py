"""Sums over a run that stay the same size however long it lasts: no value is kept a step."""

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np

from kerasrl_gpu.errors import ShapeError

# Metrics kept unread: a bound for loops that never make them ready. Ours needs one.
MAX_WAITING = 8


def as_number(value) -> int | float | None:
    """`value` as a plain int or float, or None where it is not one number.

    Booleans count as 0 and 1; arrays without axes (NumPy's, a device's) as their number. Text,
    arrays with axes and complex numbers give None.
    """
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, (int, np.integer, np.bool_)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        kind = np.asarray(value).dtype.kind
        if kind in "biu":
            return int(value)
        if kind in "fV":  # V: bfloat16, which NumPy does not know
            return float(value)
    return None


class Spread:
    """Mean, least and greatest of the values so far."""

    __slots__ = ("count", "greatest", "least", "total")

    def __init__(self):
        self.count, self.total, self.least, self.greatest = 0, 0.0, math.inf, -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        if value < self.least:
            self.least = value
        if value > self.greatest:
            self.greatest = value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def get_state(self) -> dict:
        """Plain values from which `set_state` goes on."""
        return {name: getattr(self, name) for name in self.__slots__}

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called."""
        for name in self.__slots__:
            setattr(self, name, state[name])

    def __str__(self):
        if not self.count:
            return "--"
        return f"{self.mean:.3f} [{self.least:.3f}, {self.greatest:.3f}]"


class RunningMeans:
    """One mean a name, over the values that are numbers and not NaN. Names may come and go."""

    def __init__(self):
        self._sums = {}  # name -> [sum, count]

    def add(self, values: Mapping) -> None:
        for name, value in values.items():
            number = as_number(value)
            if number is None or number != number:
                continue
            entry = self._sums.get(name)
            if entry is None:
                self._sums[name] = [number, 1]
            else:
                entry[0] += number
                entry[1] += 1

    def means(self) -> dict[str, float]:
        return {str(name): total / count for name, (total, count) in self._sums.items()}


class LateMetrics:
    """Means of an agent's metrics, each read as soon as it is free to read and no sooner.

    Inside `fit` the device works on the numbers of step t until the action of step t + 1; reading
    them earlier waits for it. An object without `ready` counts as ready.

    Args:
        names: the agent's `metrics_names`, in the order of the values.

    Raises:
        ShapeError: from `push` or `flush`, where a step brings more or fewer values than names.
    """

    def __init__(self, names: Iterable[str]):
        self.names = tuple(names)
        self.newest = None  # the metrics read last; reading them again costs nothing
        self._waiting = deque()
        self.reset()

    def reset(self) -> None:
        """Forget the sums; what is still unread goes into the next ones."""
        self.seen = False
        self._sums = [0.0] * len(self.names)
        self._counts = [0] * len(self.names)

    def push(self, metrics) -> None:
        """Take one step's metrics (None: the step had none) and read those that are ready."""
        if metrics is None:
            return
        self.seen = True
        waiting = self._waiting
        waiting.append(metrics)
        while waiting and (getattr(waiting[0], "ready", True) or len(waiting) > MAX_WAITING):
            self._fold(waiting.popleft())

    def flush(self) -> None:
        """Read what is left: an episode, an interval or the run is over."""
        while self._waiting:
            self._fold(self._waiting.popleft())

    def means(self) -> dict[str, float]:
        """The mean of each metric over the steps that had one; NaN where none had (warm-up)."""
        return {
            name: total / count if count else math.nan
            for name, total, count in zip(self.names, self._sums, self._counts, strict=True)
        }

    def get_state(self) -> dict:
        """Plain values from which `set_state` goes on; reads what waits."""
        self.flush()
        newest = () if self.newest is None else map(float, self.newest)
        return {
            "seen": self.seen,
            "sums": dict(zip(self.names, self._sums, strict=True)),
            "counts": dict(zip(self.names, self._counts, strict=True)),
            "newest": dict(zip(self.names, newest)),
        }

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called; by name, as this run may have other metrics."""
        self.seen, newest = state["seen"], state["newest"]
        self.newest = [newest.get(name, math.nan) for name in self.names] if newest else None
        self._sums = [state["sums"].get(name, 0.0) for name in self.names]
        self._counts = [state["counts"].get(name, 0) for name in self.names]

    def _fold(self, metrics) -> None:
        if len(metrics) != len(self.names):
            raise ShapeError(
                f"backward() returned {len(metrics)} metrics, agent.metrics_names has "
                f"{len(self.names)}: {list(self.names)}. Return one value a name, in that order."
            )
        for index, value in enumerate(metrics):
            value = float(value)
            if value == value:
                self._sums[index] += value
                self._counts[index] += 1
        self.newest = metrics


class EpisodeSums:
    """What the loggers keep of an episode that is still going on."""

    __slots__ = ("metrics", "rewards", "started_s")

    def __init__(self, metrics_names: Iterable[str]):
        self.started_s = time.perf_counter()
        self.rewards = Spread()
        self.metrics = LateMetrics(metrics_names)

    def add(self, logs: Mapping) -> None:
        """Take the logs of one step's end."""
        self.rewards.add(float(logs["reward"]))
        self.metrics.push(logs.get("metrics"))

    def get_state(self) -> dict:
        """Plain values from which `set_state` goes on."""
        return {
            "rewards": self.rewards.get_state(),
            "metrics": self.metrics.get_state(),
            "duration_s": self.duration_s,
        }

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called; the time in between does not count."""
        self.rewards.set_state(state["rewards"])
        self.metrics.set_state(state["metrics"])
        self.started_s = time.perf_counter() - state["duration_s"]

    @property
    def steps(self) -> int:
        return self.rewards.count

    @property
    def duration_s(self) -> float:
        return time.perf_counter() - self.started_s

"""The search: probe memory from small to large, time what fits, choose."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack

from kerasrl_gpu.errors import ArgumentError, check_number
from kerasrl_gpu.tuning import peak
from kerasrl_gpu.tuning.choose import PLATEAU, Choice, Reading, choose, name
from kerasrl_gpu.tuning.measuring import Speed, measure
from kerasrl_gpu.tuning.points import Point
from kerasrl_gpu.units import human_bytes

_LONGEST_CALL_S = 1.0  # a call's fixed costs are lost in a second, and Ctrl-C waits for its end


def search(
    points: Iterable[Point],
    probe_peak: Callable[[Point], int],
    make_run: Callable[[Point], AbstractContextManager[Callable[[], None]]],
    budget_bytes: int,
    *,
    held_bytes: int,
    seconds: float = 20.0,
    margin: float = peak.MARGIN,
    plateau: float = PLATEAU,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Choose the point with the most samples/s whose peak stays within the budget.

    Three sweeps, each of which times its points interleaved. All sizes with the fewest fused
    updates: what is over 2 times slower there is so at any number, since fusing saves every size
    the same time an update. Then all numbers of fused updates at the fastest size, unless a call
    would last over a second. Then the sizes that are left with the best number, beside what is left
    of the second sweep; only the last one is chosen from, and what is close to the best there is
    timed once more among itself. The best number is the smallest within a third of the plateau:
    where fusing brings nothing, nothing new is compiled for the last sweep. With one number of
    fused updates the first sweep is all.

    A point is probed only if its predicted upper bound is within the budget, and timed only if the
    bound is so with its own reading, too. The smallest one of all has no prediction.

    Args:
        points: the candidates, from `exact_points` or `free_points`.
        probe_peak: point -> the bytes in use at the peak of one device call, `held_bytes`
            included. It is called once a point, from small to large, and cleans up itself.
        make_run: point -> a context manager of one device call, which returns when the device is
            done. Those of all points that are timed are open together, so scratch copies are best
            shared between them; all are closed before this returns or raises.
        budget_bytes: the most bytes at the peak.
        held_bytes: bytes in use whatever is computed, such as the pool and the networks. The
            second size is tried only if all else in the first reading may double with the rows.
        seconds: for timing; probes and compilations come on top.
        margin: fraction that upper bounds add to what is not held, for what happens rarely.
        plateau: fraction of the best samples/s that counts as no difference.
        seed: of the orders within rounds.
        clock: seconds, rising.

    Raises:
        ArgumentError: no points, a budget below the smallest one, or a number that cannot be
            honoured.
    """
    check_number("seconds", seconds, lambda value: value >= 0, "a number of seconds, 0 or more")
    sizes = _by_size(points)
    memory = _Memory(probe_peak, budget_bytes, held_bytes, margin)
    with ExitStack() as opened:
        options = {"plateau": plateau, "seed": seed, "clock": clock}
        bench = _Bench(memory, make_run, opened, options)
        _sweep(sizes, bench, seconds, plateau)
    return choose(bench.readings(), plateau)


def _by_size(points) -> list[list[Point]]:
    """The points by rows at a time, each size's from fewest to most fused updates."""
    sizes = {}
    for point in sorted(set(points), key=lambda each: (each.micro_batch, each)):
        sizes.setdefault((point.micro_batch, point.batch), []).append(point)
    if not sizes:
        raise ArgumentError(
            "there are no points to search; pass some, such as exact_points(batch=32, updates=1)."
        )
    return list(sizes.values())


def _sweep(sizes, bench, seconds, plateau):
    fewest = [size[0] for size in sizes]
    if all(len(size) == 1 for size in sizes):
        bench.time(fewest, seconds)
        return
    bench.time(fewest, 0.2 * seconds)
    left = [size for size in sizes if size[0] in bench.left]
    first, *more = next(size for size in left if size[0] == bench.fastest)
    most_rows = _LONGEST_CALL_S * bench.speeds[first].samples_per_s
    short = [point for point in more if point.rows_a_call <= most_rows]
    bench.time([first, *short], 0.2 * seconds)
    beside = bench.left
    # The sizes give the plateau away once more: a third of it here, so that both stay close to it.
    fused = min(point.fused for point in bench.level(plateau / 3))
    best = [point for size in left for point in size if point.fused == fused]
    bench.time(dict.fromkeys([*best, *beside]), 0.35 * seconds)
    bench.time_again(bench.level(2 * plateau), 0.25 * seconds)


class _Bench:
    """Times the points that fit, and keeps what it found out."""

    def __init__(self, memory, make_run, opened, options: Mapping):
        self.memory, self.make_run, self.opened, self.options = memory, make_run, opened, options
        self.runs: dict[Point, Callable[[], None]] = {}
        self.speeds: dict[Point, Speed] = {}
        self.refused: dict[Point, int] = {}  # upper bounds
        self.left: list[Point] = []  # of the last sweep, without what was hopelessly slow

    @property
    def fastest(self) -> Point:
        """Of the last sweep."""
        return max(self.left, key=lambda point: self.speeds[point].samples_per_s)

    def level(self, plateau: float) -> list[Point]:
        """What is left within that fraction of the fastest."""
        enough = (1 - plateau) * self.speeds[self.fastest].samples_per_s
        return [point for point in self.left if self.speeds[point].samples_per_s >= enough]

    def time_again(self, points: Iterable[Point], seconds: float) -> None:
        """Time several of the points that are left; the others keep what they have."""
        runs = {point: self.runs[point] for point in points}
        if len(runs) > 1:
            self.speeds.update(measure(runs, seconds=seconds, **self.options))

    def time(self, points: Iterable[Point], seconds: float) -> None:
        """Probe, open and time one sweep's points."""
        points = list(points)
        fitting = [point for point in points if self._fits(point)]
        if not fitting:
            raise self._too_little(points)
        for point in fitting:
            if point not in self.runs:
                self.runs[point] = self.opened.enter_context(self.make_run(point))
        runs = {point: self.runs[point] for point in fitting}
        speeds = measure(runs, seconds=seconds, **self.options)
        self.speeds.update(speeds)
        self.left = [point for point, speed in speeds.items() if speed.times_slower is None]

    def _fits(self, point) -> bool:
        upper_bytes = self.memory.upper_bytes(point)
        if upper_bytes <= self.memory.budget_bytes:
            return True
        self.refused[point] = upper_bytes
        return False

    def _too_little(self, points):
        smallest, leaves = points[0], human_bytes(self.memory.budget_bytes)
        upper_bytes = self.refused[smallest]
        if not self.memory.has_probed:  # so nobody knows what a call takes beside what is held
            return ArgumentError(
                f"the budget leaves {leaves}; {human_bytes(upper_bytes)} are held before anything "
                f"is computed. Pass more than budget={upper_bytes:_}, or a smaller pool or network."
            )
        return ArgumentError(
            f"the budget leaves {leaves}; the smallest point, {name(smallest, [])}, needs up to "
            f"{human_bytes(upper_bytes)}, {100 * self.memory.margin:g} % for rare peaks included. "
            f"Pass budget={upper_bytes:_} or more, or a smaller pool or network."
        )

    def readings(self) -> list[Reading]:
        """What is known of every point that a sweep came to."""
        known = [self._timed(point, speed) for point, speed in self.speeds.items()]
        budget = human_bytes(self.memory.budget_bytes)
        for point, upper_bytes in self.refused.items():
            reason = f"needs up to {human_bytes(upper_bytes)} of the {budget} budget"
            known.append(Reading(point, None, None, None, upper_bytes, reason))
        return known

    def _timed(self, point, speed) -> Reading:
        skipped = None
        if speed.times_slower is not None:
            skipped = f"{speed.times_slower:.1f} times slower than the best"
        elif point not in self.left:
            skipped = "more fused updates were faster"
        return Reading(point, *speed[:3], self.memory.peak_bytes(point), skipped)


class _Memory:
    """Upper bounds of peaks: from a point's own probe, else from the line through all others.

    What is held is known; bounds are on what a call takes beside it.
    """

    def __init__(self, probe_peak, budget_bytes, held_bytes, margin):
        self.probe_peak, self.margin = probe_peak, margin
        self.budget_bytes = peak.check_bytes("budget_bytes", budget_bytes)
        self.held_bytes = peak.check_bytes("held_bytes", held_bytes)
        self._beside: dict[Point, int] = {}

    @property
    def has_probed(self) -> bool:
        """Whether any point was."""
        return bool(self._beside)

    def peak_bytes(self, point: Point) -> int:
        """What a point's probe has said."""
        return self.held_bytes + self._beside[point]

    def upper_bytes(self, point: Point) -> int:
        """The point's upper bound; it is probed first if its bound so far allows it."""
        if point not in self._beside:
            upper_bytes = self.held_bytes + self._predicted(point)
            if upper_bytes > self.budget_bytes:
                return upper_bytes
            self._beside[point] = self._probe(point)
        return self.held_bytes + math.ceil(self._beside[point] * (1 + self.margin))

    def _probe(self, point):
        peak_bytes = int(peak.check_bytes("probe_peak(...)", self.probe_peak(point)))
        if peak_bytes < self.held_bytes:
            raise ArgumentError(
                f"the peak of {point} is {peak_bytes:_} B, less than held_bytes="
                f"{self.held_bytes:_}; count in both what is held, or in neither."
            )
        return peak_bytes - self.held_bytes

    def _predicted(self, point) -> int:
        """From each size's first reading, and from what fusing as many added to other sizes.

        0 where nothing was probed yet.
        """
        by_rows: dict[int, int] = {}
        for probed, beside_bytes in self._beside.items():
            by_rows.setdefault(probed.micro_batch, beside_bytes)
        if not by_rows:
            return 0
        fusing_bytes = max(
            beside_bytes - by_rows[probed.micro_batch] if probed.fused == point.fused else 0
            for probed, beside_bytes in self._beside.items()
        )
        if len(by_rows) == 1:
            # No line goes through one size; at worst all of it grows with the rows.
            [(rows, beside_bytes)] = by_rows.items()
            by_rows[2 * rows] = 2 * beside_bytes
        shifted = {rows: beside_bytes + fusing_bytes for rows, beside_bytes in by_rows.items()}
        return peak.fit(shifted, self.margin).upper(point.micro_batch)

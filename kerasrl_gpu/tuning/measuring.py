"""Samples/s of several candidates on a machine whose own pace changes while they are timed.

Every round times each candidate once, in an order drawn anew, so whatever slows the machine down
for a while hits all of them. How fast the machine was in a round, its pace, is what the candidates
have in common there; rates are divided by it before medians are taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from kerasrl_gpu.errors import ArgumentError, check_count, check_number
from kerasrl_gpu.tuning.choose import PLATEAU
from kerasrl_gpu.tuning.points import Point

_HOPELESS, _HOPELESS_AT_ONCE = 2.0, 4.0  # times slower; one round may be one accident
_ROUNDS_TO_DROP, _ROUNDS_TO_END = 3, 5
_MOST_CALLS = 1_000_000  # a clock that stands still ends the warm-up, too


class Speed(NamedTuple):
    """What the rounds gave for one point.

    Attributes:
        samples_per_s: the median, at the pace that the machine had in its median round.
        p10: 10th percentile.
        p90: 90th percentile.
        times_slower: than the best, if it was dropped for that; None if it stayed to the end.
    """

    samples_per_s: float
    p10: float
    p90: float
    times_slower: float | None


def measure(
    runs: Mapping[Point, Callable[[], None]],
    *,
    seconds: float,
    rounds: int = 50,
    sample_s: float = 0.01,
    plateau: float = PLATEAU,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Point, Speed]:
    """Time every candidate in interleaved rounds.

    From the third round on, or earlier if the time would not do for another, candidates are dropped
    that are over 2 times slower than the best (4 times after a single round). Ends after `rounds`,
    when another round would take longer than there is time (one is always run), or, from the fifth
    on, when the best is separated: all others' p90 is off the plateau below its p10.

    Args:
        runs: point -> one device call that returns when the device is done.
        seconds: for the rounds; the warm-up, which may compile, comes on top.
        rounds: the most rounds.
        sample_s: calls are timed together until they last this long, so that the clock's
            resolution does not matter.
        plateau: fraction of the best samples/s that counts as no difference.
        seed: of the orders.
        clock: seconds, rising.

    Raises:
        ArgumentError: nothing to measure, or a number that cannot be honoured.
    """
    if not runs:
        raise ArgumentError("there is nothing to measure; pass one point with its call at least.")
    check_count("rounds", rounds, 1)
    check_number("seconds", seconds, lambda value: value >= 0, "a number of seconds, 0 or more")
    generator = np.random.default_rng(seed)
    candidates = [_Candidate(point, run, clock) for point, run in runs.items()]
    for candidate in candidates:
        candidate.warm_up(sample_s)
    left, end = candidates, clock() + seconds
    for done in range(1, rounds + 1):
        for index in generator.permutation(len(left)):
            left[index].sample(sample_s)
        if done >= _ROUNDS_TO_DROP or not _has_time(left, clock, end):
            left = _without_hopeless(left, _HOPELESS_AT_ONCE if done == 1 else _HOPELESS)
        if not _has_time(left, clock, end) or _is_separated(left, done, plateau):
            break
    paces = _paces(left)
    return {candidate.point: _speed(candidate, paces) for candidate in candidates}


class _Candidate:
    def __init__(self, point, run, clock):
        self.point, self.run, self.clock = point, run, clock
        self.calls = 1  # timed together
        self.rates = []  # samples/s, one a round
        self.elapsed_s = 0.0  # of the last sample
        self.times_slower = None

    def warm_up(self, sample_s):
        self._time()  # compiles, and says nothing about the next call
        while self._time() < sample_s and self.calls < _MOST_CALLS:
            self.calls *= 2

    def sample(self, sample_s):
        self.elapsed_s = self._time()
        rows = self.calls * self.point.rows_a_call
        self.rates.append(rows / max(self.elapsed_s, 1e-9))  # a clock may stand still
        if self.elapsed_s < sample_s and self.calls < _MOST_CALLS:
            self.calls *= 2

    def _time(self) -> float:
        start = self.clock()
        for _ in range(self.calls):
            self.run()
        return self.clock() - start


def _has_time(left, clock, end) -> bool:
    """Whether another round, as long as the last one, would end in time."""
    return clock() + sum(candidate.elapsed_s for candidate in left) <= end


def _paces(left) -> np.ndarray:
    """f64[rounds], how fast the machine was in each; 1 in the median round.

    One candidate alone cannot tell the machine's pace from its own.
    """
    logs = np.log([candidate.rates for candidate in left])
    if len(left) == 1:
        return np.ones(logs.shape[1])
    logs = np.median(logs - logs.mean(axis=1, keepdims=True), axis=0)
    return np.exp(logs - np.median(logs))


def _speed(candidate, paces) -> Speed:
    rates = np.divide(candidate.rates, paces[: len(candidate.rates)])
    p10, median, p90 = np.percentile(rates, [10, 50, 90]).tolist()
    return Speed(median, p10, p90, candidate.times_slower)


def _without_hopeless(left, limit) -> list:
    """Those that stay; a candidate's best round counts, for a slow one may be an accident."""
    paces = _paces(left)
    fastest = max(_speed(candidate, paces).samples_per_s for candidate in left)
    for candidate in left:
        times_slower = fastest / max(np.divide(candidate.rates, paces))
        if times_slower > limit:
            candidate.times_slower = float(times_slower)
    return [candidate for candidate in left if candidate.times_slower is None]


def _is_separated(left, done, plateau) -> bool:
    """Whether more rounds would not change what is on the plateau: the best alone."""
    if done < _ROUNDS_TO_END:
        return False
    paces = _paces(left)
    best, *others = sorted((_speed(each, paces) for each in left), reverse=True)
    return all(other.p90 < (1 - plateau) * best.p10 for other in others)

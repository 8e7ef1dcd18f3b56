"""Samples/s of several points on a machine that has its moods."""

from collections import Counter

import pytest
from machine import Machine

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.tuning.measuring import measure
from kerasrl_gpu.tuning.points import Point

A, B, C, D = (Point(64, size, 1) for size in (8, 16, 32, 64))


class Calls:
    """Calls of stated lengths on a clock that nothing else moves."""

    def __init__(self, **call_s):
        self.now_s, self.order, self.call_s = 0.0, [], call_s

    def clock(self):
        return self.now_s

    def runs(self, points):
        def run(name):
            self.order.append(name)
            call_s = self.call_s[name]
            self.now_s += call_s.pop(0) if isinstance(call_s, list) else call_s

        return {point: lambda name=name: run(name) for name, point in points.items()}


def test_medians_and_percentiles_of_a_single_point():
    # The first call compiles, the second ends the warm-up; five rounds of 64 samples in 1, 2, 4,
    # 8 and 16 s: 64, 32, 16, 8, 4 samples/s. Median 16, p10 5.6, p90 51.2.
    calls = Calls(a=[100.0, 1.0, 1.0, 2.0, 4.0, 8.0, 16.0])
    speeds = measure(calls.runs({"a": A}), seconds=1e9, rounds=5, clock=calls.clock)
    assert speeds == {A: pytest.approx((16, 5.6, 51.2, None))}


def test_fused_updates_count():
    calls = Calls(a=0.5)
    many = Point(64, 16, 4)
    speeds = measure(calls.runs({"a": many}), seconds=3, clock=calls.clock)
    assert speeds[many].samples_per_s == 64 * 4 / 0.5


def test_every_round_has_every_point_once_in_an_order_of_its_own():
    def order(seed):
        calls = Calls(a=1.0, b=1.1, c=1.2)
        runs = calls.runs({"a": A, "b": B, "c": C})
        measure(runs, seconds=1e9, rounds=4, seed=seed, clock=calls.clock)
        assert calls.order[:6] == ["a", "a", "b", "b", "c", "c"]  # the warm-up
        return [tuple(calls.order[at : at + 3]) for at in range(6, 18, 3)]

    rounds = order(seed=1)
    assert [sorted(each) for each in rounds] == [["a", "b", "c"]] * 4
    assert len(set(rounds)) > 1
    assert order(seed=1) == rounds
    assert order(seed=2) != rounds


def test_short_calls_are_timed_together():
    calls = Calls(a=0.001)
    speeds = measure(calls.runs({"a": A}), seconds=1e9, rounds=10, clock=calls.clock)
    # 1, 2, 4, 8, 16: the first that last 10 ms. One before, to compile, and five rounds after,
    # for more would say nothing new of a point that is alone.
    assert len(calls.order) == 1 + 1 + 2 + 4 + 8 + 16 + 5 * 16
    assert speeds[A].samples_per_s == pytest.approx(64_000)


def test_samples_that_turn_out_short_get_more_calls():
    # 20 ms at first, then 4: one call, two (8 ms), and four from then on
    calls = Calls(a=[1.0, 0.02, *[0.004] * 19])
    measure(calls.runs({"a": A}), seconds=1e9, rounds=5, clock=calls.clock)
    assert len(calls.order) == 2 + 1 + 2 + 4 + 4 + 4


def test_a_clock_that_stands_still_ends_the_warm_up(monkeypatch):
    monkeypatch.setattr("kerasrl_gpu.tuning.measuring._MOST_CALLS", 100)
    calls = Calls(a=0.0)
    measure(calls.runs({"a": A}), seconds=1.0, rounds=1, clock=calls.clock)
    assert len(calls.order) < 500


def test_the_hopeless_is_dropped_after_three_rounds():
    calls = Calls(a=1.0, b=1.9, c=2.5, d=4.5)
    runs = calls.runs({"a": A, "b": B, "c": C, "d": D})
    speeds = measure(runs, seconds=1e9, rounds=20, clock=calls.clock)
    # Two calls each are the warm-up; after five rounds a is separated from b.
    assert Counter(calls.order) == {"a": 2 + 5, "b": 2 + 5, "c": 2 + 3, "d": 2 + 3}
    slower = [speeds[point].times_slower for point in (A, B, C, D)]
    assert slower == [None, None, pytest.approx(2.5), pytest.approx(4.5)]
    assert speeds[C].samples_per_s == pytest.approx(64 / 2.5)
    assert speeds[D].samples_per_s == pytest.approx(64 / 4.5)


@pytest.mark.parametrize(
    "seconds, counts",
    [
        (5, (1, 1, 1, 1)),  # a round takes 9.9 s, 5.4 s without d
        (15.5, (2, 2, 2, 1)),  # 9.9 + 5.4; then 2.9 s without c are not left either
        (18.5, (3, 3, 2, 1)),
        (20, (2, 2, 2, 2)),
    ],
)
def test_where_time_is_short_the_hopeless_is_dropped_sooner(seconds, counts):
    calls = Calls(a=1.0, b=1.9, c=2.5, d=4.5)
    runs = calls.runs({"a": A, "b": B, "c": C, "d": D})
    speeds = measure(runs, seconds=seconds, clock=calls.clock)
    assert Counter(calls.order) == dict(zip("abcd", (2 + count for count in counts), strict=True))
    assert speeds[D].times_slower == pytest.approx(4.5)


def test_one_slow_moment_drops_nobody():
    calls = Calls(a=1.0, b=[1.0, 1.0, 3.9, *[0.9] * 20])
    speeds = measure(calls.runs({"a": A, "b": B}), seconds=1e9, rounds=9, clock=calls.clock)
    assert speeds[B].times_slower is None
    assert speeds[B].samples_per_s > speeds[A].samples_per_s


def test_rounds_go_on_while_two_are_on_one_plateau():
    for b, rounds in ((1.02, 12), (1.04, 5)):  # 3 % apart is off it
        calls = Calls(a=1.0, b=b)
        measure(calls.runs({"a": A, "b": B}), seconds=1e9, rounds=12, clock=calls.clock)
        assert Counter(calls.order)["a"] == 2 + rounds


def test_the_time_is_kept_and_one_round_is_always_run():
    for seconds, rounds in ((0, 1), (6.3, 1), (6.7, 2), (10, 3), (13.5, 4)):
        calls = Calls(a=1.0, b=1.1, c=1.2)  # 3.3 s a round
        runs = calls.runs({"a": A, "b": B, "c": C})
        measure(runs, seconds=seconds, rounds=4, clock=calls.clock)
        assert len(calls.order) == 6 + 3 * rounds


def test_a_pace_that_changes_within_the_median_round_is_taken_out():
    # Everything takes 3 times as long from the third round on, after a's sample and before b's.
    # Plain medians would be a's fast and b's slow: a 2.7 times faster, though b takes 0.9 of it.
    calls = Calls(a=[1, 1, 1, 1, 1, 3, 3], b=[0.9, 0.9, 0.9, 0.9, 2.7, 2.7, 2.7])
    speeds = measure(calls.runs({"a": A, "b": B}), seconds=1e9, rounds=5, clock=calls.clock)
    assert speeds[B].samples_per_s / speeds[A].samples_per_s == pytest.approx(1 / 0.9)


@pytest.mark.parametrize("at_s", [0.05, 0.2, 0.4, 0.55, 0.7, 0.9, 1.1, 1.4])
@pytest.mark.parametrize("slows_by", [0.3, 3.0, 20.0])
def test_a_machine_that_changes_its_pace_ranks_them_the_same(at_s, slows_by):
    points = [Point(2048, size, 1) for size in (256, 512, 1024)]
    steady = Machine(seed=3)
    machine = Machine(seed=3, noise=0.01, slows_at_s=at_s, slows_by=slows_by)
    machine.open = set(points)
    runs = {point: lambda point=point: machine.run(point) for point in points}
    speeds = measure(runs, seconds=1.5, clock=machine.clock)
    best = max(points, key=steady.rate)
    for point in points:
        relative = speeds[point].samples_per_s / speeds[best].samples_per_s
        assert relative == pytest.approx(steady.rate(point) / steady.rate(best), rel=0.03)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"runs": {}, "seconds": 1}, "nothing to measure; pass one point"),
        ({"runs": {A: int}, "seconds": -1}, "seconds=-1; pass a number of seconds, 0 or more"),
        ({"runs": {A: int}, "seconds": 1, "rounds": 0}, "rounds=0; pass a whole number"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        measure(**arguments)

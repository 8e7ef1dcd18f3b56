"""The whole search, on machines that exist in numbers only."""

import math
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Machine

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.tuning.points import Point, exact_points, free_points
from kerasrl_gpu.tuning.search import search

MIB = 2**20
PLENTY = 2**50


def tune(machine, points, budget_bytes=PLENTY, **options):
    options = {"held_bytes": machine.model["fixed"], "clock": machine.clock} | options
    return search(points, machine.probe_peak, machine.make_run, budget_bytes, **options)


def log_uniform(random, low, high):
    return math.exp(random.uniform(math.log(low), math.log(high)))


def some_machine(seed, **options):
    """One of very different machines: what a call, an update, a chunk and a row cost."""
    random = np.random.default_rng(seed)
    return Machine(
        seed, noise=0.02, hiccups=0.002, **options,
        overhead=log_uniform(random, 20e-6, 2e-3), apply=log_uniform(random, 5e-6, 5e-4),
        chunk=log_uniform(random, 5e-6, 5e-4), row=log_uniform(random, 1e-7, 2e-5),
        knee=log_uniform(random, 16, 4096), slope=log_uniform(random, 1e3, 1e6),
    )  # fmt: skip


# How good the choice is ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_the_choice_is_within_5_percent_of_the_exhaustive_best(seed):
    machine, random = some_machine(seed), np.random.default_rng(seed)
    points = exact_points(int(random.choice([32, 97, 256, 1000, 4096])), 2 ** (seed % 6))
    largest = random.choice([point.micro_batch for point in points])
    # a tenth on top of what is not held
    budget_bytes = machine.line(largest) + 0.1 * machine.model["slope"] * largest + 1000
    choice = tune(machine, points, budget_bytes)
    fitting = [point for point in points if point.micro_batch <= largest]
    assert choice.point in fitting
    assert machine.rate(choice.point) >= 0.95 * max(map(machine.rate, fitting))
    assert len(machine.probed) <= 24  # of up to 48


def test_the_choice_is_repeated():
    points = exact_points(1024, 8)
    first, second = (tune(some_machine(5), points) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("at_s", np.linspace(0.05, 2.5, 12))
def test_a_machine_that_slows_down_on_the_way_gets_the_same_choice(at_s):
    # 3 ms a call and 2.3 an update of 512 rows at a time: 4 fused are 24 % faster than 2
    machine = Machine(noise=0.01, overhead=3e-3, slows_at_s=at_s)
    assert tune(machine, exact_points(2048, 4)).point == Point(2048, 512, 4)
    assert machine.now_s > at_s


def test_fusing_that_slows_down_is_not_chosen():
    # Its time rises with the number, as where updates are unrolled; the search has to go back
    machine = Machine()
    plain = machine.call_s
    machine.call_s = lambda point: plain(point) * (1 + 0.5 * (point.fused - 1))
    assert tune(machine, exact_points(256, 8)).point == Point(256, 256, 1)


def test_no_call_is_longer_than_a_second_for_the_sake_of_fusing():
    # 64 rows of 4 ms: 0.256 s an update, of which 2 fit into a second at the speed of one, 4 do not
    machine = Machine(row=4e-3)
    tune(machine, exact_points(64, 8))
    assert {point.fused for point in machine.calls} == {1, 2}


def test_fusing_that_brings_less_than_a_third_of_the_plateau_is_not_spread_to_all_sizes():
    # 2,048 rows at a time and no cache to leave: 20 us a call and 2,148 an update; 8 fused save
    # 17.5 of 2,168, 0.8 %. With 1,024 at a time an update takes 60 more, and 3.5 % from 8 fused.
    machine = Machine(overhead=20e-6, knee=1e6)
    assert tune(machine, exact_points(2048, 8)).point == Point(2048, 2048, 8)
    assert {point.micro_batch for point in machine.probed if point.fused > 1} == {2048}


def test_what_fusing_and_a_size_give_away_together_is_within_the_plateau():
    # No cache to leave, 16,384 rows. All at a time and one update a call: 500 us a call and 16,484
    # an update. 2 fused save 250 of 16,984, 1.5 %; 4,096 rows at a time cost 180 more, 1.1 %.
    # Giving away both would be 2.6 %, beside 4 fused 3.3.
    machine = Machine(overhead=500e-6, knee=1e6, noise=0.002)
    chosen = tune(machine, exact_points(16384, 4)).point
    best = max(machine.rate(point) for point in exact_points(16384, 4))
    assert machine.rate(chosen) >= 0.969 * best


def test_what_is_close_to_the_best_is_timed_longer():
    machine = Machine(noise=0.02, knee=1e6)
    chosen = tune(machine, exact_points(2048, 2)).point
    last = set(machine.calls[-20:])
    assert chosen in last
    assert all(machine.rate(point) >= 0.9 * machine.rate(chosen) for point in last)


def test_what_is_hopeless_is_not_tried_with_more_fused():
    machine = Machine()
    choice = tune(machine, exact_points(2048, 4))
    slow = [each.point for each in choice.curve if "slower" in (each.skipped or "")]
    assert Point(2048, 1, 1) in slow
    sizes = {point.micro_batch for point in slow}
    assert all(point.fused == 1 for point in machine.probed if point.micro_batch in sizes)


def test_free_batches_stop_at_the_knee():
    # Beyond 512 rows a chunk leaves the cache: 1,024 are slower, though they fit. 512 take
    # 300 + 40 + 60 + 512 = 912 us.
    choice = tune(Machine(), free_points(100, 1, 32, 4096))
    assert choice.point == Point(512, 512, 1)
    assert choice.reason == "batch_size=512: 561,404 samples/s, the best of 9."


def test_the_curve_shows_all_that_was_tried_and_why_not():
    machine = Machine()
    choice = tune(machine, exact_points(2048, 4), 120 * MIB)
    shown = {reading.point: reading for reading in choice.curve}
    assert len(shown) == len(choice.curve)
    assert shown.keys() >= machine.probed.keys()
    # 300 + 40 + 2,048 * 61 us against 300 + 40 + 4 * 60 + 2,048 at 512 rows
    assert shown[Point(2048, 1, 1)].skipped == "47.7 times slower than the best"
    assert shown[Point(2048, 128, 1)].skipped == "more fused updates were faster"
    # 40 MiB and 64 KiB a row: 2,048 rows are 128 MiB beside them, a tenth on top 180.8
    refused = shown[Point(2048, 2048, 1)]
    assert refused.skipped == "needs up to 180.80 MiB of the 120.00 MiB budget"
    assert refused[1:4] == (None, None, None)
    assert refused.peak_bytes == pytest.approx(180.8 * MIB, rel=1e-6)
    assert "micro_batch=2048 needs up to 180.80 MiB" in choice.reason


# Memory -------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    seed=st.integers(0, 999),
    batch=st.integers(1, 5000),
    updates=st.integers(1, 12),
    fixed=st.integers(0, 2**33),
    slope=st.integers(0, 2**24),
    spike=st.floats(0, 0.03),
    rare=st.integers(2, 10),
    known=st.floats(0, 1),
    room=st.floats(0.5, 400),
)
def test_no_probe_is_ever_above_the_budget(
    seed, batch, updates, fixed, slope, spike, rare, known, room
):
    machine = Machine(seed, spike=spike, rare=rare, fixed=fixed, slope=slope)
    budget_bytes = int(1.2 * machine.line(1) + room * slope)
    choice = tune(
        machine,
        exact_points(batch, updates),
        budget_bytes,
        held_bytes=int(known * fixed),
        seconds=0,
    )
    assert max(machine.probed.values()) <= budget_bytes
    # In training the same spikes come, sooner or later, at the size that was chosen.
    worst = max(machine.peak(choice.point.micro_batch) for _ in range(200))
    assert worst <= budget_bytes
    assert set(machine.calls) <= machine.probed.keys()


def test_what_is_known_to_be_held_lets_the_second_size_be_tried():
    # Of 1,000 MiB all could be the first row's: twice as much is over the budget. Where 990 are
    # held anyway, the second row adds 10 at most.
    machine = Machine(fixed=998 * MIB, slope=2 * MIB)
    blind = tune(machine, exact_points(8, 1), 1300 * MIB, held_bytes=0)
    assert list(machine.probed) == [Point(8, 1, 1)]
    assert "micro_batch=2 needs up to 2.15 GiB of the 1.27 GiB budget" in blind.reason
    machine = Machine(fixed=998 * MIB, slope=2 * MIB)
    assert tune(machine, exact_points(8, 1), 1300 * MIB, held_bytes=990 * MIB).point[1] == 8


def test_probes_go_from_small_to_large_and_once_a_point():
    seen = []

    def probe_peak(point):
        seen.append(point)
        return 1000

    machine = Machine()
    machine.probe_peak = probe_peak
    tune(machine, exact_points(64, 4), held_bytes=0)
    assert len(seen) == len(set(seen))
    first = [point.micro_batch for point in seen[:7]]
    assert first == [1, 2, 4, 8, 16, 32, 64]


def test_what_fusing_adds_is_foretold_for_other_sizes():
    # 30 MiB for each update but the first: 512 rows, the fastest, take 32 + 90 = 122 MiB beside
    # the 40 that are held with four of them, 174 with a tenth. 1,024 would take 154, 209 so; they
    # are never probed.
    machine = Machine()
    line = machine.probe_peak
    machine.probe_peak = lambda point: line(point) + (point.fused - 1) * 30 * MIB
    choice = tune(machine, exact_points(2048, 4), 190 * MIB)
    assert choice.point == Point(2048, 512, 4)
    assert {Point(2048, 1024, 1), Point(2048, 2048, 1), Point(2048, 256, 4)} <= set(machine.probed)
    assert not {Point(2048, 1024, 4), Point(2048, 2048, 4)} & set(machine.probed)


# What goes wrong ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["probe", "open", "run"])
@pytest.mark.parametrize("after", [0, 3, 12])
def test_whatever_raises_all_that_was_opened_is_closed(where, after, error):
    machine, done = Machine(), []

    def fails(at):
        done.append(at)
        if done.count(at) > after and at == where:
            raise error

    def probe_peak(point):
        fails("probe")
        return machine.probe_peak(point)

    @contextmanager
    def make_run(point):
        fails("open")
        with machine.make_run(point) as run:
            yield lambda: (fails("run"), run())

    with pytest.raises(type(error)):
        search(exact_points(64, 8), probe_peak, make_run, PLENTY, held_bytes=0, clock=machine.clock)
    assert not machine.open


def test_runs_are_closed_at_the_end():
    machine = Machine()
    tune(machine, exact_points(64, 8))
    assert machine.calls
    assert not machine.open


@pytest.mark.parametrize(
    "points, options, sentence",
    [
        ([], {}, r"no points to search; pass some"),
        (
            exact_points(64, 2),
            {"budget_bytes": 40 * MIB + 70_000},
            # 40 MiB are held; a row takes 64 KiB and a tenth on top, 72,089.6 bytes
            r"the budget leaves 40.07 MiB; the smallest point, micro_batch=1, needs up to "
            r"40.07 MiB, 10 % for rare peaks included. Pass budget=42_015_130 or more",
        ),
        (exact_points(64, 2), {"budget_bytes": -1}, "budget_bytes=-1; pass a number of bytes"),
        (exact_points(64, 2), {"held_bytes": None}, "held_bytes=None; pass a number of bytes"),
        (exact_points(64, 2), {"held_bytes": 2**40}, "less than held_bytes=1_099_511_627_776"),
        (exact_points(64, 2), {"seconds": -1}, "seconds=-1; pass a number of seconds"),
    ],
)
def test_what_cannot_be_searched_is_said(points, options, sentence):
    machine = Machine()
    with pytest.raises(ArgumentError, match=sentence):
        tune(machine, points, **options)
    assert len(machine.probed) <= len(points)
    assert not machine.open


def test_a_budget_below_all_is_noticed_after_one_probe():
    machine = Machine()
    with pytest.raises(ArgumentError, match="the smallest point"):
        tune(machine, exact_points(64, 8), 40 * MIB + 70_000)
    assert list(machine.probed) == [Point(64, 1, 1)]


def test_a_budget_below_what_is_held_is_noticed_without_one():
    machine = Machine()
    with pytest.raises(ArgumentError, match=r"40\.00 MiB are held before anything"):
        tune(machine, exact_points(64, 8), 30 * MIB)
    assert not machine.probed

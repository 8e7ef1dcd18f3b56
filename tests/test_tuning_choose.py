"""The plateau rule, and the sentence that explains a choice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.tuning.choose import Reading, choose
from kerasrl_gpu.tuning.points import Point

MIB = 2**20


def reading(micro_batch, rate, mib, fused=1, batch=512, skipped=None):
    point = Point(batch, micro_batch, fused)
    return Reading(point, rate, rate, rate, mib * MIB, skipped)


def test_the_least_memory_on_the_plateau_wins_and_says_so():
    # 3 % of 42,000 are 1,260: 41,200 is within it, 40,700 is not, though it takes less
    refused = "needs up to 7.10 GiB of the 6.00 GiB budget"
    choice = choose([
        reading(64, 40_700, 90),
        reading(128, 41_200, 100),
        reading(256, 42_000, 131),
        reading(512, None, 7270, skipped=refused),
    ])  # fmt: skip
    assert choice.point == Point(512, 128, 1)
    assert choice.reason == (
        "micro_batch=128: 41,200 samples/s, within 3 % of the best (42,000 at micro_batch=256) "
        "with 31.00 MiB less; micro_batch=512 needs up to 7.10 GiB of the 6.00 GiB budget and "
        "was not tried."
    )


def test_exactly_at_the_plateaus_edge_is_on_it():
    assert choose([reading(1, 75, 1), reading(2, 100, 2)], 0.25).point.micro_batch == 1
    assert choose([reading(1, 74, 1), reading(2, 100, 2)], 0.25).point.micro_batch == 2


def test_equal_memory_goes_to_the_plainest():
    level = [reading(64, 100, 5, fused=8), reading(64, 100, 5, fused=2), reading(128, 100, 5)]
    assert choose(level).point == Point(512, 128, 1)
    assert choose(level[:2]).point == Point(512, 64, 8)
    free = [reading(size, 100, 5, batch=size) for size in (64, 128)]
    assert choose(free).point == Point(64, 64, 1)


def test_a_saving_below_2_percent_is_none():
    # 2 % of 100 MiB are 2: 98 is as much, 97 is less
    assert choose([reading(64, 100, 98), reading(128, 100, 100)]).point.micro_batch == 128
    assert choose([reading(64, 100, 97), reading(128, 100, 100)]).point.micro_batch == 64


def test_what_was_dropped_is_not_chosen():
    dropped = reading(1, 999, 1, skipped="2.4 times slower than the best")
    choice = choose([dropped, reading(2, 100, 2)])
    assert choice.point.micro_batch == 2
    assert choice.reason == "micro_batch=2: 100 samples/s, the best of 2."
    assert choice.curve == [dropped, reading(2, 100, 2)]


def test_the_sentence_names_what_differs():
    assert (
        choose([reading(8, 100, 1)]).reason == "micro_batch=8: 100 samples/s, the only one tried."
    )
    fuses = choose([reading(8, 100, 1, fused=4), reading(8, 99, 1, fused=8)])
    assert fuses.reason == (
        "micro_batch=8, updates_per_call=8: 99 samples/s, within 3 % of the best "
        "(100 at micro_batch=8, updates_per_call=4), which takes as much memory."
    )
    free = choose([reading(8, 50, 1, batch=8), reading(16, 90, 2, batch=16)])
    assert free.reason == "batch_size=16: 90 samples/s, the best of 2."
    refused = [reading(2**k, None, 2**k, skipped="needs more") for k in (3, 1, 2)]
    many = choose([reading(1, 50, 1), *refused])
    assert many.reason.endswith("; micro_batch=2 needs more and was not tried, nor were 2 more.")


def test_what_varied_much_is_said():
    point, reason = Point(8, 8, 1), "micro_batch=8: 100 samples/s, the only one tried"
    assert choose([Reading(point, 100, 80, 120, 1)]).reason == f"{reason}."
    unsteady = choose([Reading(point, 100, 50, 120, 1)])
    assert unsteady.reason == (
        f"{reason}; its samples/s varied by a factor of 2.4, so tune again on an idle machine."
    )


@given(
    rows=st.lists(
        st.tuples(st.floats(1, 1e6), st.integers(0, 50), st.booleans()), min_size=1, max_size=20
    )
)
def test_nothing_within_the_plateau_needs_less(rows):
    readings = [
        reading(size, rate, mib, skipped="dropped" if skipped else None)
        for size, (rate, mib, skipped) in enumerate(rows, start=1)
    ]
    left = [each for each in readings if each.skipped is None]
    if not left:
        with pytest.raises(ArgumentError, match=r"none of the \d+ points was measured"):
            choose(readings)
        return
    choice = choose(reversed(readings))
    chosen = next(each for each in left if each.point == choice.point)
    fastest = max(each.samples_per_s for each in left)
    assert chosen.samples_per_s >= 0.97 * fastest
    for each in left:
        assert each.samples_per_s < 0.97 * fastest or each.peak_bytes >= chosen.peak_bytes
    assert choice.curve == readings

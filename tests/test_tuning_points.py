"""Which micro-batches and numbers of fused updates are candidates."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.tuning.points import Point, exact_points, free_points


def micro_batches(*arguments):
    return [point.micro_batch for point in exact_points(*arguments)]


def fused(updates):
    return [point.fused for point in exact_points(1, updates)]


@pytest.mark.parametrize(
    "batch, sizes",
    [
        (1, [1]),
        (32, [1, 2, 4, 8, 16, 32]),
        (96, [1, 2, 4, 8, 12, 24, 48, 96]),  # divisors, not 16, 32 and 64
        (97, [1, 2, 4, 8, 16, 32, 64, 97]),  # a prime has none: the last chunk is smaller
    ],
)
def test_micro_batches_are_divisors_where_there_are_any(batch, sizes):
    assert micro_batches(batch, 1) == sizes


def test_least_leaves_smaller_ones_out():
    assert micro_batches(96, 1, 10) == [12, 16, 32, 48, 96]
    assert micro_batches(97, 1, 20) == [32, 64, 97]
    assert micro_batches(7, 1, 5) == [7]


@pytest.mark.parametrize(
    "updates, counts",
    [(1, [1]), (2, [1, 2]), (7, [1, 7]), (8, [1, 2, 4, 8]), (64, [1, 4, 16, 64])],
)
def test_fused_updates_divide_what_is_due(updates, counts):
    assert fused(updates) == counts


@given(batch=st.integers(1, 10**6), updates=st.integers(1, 10**4), data=st.data())
def test_candidates_are_few_fit_and_leave_no_gap(batch, updates, data):
    least = data.draw(st.integers(1, batch))
    points = exact_points(batch, updates, least)
    sizes = sorted({point.micro_batch for point in points})
    counts = sorted({point.fused for point in points})
    assert points == [Point(batch, *pair) for pair in itertools.product(sizes, counts)]
    assert sizes[-1] == batch
    assert least <= sizes[0] <= max(2 * least, batch if batch < 2 * least else 0)
    assert len(sizes) <= 12
    assert {1, updates} <= set(counts)
    assert len(counts) <= 4
    assert all(updates % count == 0 for count in counts)
    step = max(2, (batch / least) ** (1 / 11))
    assert all(after <= 2 * step * before for before, after in itertools.pairwise(sizes))


def test_free_batches_are_powers_of_two_and_the_users():
    points = free_points(100, 2, 32, 300)
    assert points == [Point(b, b, k) for b in (32, 64, 100, 128, 256) for k in (1, 2)]
    assert Point(100, 100, 1) not in free_points(100, 1, 128, 256)


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: exact_points(0, 1), "batch=0; pass a whole number of at least 1"),
        (lambda: exact_points(8, 1.5), "updates=1.5; pass a whole number"),
        (lambda: exact_points(8, 1, 9), "least=9 rows at a time are more than batch=8; pass less"),
        (lambda: free_points(3, 1, 5, 7), "no power of two lies from least=5 to most=7, nor does"),
        (lambda: free_points(3, 1, 8, 4), "from least=8 to most=4.*widen the range"),
    ],
)
def test_what_cannot_be_a_point_is_said(call, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        call()

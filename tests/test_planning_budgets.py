"""What a budget means, and what it leaves to a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.planning.budgets import Budget, available, parse

GIB = 2**30


@pytest.mark.parametrize(
    "text, share, count",
    [
        ("70%", 0.7, None),
        (" 100 % ", 1.0, None),
        ("0.5%", 0.005, None),
        ("6GiB", None, 6 * 2**30),
        ("1.5 GiB", None, 3 * 2**29),
        ("500MB", None, 500_000_000),
        ("8kB", None, 8_000),
        ("8 KiB", None, 8_192),
        ("1_000", None, 1_000),
        (4096, None, 4096),
        (400 * "9" + "GB", None, int(400 * "9") * 10**9),  # more than a float holds
    ],
)
def test_a_budget_is_a_share_or_bytes(text, share, count):
    assert parse(text) == Budget(share, count)


def test_no_budget_stays_none_and_a_parsed_one_stays_as_it_is():
    assert parse(None) is None
    assert parse(parse("70%")) == Budget(0.7, None)


@pytest.mark.parametrize(
    "given, sentence",
    [
        ("0%", "above 0 % and at most at 100 %"),
        ("101%", "'101%': a share of the device lies above 0 % and at most at 100 %"),
        ("-5%", "above 0 %"),
        ("6 GiBit", "'GiBit' is no unit of bytes; pass one of %, B, kB"),
        ("6 apples", "'apples' is no unit"),
        ("0GiB", "leaves no byte to the run"),
        (0, "budget=0 leaves no byte"),
        (-1, "budget=-1 leaves no byte"),
        ("lots", "'lots' is no budget; pass a share such as '70%'"),
        ("", "is no budget"),
        ("1.2.3GB", "is no budget"),
        (0.7, "budget=0.7 is no budget; pass a share such as '70%'"),
        (True, "budget=True is no budget"),
        (float("nan"), "is no budget"),
    ],
)
def test_what_is_no_budget_is_said_to_be_none(given, sentence):
    with pytest.raises(ArgumentError) as error:
        parse(given)
    assert sentence in str(error.value)


def test_a_share_lets_the_use_of_the_device_rise_to_it():
    # limit 10 GiB, 4 in use of which this run holds 1; 70 % is 7: 3 more than now, and its own 1
    assert available(parse("70%"), 10 * GIB, 4 * GIB, 1 * GIB) == 4 * GIB
    # (without what it holds it would be 3; as a share of what is free 0.7 * 6 = 4.2 and 1)
    assert available(parse("30%"), 10 * GIB, 4 * GIB, 0) == 0  # already above it


def test_an_amount_is_the_runs_own_but_never_more_than_is_free():
    assert available(parse("2GiB"), 10 * GIB, 4 * GIB, 1 * GIB) == 2 * GIB
    assert available(parse("9GiB"), 10 * GIB, 4 * GIB, 1 * GIB) == 7 * GIB  # 6 free and its own 1


def test_without_a_budget_what_is_free_may_be_spent():
    assert available(None, 10 * GIB, 4 * GIB, 1 * GIB) == 7 * GIB


def test_a_device_that_tells_no_limit_knows_amounts_only():
    assert available(parse("2GiB"), None, None) == 2 * GIB
    assert available(None, None, 5) is None
    with pytest.raises(
        ArgumentError, match=r"70% is a share of the device's limit.*pass an amount"
    ):
        available(parse("70%"), None, None)


@given(
    share=st.integers(1, 100),
    limit=st.integers(1, 2**40),
    used=st.integers(0, 2**40),
    held=st.integers(0, 2**40),
)
def test_no_budget_gives_more_than_is_free(share, limit, used, held):
    held, used = min(held, used), min(used, limit)
    free = available(None, limit, used, held)
    got = available(parse(f"{share}%"), limit, used, held)
    assert 0 <= got <= free == limit - used + held
    # spent in full, the use of the device is at the share, or was above it before
    assert used - held + got <= max(limit * share / 100, used - held)

"""The line through probes of peak memory, and how far it may be off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.tuning import peak

sizes = st.lists(st.integers(1, 4096), min_size=2, max_size=8, unique=True)
nbytes = st.integers(0, 2**36)


def test_a_line_is_found_exactly():
    # 1000 B and 50 B a row: 64 rows are 1000 + 3200 = 4200 B, with a tenth 4620 B
    fit = peak.fit({1: 1050, 2: 1100, 4: 1200})
    assert (fit.fixed_bytes, fit.row_bytes) == pytest.approx((1000, 50))
    assert fit.predict(64) == pytest.approx(4200, abs=1)
    assert fit.upper(64) == pytest.approx(4620, abs=2)


def test_the_worst_residual_counts_and_grows_beyond_the_probes():
    # Rows 1, 2, 3 with 0, 3, 0: slope 0, fixed 1, residuals -1, 2, -1; so 1 + 2 within the
    # probes, and twice the residual at twice the largest, 1 + 4
    fit = peak.fit({1: 0, 2: 3, 3: 0}, margin=0)
    assert fit.predict(2) == 1
    assert [fit.upper(rows) for rows in (1, 2, 3, 6, 9)] == [3, 3, 3, 5, 7]


def test_a_falling_line_is_taken_for_a_level_one():
    fit = peak.fit({1: 300, 2: 100}, margin=0)
    assert (fit.row_bytes, fit.predict(1), fit.predict(1000)) == (0, 200, 200)
    assert fit.upper(2) == 300


@given(rows=sizes, data=st.data(), margin=st.floats(0, 1))
def test_no_probe_lies_above_the_upper_bound(rows, data, margin):
    peaks = {size: data.draw(nbytes) for size in rows}
    fit = peak.fit(peaks, margin)
    assert fit.row_bytes >= 0
    for size, seen in peaks.items():
        assert fit.upper(size) >= seen * (1 - 1e-9)
    bounds = [fit.upper(size) for size in range(1, 2 * max(rows), 97)]
    assert bounds == sorted(bounds)


@given(
    fixed=st.integers(0, 2**34),
    slope=st.integers(1, 2**24),
    first=st.integers(1, 64),
    spiked=st.integers(0, 3),
    rows_ahead=st.integers(1, 2),
)
def test_a_rare_spike_is_covered(fixed, slope, first, spiked, rows_ahead):
    # One probe of three is 3 % too high, or none is; the next size, up to twice as large, is
    # 3 % above the line, too, and still not above what was foretold.
    line = {size: fixed + slope * size for size in (first, 2 * first, 4 * first, 8 * first)}
    *probed, following = line
    following = probed[-1] * rows_ahead
    peaks = {
        size: line[size] * (1.03 if index == spiked else 1.0) for index, size in enumerate(probed)
    }
    assert peak.fit(peaks).upper(following) >= 1.03 * (fixed + slope * following) - 1


@pytest.mark.parametrize(
    "peaks, sentence",
    [
        ({}, "measured at 0 sizes .* a line needs two different numbers of rows"),
        ({8: 100}, r"measured at 1 sizes \(\[8\]\); .* probe another one"),
        ({0: 100, 1: 200}, "rows=0; pass a whole number of at least 1"),
        ({1: 100, 2: -5}, "peak bytes=-5; pass a number of bytes"),
        ({1: 100, 2: float("nan")}, "peak bytes=nan; pass a number of bytes"),
        ({1: 100, 2: None}, "peak bytes=None; pass a number of bytes"),
    ],
)
def test_what_no_line_goes_through_is_said(peaks, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        peak.fit(peaks)


def test_a_margin_that_is_none_is_said():
    with pytest.raises(ArgumentError, match=r"margin=-0.1; pass a fraction such as 0.1"):
        peak.fit({1: 1, 2: 2}, margin=-0.1)

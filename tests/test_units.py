"""Figures as people read them."""

import pytest

from kerasrl_gpu.units import human_bytes


@pytest.mark.parametrize(
    ("nbytes", "digits", "words"),
    [
        (0, 2, "0 B"),
        (1023, 2, "1023 B"),
        (1024, 2, "1.00 KiB"),
        (1536, 1, "1.5 KiB"),
        (2**30 - 1, 2, "1.00 GiB"),
        (31 << 20, 2, "31.00 MiB"),
        (3 << 29, 2, "1.50 GiB"),
        (5 << 40, 1, "5.0 TiB"),
        (5 << 52, 2, "20,480.00 TiB"),
        (-(3 << 10), 2, "-3.00 KiB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_that_fits(nbytes, digits, words):
    assert human_bytes(nbytes, digits) == words

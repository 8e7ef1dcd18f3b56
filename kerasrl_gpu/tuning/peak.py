"""Peak memory over the rows that are computed at a time: a line through a few small probes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kerasrl_gpu.errors import ArgumentError, check_count, check_number

MARGIN = 0.10  # of the bytes: for what happens rarely, and did not while it was probed


@dataclass(frozen=True)
class Fit:
    """peak(rows) = fixed_bytes + row_bytes * rows, and how far it may be off.

    Attributes:
        fixed_bytes: where the line begins.
        row_bytes: what a row adds; never negative.
        worst_bytes: the largest distance of a probe from the line.
        largest_rows: the largest size that was probed.
        margin: fraction that `upper` adds.
    """

    fixed_bytes: float
    row_bytes: float
    worst_bytes: float
    largest_rows: int
    margin: float

    def predict(self, rows: int) -> int:
        """Bytes on the line, rounded up."""
        return math.ceil(max(0.0, self.fixed_bytes + self.row_bytes * rows))

    def upper(self, rows: int) -> int:
        """Bytes that are not exceeded: the line, the worst residual and the margin.

        The residual counts the more the further `rows` lies beyond what was probed, as an error
        of the slope does.
        """
        worst = self.worst_bytes * max(1.0, rows / self.largest_rows)
        return math.ceil((self.predict(rows) + worst) * (1 + self.margin))


def fit(peaks: Mapping[int, float], margin: float = MARGIN) -> Fit:
    """The least-squares line through measured peaks.

    Args:
        peaks: rows at a time -> peak bytes, at least two sizes.
        margin: fraction of the bytes that `Fit.upper` adds for what happens rarely.

    Raises:
        ArgumentError: fewer than two sizes, which no line goes through, or a number of rows or
            bytes that cannot be one.
    """
    if len(peaks) < 2:
        raise ArgumentError(
            f"peak memory was measured at {len(peaks)} sizes ({list(peaks)}); a line needs two "
            f"different numbers of rows at least: probe another one."
        )
    check_number("margin", margin, lambda value: 0 <= value < math.inf, "a fraction such as 0.1")
    rows = [check_count("rows", size, 1) for size in peaks]
    seen = [check_bytes("peak bytes", peak) for peak in peaks.values()]
    mean_rows, mean_seen = sum(rows) / len(rows), sum(seen) / len(seen)
    covariance = sum((x - mean_rows) * (y - mean_seen) for x, y in zip(rows, seen, strict=True))
    row_bytes = max(0.0, covariance / sum((x - mean_rows) ** 2 for x in rows))
    fixed_bytes = mean_seen - row_bytes * mean_rows
    worst = max(abs(y - fixed_bytes - row_bytes * x) for x, y in zip(rows, seen, strict=True))
    return Fit(fixed_bytes, row_bytes, worst, max(rows), margin)


def check_bytes(name: str, value):
    """`value`; raises ArgumentError unless it is a finite number of bytes, 0 or more."""
    return check_number(name, value, lambda number: 0 <= number < math.inf, "a number of bytes")

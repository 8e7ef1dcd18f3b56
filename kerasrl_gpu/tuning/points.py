"""The candidates: which micro-batches and which numbers of fused updates are worth a try."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from kerasrl_gpu.errors import ArgumentError, check_count

_MOST_SIZES, _MOST_FUSED = 12, 4  # every candidate costs a compilation, seconds


class Point(NamedTuple):
    """One way to execute updates.

    Attributes:
        batch: rows an update learns from, the logical batch.
        micro_batch: rows computed at a time, 1 to `batch`; the last chunk may be smaller.
        fused: updates in one device call, `updates_per_call` of the agent.
    """

    batch: int
    micro_batch: int
    fused: int

    @property
    def rows_a_call(self) -> int:
        """Rows that one device call learns from."""
        return self.batch * self.fused


def exact_points(batch: int, updates: int, least: int = 1) -> list[Point]:
    """Every way to execute the same updates that is worth a try, small micro-batches first.

    Micro-batches are about a factor of two apart, more where that would be over 12 of them:
    divisors of the batch where there are any near, powers of two (the last chunk is smaller) where
    there are none; the batch itself is the last. Numbers of fused updates are up to 4 divisors
    of `updates`, 1 and `updates` among them.

    All pairs are listed, up to 48; `search` tries half of them at most. What a fused call saves
    does not depend on the micro-batch, so sweeps along both axes find the best pair.

    Args:
        batch: the logical batch, which stays.
        updates: updates that are due at once, which stay.
        least: the smallest micro-batch.

    Raises:
        ArgumentError: a number is no whole number of at least 1, or `least` is above `batch`.
    """
    batch, updates = check_count("batch", batch, 1), check_count("updates", updates, 1)
    least = check_count("least", least, 1)
    if least > batch:
        raise ArgumentError(f"least={least} rows at a time are more than batch={batch}; pass less.")
    sizes, fused = _micro_batches(batch, least), _fused(updates)
    return [Point(batch, size, count) for size in sizes for count in fused]


def free_points(batch: int, updates: int, least: int, most: int) -> list[Point]:
    """Powers of two from `least` to `most` as batches computed in one piece, small ones first.

    The batch that the user has is among them where it lies in that range. Updates stay as many as
    they are, so the replay ratio does.

    Args:
        batch: the user's logical batch.
        updates: updates that are due at once.
        least: the smallest batch.
        most: the largest batch.

    Raises:
        ArgumentError: a number is no whole number of at least 1, or no size lies in the range.
    """
    batch, updates = check_count("batch", batch, 1), check_count("updates", updates, 1)
    least, most = check_count("least", least, 1), check_count("most", most, 1)
    sizes = {size for size in [*_powers_of_two(most), batch] if least <= size <= most}
    if not sizes:
        raise ArgumentError(
            f"no power of two lies from least={least} to most={most}, nor does batch={batch}; "
            f"widen the range."
        )
    return [Point(size, size, count) for size in sorted(sizes) for count in _fused(updates)]


def _micro_batches(batch: int, least: int) -> list[int]:
    count = min(_MOST_SIZES, 1 + math.ceil(math.log2(batch / least)))
    wanted = np.geomspace(least, batch, count)
    reach = math.sqrt(wanted[1] / wanted[0]) if count > 1 else 1.0  # half-way to the next
    divisors = [size for size in _divisors(batch) if size >= least]
    powers = [size for size in _powers_of_two(batch) if size >= least] or [batch]
    sizes = set()
    for size in wanted:
        near = _nearest(divisors, size)
        sizes.add(near if max(near / size, size / near) <= reach else _nearest(powers, size))
    return sorted(sizes)


def _fused(updates: int) -> list[int]:
    divisors = _divisors(updates)
    wanted = np.geomspace(1, updates, min(_MOST_FUSED, len(divisors)))
    return sorted({_nearest(divisors, count) for count in wanted})


def _nearest(values: list[int], wanted: float) -> int:
    return min(values, key=lambda value: abs(math.log(value / wanted)))


def _divisors(number: int) -> list[int]:
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def _powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]

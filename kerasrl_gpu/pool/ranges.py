"""A pool cut into ranges of rows: what a checkpoint writes one by one, and need not write again."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

_PARTS, _LEAST_ROWS, _MOST_BYTES = 64, 1_024, 2**24


class Rows(NamedTuple):
    """Rows of one sub-ring that stand side by side.

    Attributes:
        name: the same for the same place in every pool of this capacity and row size.
        environment: which sub-ring.
        start: the first row's slot within the sub-ring.
        stop: one beyond the last row that was ever written.
    """

    name: str
    environment: int
    start: int
    stop: int


def length(capacity: int, row_bytes: int) -> int:
    """Rows of a range: a 64th of a sub-ring, but no fewer than 1,024 and no more than 16 MiB.

    One range at a time is on the host while a pool is saved, in up to three copies.
    """
    most = max(1, _MOST_BYTES // row_bytes)
    return min(max(-(-capacity // _PARTS), _LEAST_ROWS), most)


def written(capacity: int, row_bytes: int, heads) -> list[Rows]:
    """The ranges that hold rows, given how many rows each sub-ring was ever given."""
    step = length(capacity, row_bytes)
    return [
        Rows(f"{environment:03d}-{start // step:05d}", environment, start, min(start + step, end))
        for environment, head in enumerate(heads)
        for end in [min(head, capacity)]
        for start in range(0, end, step)
    ]


def changed(rows: Rows, capacity: int, head: int, since: int) -> bool:
    """Whether any of these rows was written after the head of their sub-ring stood at `since`.

    The newest row of then counts: closing an episode writes it again.
    """
    first = max(0, since - 1)
    ahead = (rows.start - first) % capacity  # rows from there to the first of these
    inside = rows.start <= first % capacity < rows.stop
    return inside or ahead < head - first


def runs(slots: np.ndarray) -> list[tuple[int, int]]:
    """(start, stop) into `slots`, i[N], of the longest pieces in which slots count up by one."""
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    edges = [0, *breaks.tolist(), len(slots)]
    return [(start, stop) for start, stop in pairwise(edges) if stop > start]

"""Where rows lie: what a column holds, which row is next, which rows are live.

A pool is one flat ring a column. E environments own E equal, contiguous sub-rings of it. A row is
one step of one environment; an episode ends with one more row, its final observation, so that a
transition's next observation always stands in the row after it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from keras import ops

from kerasrl_gpu.errors import ArgumentError, PoolTooLarge

# One byte of flags a row. How an episode ended stands on its final row.
TERMINATED, TRUNCATED, FINAL, FIRST, NOT_A_START = 1, 2, 4, 8, 16

RECORD = "record"  # the column of action bytes, reward f32 and flags u8
_REWARD_BYTES, _FLAG_BYTES = 4, 1
_GIB = 2**30

# TensorFlow has no GPU kernel for int32 variables; the same bits as uint32 have one.
_STORED = {"int32": "uint32"}
_NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
_STORABLE = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)


@dataclass(frozen=True)
class Column:
    """One array a row: `dtype`[*shape]."""

    dtype: str
    shape: tuple

    @property
    def stored(self) -> str:
        """The dtype that the device holds the same bits in."""
        return _STORED.get(self.dtype, self.dtype)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @classmethod
    def of(cls, array: np.ndarray, keep_dtype: bool = False) -> Column:
        """The column that holds arrays like this one.

        Raises:
            ArgumentError: a dtype that no device stores (objects, text, complex numbers).
        """
        dtype = str(array.dtype)
        if dtype not in _STORABLE:
            raise ArgumentError(
                f"an observation of dtype {dtype} cannot be stored; a pool holds "
                f"{', '.join(_STORABLE)}. Convert it in Processor.process_observation, for "
                "instance with np.asarray(observation, dtype='float32')."
            )
        return cls(dtype if keep_dtype else _NARROWED.get(dtype, dtype), tuple(array.shape))


@dataclass(frozen=True)
class Layout:
    """The shape of a pool.

    Attributes:
        leaves: name -> Column of every observation leaf.
        action: Column of an action.
        limit: rows in all; rounded down to a multiple of `environments`.
        window: observations that a network sees at once, k.
        environments: E sub-rings.
        cross_episodes: stacks run on across episode boundaries instead of being zero-filled.
    """

    leaves: dict
    action: Column
    limit: int
    window: int = 1
    environments: int = 1
    cross_episodes: bool = False
    capacity: int = field(init=False)  # rows of one sub-ring

    def __post_init__(self):
        object.__setattr__(self, "capacity", self.limit // self.environments)
        if self.capacity < self.window + 2:
            raise ArgumentError(
                f"limit={self.limit} leaves {self.capacity} rows for each of {self.environments} "
                f"environments; a window of {self.window} needs {self.window + 2}. "
                f"Pass limit={self.environments * (self.window + 2)} or more."
            )

    @property
    def record_bytes(self) -> int:
        return self.action.row_bytes + _REWARD_BYTES + _FLAG_BYTES

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns."""
        return sum(leaf.row_bytes for leaf in self.leaves.values()) + self.record_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return self.capacity * self.environments * self.row_bytes

    def columns(self) -> dict:
        """name -> (stored dtype, shape of a row)."""
        leaves = {name: (leaf.stored, leaf.shape) for name, leaf in self.leaves.items()}
        return {**leaves, RECORD: ("uint8", (self.record_bytes,))}


def check_fits(limit: int, row_bytes: int, budget_bytes: int) -> None:
    """Raise PoolTooLarge unless `limit` rows of `row_bytes` fit into `budget_bytes`."""
    need_bytes = limit * row_bytes
    if need_bytes > budget_bytes:
        raise PoolTooLarge(
            f"limit={limit:_} rows of {row_bytes:_} B need {need_bytes / _GIB:.2f} GiB; "
            f"{budget_bytes / _GIB:.2f} GiB are free for the pool. "
            f"Pass limit={budget_bytes // row_bytes:_} or less, or store frames as uint8."
        )


class Live(NamedTuple):
    """Which rows of each sub-ring are live, as arrays for the device.

    Attributes:
        tail: i32[E], the slot of the oldest row within its sub-ring.
        size: i32[E], how many rows follow from there.
    """

    tail: object
    size: object


def slots(layout: Layout, live: Live, environment, offset):
    """i32[...] slots in a column of the rows `offset` after the tail; any offset wraps.

    Args:
        environment: i32, broadcast against `offset`.
        offset: i32[...], 0 for the oldest row.
    """
    tail = ops.take(live.tail, environment)
    return environment * layout.capacity + ops.mod(tail + offset, layout.capacity)


class Ring:
    """The host's side of a pool: counters that say where the next row goes and what it is.

    Args:
        layout: the pool's shape.
        span: n of n-step returns; a transition can be drawn once its span is stored.
    """

    def __init__(self, layout: Layout, span: int = 1):
        if layout.capacity < layout.window + span + 1:
            raise ArgumentError(
                f"{layout.capacity} rows an environment are too few for a window of "
                f"{layout.window} and {span}-step returns; pass limit="
                f"{layout.environments * (layout.window + span + 1)} or more."
            )
        self.layout, self.span = layout, span
        self.heads = [0] * layout.environments  # rows ever written
        self.endings = [0] * layout.environments  # flags that the final row still has to carry
        self._first = [True] * layout.environments
        self._began = [0] * layout.environments  # position of the episode's first row
        self._starts = [deque(maxlen=span) for _ in range(layout.environments)]
        self._newest = [None] * layout.environments  # (oldest row needed) of the newest start

    def tail(self, environment: int = 0) -> int:
        """Position of the oldest live row."""
        return max(0, self.heads[environment] - self.layout.capacity)

    def __len__(self) -> int:
        return sum(min(head, self.layout.capacity) for head in self.heads)

    def live(self) -> Live:
        """Tails and sizes as i32[E] host arrays."""
        tails = [self.tail(e) for e in range(self.layout.environments)]
        sizes = np.subtract(self.heads, tails).astype(np.int32)
        return Live(np.mod(tails, self.layout.capacity).astype(np.int32), sizes)

    def claim(self, environment: int = 0, *, start: bool = True, ending: int = 0):
        """Take the next row.

        After a row with an ending the next row is the episode's final observation, whatever it
        is claimed as: keras-rl's contract.

        Args:
            environment: which sub-ring.
            start: whether a transition may start here (`memory_interval`).
            ending: TERMINATED, TRUNCATED or both if this step ended the episode.

        Returns:
            (slot in the column, flags u8).
        """
        position, final = self.heads[environment], self.endings[environment]
        slot = environment * self.layout.capacity + position % self.layout.capacity
        self.heads[environment] = position + 1
        starts = self._starts[environment]
        if final:
            self._note_newest(environment, position, starts)
            starts.clear()
            self.endings[environment], self._first[environment] = 0, True
            return slot, final | FINAL
        flags = 0 if start else NOT_A_START
        if self._first[environment]:
            flags |= FIRST
            self._first[environment], self._began[environment] = False, position
        if len(starts) == self.span and starts[0]:
            self._remember(environment, position - self.span)
        starts.append(not flags & NOT_A_START)
        self.endings[environment] = ending
        return slot, flags

    def close(self, environment: int = 0, ending: int = TRUNCATED) -> None:
        """Make the next row the final one of an episode that was left open."""
        if not self._first[environment]:
            self.endings[environment] = self.endings[environment] or ending

    def continue_episode(self, environment: int = 0) -> None:
        """Take the next row for one in the middle of an episode whose start is not stored."""
        self._first[environment], self._began[environment] = False, -self.layout.window

    def is_open(self, environment: int = 0) -> bool:
        """Whether the episode of the last row still waits for its next step."""
        return not self._first[environment]

    def _note_newest(self, environment, position, starts):
        for age, start in enumerate(reversed(starts), start=1):
            if start:
                return self._remember(environment, position - age)

    def _remember(self, environment, position):
        oldest = position - (self.layout.window - 1)
        if not self.layout.cross_episodes:
            oldest = max(oldest, self._began[environment])
        if oldest >= 0:
            self._newest[environment] = oldest

    def has_start(self) -> bool:
        """Whether any live row can start a transition.

        The newest start is the last one that the tail reaches, so it alone decides.
        """
        return any(
            newest is not None and newest >= self.tail(environment)
            for environment, newest in enumerate(self._newest)
        )

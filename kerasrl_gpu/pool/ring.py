"""Where rows lie: which row is next, which rows are live.

A pool is one flat ring. E environments own E equal, contiguous sub-rings of it. A row is one step
of one environment; an episode ends with one more row, its final observation, so that a
transition's next observation always stands in the row after it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from keras import ops

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.pool.layout import Layout

# One byte of flags a row. How an episode ended stands on its final row.
TERMINATED, TRUNCATED, FINAL, FIRST, NOT_A_START = 1, 2, 4, 8, 16


class Live(NamedTuple):
    """Which rows of each sub-ring are live, as arrays for the device.

    Attributes:
        tail: i32[E], the slot of the oldest row within its sub-ring.
        size: i32[E], how many rows follow from there.
    """

    tail: object
    size: object


def slots(layout: Layout, live: Live, environment, offset):
    """i32[...] slots of the rows `offset` after the tail; any offset wraps.

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
        beyond = self.heads[environment] - self.layout.capacity
        return beyond if beyond > 0 else 0

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
            (slot in the pool, flags u8).
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

    def end_at_newest(self, environment: int = 0) -> int:
        """Make the newest row the final one of its episode, where nobody knows what came after.

        Returns:
            its slot; the caller writes FINAL into its flags.
        """
        position, starts = self.heads[environment] - 1, self._starts[environment]
        starts.pop()  # the row's own transition is lost
        self._note_newest(environment, position, starts)
        starts.clear()
        self.endings[environment], self._first[environment] = 0, True
        return environment * self.layout.capacity + position % self.layout.capacity

    def continue_episode(self, environment: int = 0) -> None:
        """Take the next row for one in the middle of an episode whose start is not stored."""
        self._first[environment], self._began[environment] = False, -self.layout.window

    def is_open(self, environment: int = 0) -> bool:
        """Whether the episode of the last row still waits for its next step."""
        return not self._first[environment]

    def get_state(self) -> dict:
        """Plain values (JSON) from which `set_state` goes on."""
        return {
            "capacity": self.layout.capacity,
            "heads": list(self.heads),
            "endings": list(self.endings),
            "first": list(self._first),
            "began": list(self._began),
            "starts": [list(starts) for starts in self._starts],
            "newest": list(self._newest),
        }

    def set_state(self, state: dict) -> list[int]:
        """Go on where `get_state` was called, with the newest rows where not all of them fit.

        Positions count from the rows that are kept where the capacity is another one: more rows
        may be free now than were ever written.

        Returns:
            by how much positions moved down, one number an environment: what had position p has
            p - shift now.
        """
        kept = [min(head, state["capacity"], self.layout.capacity) for head in state["heads"]]
        same = state["capacity"] == self.layout.capacity
        shifts = [
            0 if same else head - rows for head, rows in zip(state["heads"], kept, strict=True)
        ]
        self.heads = [head - shift for head, shift in zip(state["heads"], shifts, strict=True)]
        self._began = [at - shift for at, shift in zip(state["began"], shifts, strict=True)]
        self._newest = [
            None if position is None or position < shift else position - shift
            for position, shift in zip(state["newest"], shifts, strict=True)
        ]
        self.endings, self._first = list(state["endings"]), list(state["first"])
        self._starts = [deque(starts, maxlen=self.span) for starts in state["starts"]]
        return shifts

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
        for environment, newest in enumerate(self._newest):
            if newest is not None and newest >= self.tail(environment):
                return True
        return False

"""A slow, obvious replay memory in NumPy, for the pool to be compared with.

It keeps every row of every environment in a Python list and answers by walking episodes.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Row:
    """One step, or an episode's last observation (`final`)."""

    observation: np.ndarray
    action: object
    reward: float
    first: bool
    final: bool = False
    start: bool = True  # memory_interval lets a transition start here
    terminated: bool = False  # on a final row: how the episode ended


@dataclass
class Oracle:
    """`capacity` rows of one environment; the newest stay."""

    capacity: int
    window: int
    cross: bool = False
    rows: list = field(default_factory=list)
    dropped: int = 0

    def add(self, row):
        self.rows.append(row)
        if len(self.rows) > self.capacity:
            self.rows.pop(0)
            self.dropped += 1

    def span(self, start, n):
        """Index of the row after the span, or None where it is not stored."""
        for end in range(start + 1, start + n + 1):
            if end >= len(self.rows):
                return None
            if self.rows[end].final:
                return end
        return start + n

    def stack(self, newest):
        """The k observations up to `newest`, or None where one of them is no longer stored."""
        frames, at = [self.rows[newest].observation], newest
        while len(frames) < self.window:
            if self.rows[at].first and not self.cross:
                zero = np.zeros_like(frames[0])
                return np.stack([zero] * (self.window - len(frames)) + frames[::-1])
            at -= 1
            if at < 0:
                return None
            frames.append(self.rows[at].observation)
        return np.stack(frames[::-1])

    def is_valid(self, start, n):
        row = self.rows[start]
        if row.final or not row.start or self.span(start, n) is None:
            return False
        return self.stack(start) is not None

    def transition(self, start, n, gamma, bootstrap_truncated=True):
        end = self.span(start, n)
        rewards = [row.reward for row in self.rows[start:end]]
        final = self.rows[end]
        ended = final.final and (final.terminated or not bootstrap_truncated)
        return {
            "observation": self.stack(start),
            "next_observation": self.stack(end),
            "action": self.rows[start].action,
            "reward": sum(gamma**j * r for j, r in enumerate(rewards)),
            "discount": 0.0 if ended else gamma ** (end - start),
            "terminated": final.final and final.terminated,
        }

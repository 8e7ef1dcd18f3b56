"""Reading a pool from outside the update: batches in one compiled call, and everything it holds."""

from __future__ import annotations

import numpy as np

from kerasrl_gpu import engine
from kerasrl_gpu.pool import transitions, uniform
from kerasrl_gpu.pool.layout import Layout
from kerasrl_gpu.pool.ring import Live

_ROWS_AT_ONCE = 4_096  # copied to the host, of which only the fields asked for are kept


class Reader:
    """Draws starts, or takes given ones, and reads their transitions.

    Args:
        layout: the pool's shape. Each rule and batch size compiles once.
    """

    def __init__(self, layout: Layout):
        self._layout, self._programs = layout, {}

    def __call__(self, pool, live: Live, counters, offsets, rule: transitions.Rule) -> dict:
        """A batch on the device; see `transitions.read`.

        Args:
            pool, live: u8[N, row bytes] and its live rows.
            counters: (seed, draw), which the draw is a pure function of.
            offsets: i[B], rows after the oldest one of environment 0 to start from; those that
                cannot start a transition, -1 for instance, are drawn.
            rule: how transitions are read.
        """
        if rule not in self._programs:
            self._programs[rule] = engine.compile_read(self._read(rule))
        seed, draw = (np.uint32(counter % 2**32) for counter in counters)
        offsets = np.asarray(offsets).astype(np.int32)
        return self._programs[rule](pool, live.tail, live.size, seed, draw, offsets)

    def _read(self, rule):
        layout = self._layout

        def read(pool, tail, size, seed, draw, offsets):
            live = Live(tail, size)
            starts = uniform.starts(pool, layout, live, (seed, draw), offsets, rule.span)
            return transitions.read(pool, layout, live, *starts, rule)

        return read

    def from_tiers(self, tiers, live: Live, counters, offsets, rule: transitions.Rule) -> dict:
        """The same of a pool that lies on several tiers."""
        slots = tiers.draw(live, counters, len(offsets), rule.span, offsets)
        rows = tiers.read(slots.reshape(-1)).reshape(*slots.shape, -1)
        key = "rows", rule
        if key not in self._programs:
            self._programs[key] = engine.compile_read(
                lambda _, rows: transitions.of_rows(rows, self._layout, rule)
            )
        return self._programs[key](None, rows)


def stored(read_rows, layout: Layout, live: Live, fields) -> dict:
    """Fields of every live row of environment 0 on the host, oldest first.

    Args:
        read_rows: slots i32[n] -> u8[n, row bytes] on the host.

    Returns:
        {field: dtype[N, ...]}; see `Layout.fields`.
    """
    at = ((live.tail[0] + np.arange(live.size[0])) % layout.capacity).astype(np.int32)
    parts = [
        layout.unpack(read_rows(some), fields)
        for some in np.array_split(at, max(1, -(-len(at) // _ROWS_AT_ONCE)))
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in fields}

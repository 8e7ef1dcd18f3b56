"""Reading a pool from outside the update: batches in one compiled call, and everything it holds."""

from __future__ import annotations

import numpy as np
from keras import ops

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
            environment, drawn = uniform.sample(
                pool, layout, live, seed, draw, offsets.shape[0], rule.span
            )
            asked = ops.clip(offsets, 0, size[0] - 1)
            first = ops.zeros_like(environment)
            fits = ops.logical_and(
                uniform.valid(pool, layout, live, first, asked, rule.span),
                ops.equal(offsets, asked),
            )
            environment = ops.where(fits, first, environment)
            offset = ops.where(fits, asked, drawn)
            return transitions.read(pool, layout, live, environment, offset, rule)

        return read


def stored(pool, layout: Layout, live: Live, fields) -> dict:
    """Fields of every live row of environment 0 on the host, oldest first.

    Returns:
        {field: dtype[N, ...]}; see `Layout.fields`.
    """
    at = ((live.tail[0] + np.arange(live.size[0])) % layout.capacity).astype(np.int32)
    parts = [
        layout.unpack(engine.to_host(engine.take_rows(pool, some)), fields)
        for some in np.array_split(at, max(1, -(-len(at) // _ROWS_AT_ONCE)))
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in fields}

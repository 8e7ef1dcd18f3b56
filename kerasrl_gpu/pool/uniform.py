"""Uniform sampling over the rows that can start a transition."""

from __future__ import annotations

from keras import ops

from kerasrl_gpu import engine
from kerasrl_gpu.pool import frames, nstep
from kerasrl_gpu.pool.layout import Layout
from kerasrl_gpu.pool.ring import FINAL, NOT_A_START, Live, slots

# Draws before the next valid row is taken instead. Where half the rows are valid, one start in
# 65,536 is chosen that way.
ROUNDS = 16


def valid(pool, layout: Layout, live: Live, environment, offset, span: int):
    """Whether a transition can start in a row.

    It is no final observation and no row that `memory_interval` skips, its span is stored, and
    its window is not cut by the tail.

    Args:
        environment: i32[B].
        offset: i32[B], 0 .. size-1.
        span: n of n-step returns.

    Returns:
        bool[B].
    """
    k = layout.window
    steps = ops.arange(1 - k, span + 1, dtype="int32")[None, :] + offset[:, None]
    at = slots(layout, live, environment[:, None], steps)
    flags = engine.take_byte(pool, at, layout.flags_place)
    size = ops.take(live.size, environment)
    final = ops.not_equal(ops.bitwise_and(flags[:, k:], FINAL), 0)
    length = nstep.length(ops.logical_and(final, steps[:, k:] < size[:, None]), span)
    may_start = ops.equal(ops.bitwise_and(flags[:, k - 1], FINAL | NOT_A_START), 0)
    stored = offset + length < size
    return ops.logical_and(ops.logical_and(may_start, stored), _window_stored(layout, flags, steps))


def _window_stored(layout, flags, steps):
    """bool[B]: every observation that the stack shows lies at or after the tail."""
    k = layout.window
    before_tail = steps[:, :k] < 0
    if not layout.cross_episodes:
        inside = frames.within_episode(flags[:, :k], k)
        before_tail = ops.logical_and(before_tail, inside)
    return ops.logical_not(ops.any(before_tail, axis=1))


def sample(pool, layout: Layout, live: Live, seed, draw, batch_size: int, span: int = 1):
    """Draw start rows, each valid row equally likely, with replacement.

    A draw that is not valid is drawn anew, ROUNDS draws in all; then the next valid row is taken.
    The caller sees to it that there is one (`Ring.has_start`).

    Args:
        seed, draw: u32[], the counters that the draw is a pure function of.
        batch_size: B.
        span: n of n-step returns.

    Returns:
        (environment i32[B], offset i32[B]).
    """
    ends = ops.cumsum(live.size)
    total = ends[-1]

    def place(rank):
        environment = ops.sum(ops.cast(rank[:, None] >= ends[None, :], "int32"), axis=1)
        return environment, rank - (ops.take(ends, environment) - ops.take(live.size, environment))

    def is_valid(rank):
        return valid(pool, layout, live, *place(rank), span)

    def again(round_, rank, ok):
        fresh = engine.random_int(seed, draw, round_, (batch_size,), total)
        fresh = ops.where(round_ < ROUNDS, fresh, ops.mod(rank + 1, total))
        rank = ops.where(ok, rank, fresh)
        return round_ + 1, rank, is_valid(rank)

    rank = engine.random_int(seed, draw, 0, (batch_size,), total)
    _, rank, _ = ops.while_loop(
        lambda round_, rank, ok: ops.logical_not(ops.all(ok)),
        again,
        (ops.ones((), "int32"), rank, is_valid(rank)),
        maximum_iterations=ROUNDS + layout.limit,
    )
    return place(rank)


def starts(pool, layout: Layout, live: Live, counters, offsets, span: int = 1):
    """Given rows of environment 0 where a transition can start in them, drawn ones elsewhere.

    Args:
        counters: (seed, draw) u32[], see `sample`.
        offsets: i32[B], rows after the tail; -1, for instance, is no row.

    Returns:
        (environment i32[B], offset i32[B]).
    """
    environment, drawn = sample(pool, layout, live, *counters, offsets.shape[0], span)
    asked = ops.clip(offsets, 0, live.size[0] - 1)
    first = ops.zeros_like(environment)
    fits = ops.logical_and(valid(pool, layout, live, first, asked, span), ops.equal(offsets, asked))
    return ops.where(fits, first, environment), ops.where(fits, asked, drawn)

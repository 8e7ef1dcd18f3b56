"""Reading transitions: from start rows to a batch that an update learns from."""

from __future__ import annotations

from typing import NamedTuple

from keras import ops

from kerasrl_gpu import engine
from kerasrl_gpu.pool import frames, nstep
from kerasrl_gpu.pool.layout import ACTION, FLAGS, REWARD, Layout
from kerasrl_gpu.pool.ring import FINAL, TERMINATED, Live, slots


class Rule(NamedTuple):
    """How transitions are read.

    Attributes:
        span: n of n-step returns.
        gamma: discount a step.
        bootstrap_truncated: a truncated episode's last value counts (False: keras-rl's old way).
    """

    span: int = 1
    gamma: float = 0.99
    bootstrap_truncated: bool = True


def read(pool, layout: Layout, live: Live, environment, offset, rule: Rule) -> dict:
    """The transitions that start in these rows.

    Args:
        pool: u8[N, row bytes].
        layout: its shape.
        live: its live rows.
        environment: i32[B], the sub-ring of each start.
        offset: i32[B], rows after that sub-ring's tail; every one a valid start (see `uniform`).
        rule: span, discount and what truncation means.

    Returns:
        see `of_rows`.
    """
    at = places(layout, live, environment, offset, rule.span)
    return of_rows(engine.take_rows(pool, at), layout, rule)


def places(layout: Layout, live: Live, environment, offset, span: int):
    """i32[B, k + n] slots of the rows that each transition is made of, oldest first."""
    steps = ops.arange(1 - layout.window, span + 1, dtype="int32")
    return slots(layout, live, environment[:, None], offset[:, None] + steps)


def of_rows(rows, layout: Layout, rule: Rule) -> dict:
    """Transitions from their rows u8[B, k + n, row bytes], wherever these were stored.

    Returns:
        A batch: "observation" and "next_observation", each {leaf: dtype[B, k, ...]}; "action"
        [B, ...]; "reward" f32[B], summed over the span; "discount" f32[B]; "terminated" bool[B].
    """
    rows = engine.fence(rows)  # what follows is compiled the same, whatever came before
    k, n = layout.window, rule.span
    flags = layout.read(rows, FLAGS)
    final = ops.not_equal(ops.bitwise_and(flags[:, k:], FINAL), 0)
    length = nstep.length(final, n)
    ending = ops.take_along_axis(flags[:, k:], (length - 1)[:, None], axis=1)[:, 0]
    terminated = ops.equal(ops.bitwise_and(ending, FINAL | TERMINATED), FINAL | TERMINATED)
    ended = terminated
    if not rule.bootstrap_truncated:
        ended = ops.not_equal(ops.bitwise_and(ending, FINAL), 0)
    rewards = layout.read(rows[:, k - 1 : k - 1 + n], REWARD)
    inside = later_inside = None
    if k > 1 and not layout.cross_episodes:
        inside = frames.within_episode(flags[:, :k], k)
        later_inside = frames.advanced(inside, length)
    return {
        "observation": frames.stacks(layout, rows[:, :k], inside),
        "next_observation": frames.stacks(layout, _later(rows, length, k), later_inside),
        "action": layout.read(rows[:, k - 1], ACTION),
        "reward": nstep.returns(rewards, length, rule.gamma),
        "discount": nstep.discounts(length, ended, rule.gamma),
        "terminated": terminated,
    }


def _later(rows, length, k):
    """u8[B, k, row bytes], the rows of each stack `length` i32[B] steps later."""
    later = rows[:, 1 : 1 + k]
    for steps in range(2, rows.shape[1] - k + 1):
        taken = ops.equal(length, steps)[:, None, None]
        later = ops.where(taken, rows[:, steps : steps + k], later)
    return later

"""Reading transitions: from start rows to a batch that an update learns from."""

from __future__ import annotations

from typing import NamedTuple

from keras import ops

from kerasrl_gpu import engine
from kerasrl_gpu.pool import frames, nstep
from kerasrl_gpu.pool.ring import FINAL, RECORD, TERMINATED, Layout, Live, slots


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


class Records(NamedTuple):
    """The small columns of rows, decoded."""

    action: object
    reward: object
    flags: object


def records(columns, layout: Layout, at) -> Records:
    """Action, reward f32 and flags u8 of the rows in slots `at` i32[...]."""
    rows = engine.take_rows(columns[RECORD], at)
    end = layout.action.row_bytes
    return Records(
        engine.from_bytes(rows[..., :end], layout.action.dtype, layout.action.shape),
        engine.from_bytes(rows[..., end : end + 4], "float32", ()),
        rows[..., -1],
    )


def read(columns, layout: Layout, live: Live, environment, offset, rule: Rule) -> dict:
    """The transitions that start in these rows.

    Args:
        columns: the pool.
        layout: its shape.
        live: its live rows.
        environment: i32[B], the sub-ring of each start.
        offset: i32[B], rows after that sub-ring's tail; every one a valid start (see `uniform`).
        rule: span, discount and what truncation means.

    Returns:
        A batch: "observation" and "next_observation", each {leaf: dtype[B, k, ...]}; "action"
        [B, ...]; "reward" f32[B], summed over the span; "discount" f32[B]; "terminated" bool[B].
    """
    k, n = layout.window, rule.span
    at = lambda steps: slots(layout, live, environment[:, None], offset[:, None] + steps)  # noqa: E731
    rows = records(columns, layout, at(ops.arange(1 - k, n + 1, dtype="int32")))
    final = ops.not_equal(ops.bitwise_and(rows.flags[:, k:], FINAL), 0)
    length = nstep.length(final, n)
    ending = ops.take_along_axis(rows.flags[:, k:], (length - 1)[:, None], axis=1)[:, 0]
    terminated = ops.equal(ops.bitwise_and(ending, FINAL | TERMINATED), FINAL | TERMINATED)
    ended = terminated
    if not rule.bootstrap_truncated:
        ended = ops.not_equal(ops.bitwise_and(ending, FINAL), 0)
    now, later = _stacks(columns, layout, at, rows.flags[:, :k], length, n)
    return {
        "observation": now,
        "next_observation": later,
        "action": rows.action[:, k - 1],
        "reward": nstep.returns(rows.reward[:, k - 1 : k - 1 + n], length, rule.gamma),
        "discount": nstep.discounts(length, ended, rule.gamma),
        "terminated": terminated,
    }


def _stacks(columns, layout, at, flags, length, n):
    """The stacks at the start and at the end of each span, {leaf: [B, k, ...]} twice."""
    k = layout.window
    inside = later_inside = None
    if k > 1 and not layout.cross_episodes:
        inside = frames.within_episode(flags, k)
        later_inside = frames.advanced(inside, length)
    now, later = {}, {}
    for name, leaf in layout.leaves.items():
        if n == 1:  # the two stacks overlap in all but one frame: gather k + 1, not 2k
            steps = ops.arange(1 - k, 2, dtype="int32")
            rows = frames.take(columns[name], at(steps), None, leaf.dtype)
            now[name] = rows[:, :k] if inside is None else frames.mask(rows[:, :k], inside)
            later[name] = rows[:, 1:] if inside is None else frames.mask(rows[:, 1:], later_inside)
            continue
        steps = ops.arange(1 - k, 1, dtype="int32")
        now[name] = frames.take(columns[name], at(steps), inside, leaf.dtype)
        steps = steps[None, :] + length[:, None]
        later[name] = frames.take(columns[name], at(steps), later_inside, leaf.dtype)
    return now, later

"""Errors, their losses, and the blending of targets."""

from __future__ import annotations

import math

from keras import ops

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError, check_shapes
from kerasrl_gpu.state import Weights


def chosen(q, action):
    """The value of the action taken: f32[B, A], i[B] -> f32[B]."""
    check_shapes("BA B", q, action)
    # a sum over one, not a gather: its gradient is no scatter
    actions = ops.arange(q.shape[-1], dtype="int32")
    taken = ops.equal(actions, ops.cast(action, "int32")[:, None])
    return ops.sum(ops.where(taken, q, 0), axis=-1)


def huber(error, delta: float):
    """Quadratic within `delta`, linear outside; half the square where delta is infinite.

        0.5 * e**2                    where |e| < delta
        delta * (|e| - 0.5 * delta)   elsewhere

    Args:
        error: f32[...], reward units.
        delta: positive, reward units; `delta_clip` in keras-rl.

    Returns:
        f32[...], one loss per error.

    Raises:
        ArgumentError: delta is not positive.
    """
    if not delta > 0:
        raise ArgumentError(f"delta_clip={delta!r} clips every error away; pass a number above 0.")
    half_square = 0.5 * ops.square(error)
    if math.isinf(delta):
        return half_square
    size = ops.abs(error)
    return ops.where(size < delta, half_square, delta * (size - 0.5 * delta))


def blend(target: Weights, online: Weights, tau: float) -> Weights:
    """`target` moved towards `online` by the fraction tau, statistics and seeds included.

    Integer variables (seeds, counters) have no halfway: they are taken from `online`.
    """

    @engine.cluster
    def move(slow, fast):
        if "float" not in str(slow.dtype):
            return fast
        rate = ops.cast(tau, slow.dtype)
        return (1 - rate) * slow + rate * fast

    pairs = (zip(*lists, strict=True) for lists in zip(target, online, strict=True))
    return Weights(*([move(slow, fast) for slow, fast in pair] for pair in pairs))


def mean_q(y_true, y_pred):
    """The mean over the batch of the largest Q-value; keras-rl's default metric.

    Args:
        y_true: not read.
        y_pred: f32[B, A].
    """
    return ops.mean(ops.max(y_pred, axis=-1))

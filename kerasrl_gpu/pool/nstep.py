"""Returns over n steps that end where the episode ends."""

from __future__ import annotations

from keras import ops


def length(final, n: int):
    """How many steps a transition spans: to the end of its episode, at most n.

    Args:
        final: bool[B, n], whether row i+1 .. i+n is an episode's final observation.
        n: the steps wanted.

    Returns:
        i32[B], 1 .. n.
    """
    steps = ops.arange(1, n + 1, dtype="int32")[None, :]
    return ops.min(ops.where(final, steps, n), axis=-1)


def returns(reward, length, gamma: float):
    """The discounted sum of the rewards of a span.

        G[b] = sum over j < length[b] of gamma**j * reward[b, j]

    Args:
        reward: f32[B, n], reward units.
        length: i32[B].
        gamma: discount a step.

    Returns:
        f32[B], reward units.
    """
    n = reward.shape[-1]
    if n == 1:
        return reward[:, 0]
    steps = ops.arange(n, dtype="int32")
    weight = ops.power(ops.cast(gamma, "float32"), ops.cast(steps, "float32"))
    inside = steps[None, :] < length[:, None]
    return ops.sum(ops.where(inside, reward, 0.0) * weight[None, :], axis=-1)


def discounts(length, ended, gamma: float):
    """What the value of the next state counts: gamma**length, or 0 where nothing follows.

    Args:
        length: i32[B].
        ended: bool[B], the span ended in a state without a future.
        gamma: discount a step.

    Returns:
        f32[B].
    """
    power = ops.power(ops.cast(gamma, "float32"), ops.cast(length, "float32"))
    return ops.where(ended, 0.0, power)

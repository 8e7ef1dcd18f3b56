"""What a value should have been: the right-hand sides of the Bellman equation."""

from __future__ import annotations

from keras import ops

from kerasrl_gpu.errors import check_shapes


def max_q(reward, discount, q_next_target):
    """One target per row: the target net picks the next action and prices it.

        y[b] = reward[b] + discount[b] * max_a q_next_target[b, a]

    Args:
        reward: f32[B], reward units; already summed when rows span n steps.
        discount: f32[B], gamma**n, or 0 where the episode terminated. A truncated row keeps
            gamma**n: the clock ran out, the future did not.
        q_next_target: f32[B, A], reward units.

    Returns:
        f32[B], reward units. No gradient flows through it.

    Raises:
        ShapeError: B differs between the arrays.

    Source: doi:10.1038/nature14236, algorithm 1.
    """
    check_shapes("B B BA", reward, discount, q_next_target)
    return ops.stop_gradient(reward + discount * ops.max(q_next_target, axis=-1))


def double_q(reward, discount, q_next_online, q_next_target):
    """One target per row: the online net picks the action, the target net prices it.

        y[b] = reward[b] + discount[b] * q_next_target[b, argmax_a q_next_online[b, a]]

    Args:
        reward: f32[B], reward units; already summed when rows span n steps.
        discount: f32[B], gamma**n, or 0 where the episode terminated. A truncated row
            keeps gamma**n: the clock ran out, the future did not.
        q_next_online: f32[B, A], reward units. Ties go to the lowest action.
        q_next_target: f32[B, A], reward units.

    Returns:
        f32[B], reward units. No gradient flows through it.

    Raises:
        ShapeError: B or A differ between the arrays.

    Source: arXiv:1509.06461, the Double DQN target; the n-step discount is our addition.
    """
    check_shapes("B B BA BA", reward, discount, q_next_online, q_next_target)
    best = ops.argmax(q_next_online, axis=-1)
    value = ops.take_along_axis(q_next_target, best[:, None], axis=-1)[:, 0]
    return ops.stop_gradient(reward + discount * value)


def policy_value(reward, discount, q_next):
    """One target per row: what the target critic says of the target actor's next action.

        y[b] = reward[b] + discount[b] * q_next[b]

    Args:
        reward: f32[B], reward units.
        discount: f32[B], gamma**n, or 0 where the episode terminated.
        q_next: f32[B], reward units.

    Returns:
        f32[B], reward units. No gradient flows through it.

    Raises:
        ShapeError: B differs between the arrays.

    Source: arXiv:1509.02971, algorithm 1.
    """
    check_shapes("B B B", reward, discount, q_next)
    return ops.stop_gradient(reward + discount * q_next)

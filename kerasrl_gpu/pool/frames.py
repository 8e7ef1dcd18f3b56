"""Window stacks: every observation is stored once and stacked when it is read."""

from __future__ import annotations

from keras import ops

from kerasrl_gpu.pool.layout import Layout
from kerasrl_gpu.pool.ring import FIRST


def within_episode(flags, window: int):
    """Which observations of a stack belong to the episode of its newest one.

    Args:
        flags: u8[B, >= k], the rows up to the newest one, oldest first.
        window: k.

    Returns:
        bool[B, k], oldest first; the newest is always True.
    """
    first = ops.not_equal(ops.bitwise_and(flags[:, -window:], FIRST), 0)
    inside = [ops.ones_like(first[:, 0])]
    for age in range(window - 1):
        inside.insert(0, ops.logical_and(inside[0], ops.logical_not(first[:, window - 1 - age])))
    return ops.stack(inside, axis=1)


def advanced(inside, length):
    """The same for the stack `length` rows later in the same episode.

    Args:
        inside: bool[B, k], oldest first.
        length: i32[B], at least 1.

    Returns:
        bool[B, k], oldest first.
    """
    window = inside.shape[1]
    # position p of the later stack is position p + length of this one; beyond it: same episode
    position = ops.arange(window, dtype="int32")[None, :] + length[:, None]
    taken = ops.take_along_axis(inside, ops.minimum(position, window - 1), axis=1)
    return ops.logical_or(taken, position >= window)


def stacks(layout: Layout, rows, inside) -> dict:
    """The observations of rows, with what lies outside the episode set to zero.

    Args:
        rows: u8[B, k, row bytes], oldest first.
        inside: bool[B, k], or None where nothing needs to be masked.

    Returns:
        {leaf: dtype[B, k, ...]}; the zeros have that dtype too.
    """
    if inside is not None:  # bytes of zero are a zero of every dtype
        rows = ops.where(inside[..., None], rows, ops.zeros_like(rows))
    return {name: layout.read(rows, f"leaf/{name}") for name in layout.leaves}

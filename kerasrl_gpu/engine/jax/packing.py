"""A state between two steps: its small arrays joined, because a call costs by the array."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

# Values; joining and splitting larger arrays takes longer than handing them over one by one.
_SMALL = 2**14


class Plan:
    """Which leaves of a state are joined: the small ones of one field and dtype, end to end.

    Joining was measured on CPUs, so elsewhere nothing is joined. Equal for states of one shape.

    Attributes:
        alone: places, among the leaves, of those that are not joined.
    """

    def __init__(self, state):
        paths, self._tree = jax.tree_util.tree_flatten_with_path(state)
        self._shapes = tuple(leaf.shape for _, leaf in paths)
        groups = {}
        for index, (path, leaf) in enumerate(paths):
            if leaf.ndim > 0 and leaf.size <= _SMALL and jax.default_backend() == "cpu":
                groups.setdefault((path[0], str(leaf.dtype)), []).append(index)
        self._groups = tuple(tuple(group) for group in groups.values() if len(group) > 1)
        joined = {index for group in self._groups for index in group}
        self.alone = [index for index in range(len(paths)) if index not in joined]
        self._key = self._tree, self._shapes, self._groups

    def __hash__(self):
        return hash(self._key)

    def __eq__(self, other):
        return self is other or (isinstance(other, Plan) and self._key == other._key)

    def join(self, state) -> list:
        """The arrays of a state: the joined ones, then those left alone."""
        leaves = jax.tree.leaves(state)
        return [*self.join_small(self.small(leaves)), *(leaves[index] for index in self.alone)]

    def split(self, arrays: list):
        """The state that `join` made these arrays of."""
        count = len(self._groups)
        return self.rebuilt(self.split_small(arrays[:count]), arrays[count:])

    def small(self, leaves: list) -> list:
        """Those of a state's leaves that are joined, group after group."""
        return [leaves[index] for group in self._groups for index in group]

    def join_small(self, small: list) -> list:
        """One array a group."""
        left = iter(small)
        return [jnp.concatenate([next(left).ravel() for _ in group]) for group in self._groups]

    def split_small(self, joined: list) -> list:
        """What `join_small` was given."""
        small = []
        for group, array in zip(self._groups, joined, strict=True):
            start = 0
            for index in group:
                stop = start + math.prod(self._shapes[index])
                small.append(array[start:stop].reshape(self._shapes[index]))
                start = stop
        return small

    def rebuilt(self, small: list, alone: list):
        """The state with these leaves."""
        leaves = [None] * len(self._shapes)
        places = [index for group in self._groups for index in group]
        for index, leaf in zip([*places, *self.alone], [*small, *alone], strict=True):
            leaves[index] = leaf
        return jax.tree.unflatten(self._tree, leaves)


class Packed(NamedTuple):
    """A state as the arrays that a step takes and returns."""

    arrays: list
    plan: Plan


# The small arrays only: what goes through a compiled call and is not consumed is copied.
_join = partial(jax.jit, static_argnums=0)(Plan.join_small)
_split = partial(jax.jit, static_argnums=0)(Plan.split_small)


def pack(state) -> Packed:
    """The state for a step; as it is where it comes from one."""
    if isinstance(state, Packed):
        return state
    plan, leaves = Plan(state), jax.tree.leaves(state)
    alone = [leaves[index] for index in plan.alone]
    return Packed([*_join(plan, plan.small(leaves)), *alone], plan)


def unpack(state):
    """The TrainState that `pack` was given."""
    if not isinstance(state, Packed):
        return state
    count = len(state.arrays) - len(state.plan.alone)
    return state.plan.rebuilt(_split(state.plan, state.arrays[:count]), state.arrays[count:])

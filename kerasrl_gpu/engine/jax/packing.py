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
        self._alone = [index for index in range(len(paths)) if index not in joined]
        self._key = self._tree, self._shapes, self._groups

    def __hash__(self):
        return hash(self._key)

    def __eq__(self, other):
        return self is other or (isinstance(other, Plan) and self._key == other._key)

    def join(self, state) -> list:
        """The arrays of a state: the joined ones, then those left alone."""
        leaves = jax.tree.leaves(state)
        joined = [jnp.concatenate([leaves[i].ravel() for i in group]) for group in self._groups]
        return [*joined, *(leaves[index] for index in self._alone)]

    def split(self, arrays: list):
        """The state that `join` made these arrays of."""
        leaves = [None] * len(self._shapes)
        for group, array in zip(self._groups, arrays, strict=False):
            start = 0
            for index in group:
                stop = start + math.prod(self._shapes[index])
                leaves[index] = array[start:stop].reshape(self._shapes[index])
                start = stop
        for index, array in zip(self._alone, arrays[len(self._groups) :], strict=True):
            leaves[index] = array
        return jax.tree.unflatten(self._tree, leaves)


class Packed(NamedTuple):
    """A state as the arrays that a step takes and returns."""

    arrays: list
    plan: Plan


_join = partial(jax.jit, static_argnums=0)(Plan.join)
_split = partial(jax.jit, static_argnums=0)(Plan.split)


def pack(state) -> Packed:
    """The state for a step; as it is where it comes from one."""
    if isinstance(state, Packed):
        return state
    plan = Plan(state)
    return Packed(_join(plan, state), plan)


def unpack(state):
    """The TrainState that `pack` was given."""
    return _split(state.plan, state.arrays) if isinstance(state, Packed) else state

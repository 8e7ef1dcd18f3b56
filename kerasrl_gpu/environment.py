"""One face for Gymnasium's environments and the old ones: 5 values a step, reset with info."""

from __future__ import annotations

import inspect
import warnings

import gymnasium
import numpy as np
from keras import tree

from kerasrl_gpu.errors import ArgumentError, ObservationError


def warn_of_stacked_frames(env, window_length: int) -> None:
    """Say where an environment stacks frames that a pool would store once."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.FrameStackObservation) and window_length == 1:
            frames = env.stack_size
            warnings.warn(
                f"the environment stacks {frames} frames, so each is stored {frames} times. Leave "
                f"its FrameStackObservation out and pass window_length={frames} to the memory: "
                "the networks see the same.",
                stacklevel=5,
            )
        env = env.env


class Environment:
    """An environment as the loop sees it.

    Gymnasium's API is told from the old one by the class, else by what comes back: a 5-tuple from
    `step`, a pair with a dict from `reset`.

    Args:
        env: gymnasium.Env, or any object with keras-rl's `reset`, `step`, `action_space`.
    """

    def __init__(self, env):
        if isinstance(env, type) or not callable(getattr(env, "step", None)):
            raise ArgumentError(
                f"env={env!r} is no environment; pass an object, gymnasium.make('CartPole-v1')."
            )
        self.env = env
        self._is_gymnasium = isinstance(env, gymnasium.Env)
        self._step = env.step

    def reset(self, seed: int | None = None):
        """The first observation of an episode, a copy.

        Args:
            seed: through `reset(seed=)` where it is taken, else through an old `env.seed(seed)`.
        """
        keywords = {}
        if seed is not None:
            if self._is_gymnasium or _takes(self.env.reset, "seed"):
                keywords["seed"] = seed
            elif hasattr(self.env, "seed"):
                self.env.seed(seed)
        result = self.env.reset(**keywords)
        if self._is_gymnasium or _is_reset_pair(result):
            result = result[0]
        return _copied(result)

    def step(self, action):
        """(observation, a copy; reward; terminated; truncated; info)."""
        result = self._step(action)
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
        elif len(result) == 4:
            observation, reward, done, info = result
            truncated = bool(done) and bool((info or {}).get("TimeLimit.truncated", False))
            terminated = bool(done) and not truncated
        else:
            raise ObservationError(
                f"env.step returned {len(result)} values; it has to return (observation, reward, "
                "terminated, truncated, info), or keras-rl's (observation, reward, done, info)."
            )
        return _copied(observation), reward, terminated, truncated, info


def _copied(observation):
    """A copy: environments may go on writing into the arrays that they hand out."""
    if isinstance(observation, np.ndarray):
        return observation.copy()
    if isinstance(observation, (dict, tuple, list)):
        return tree.map_structure(
            lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, observation
        )
    return observation


def _is_reset_pair(result) -> bool:
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)


def _takes(function, name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def add_numbers(total, info):
    """`total` plus the numbers of an info dict; arrays add elementwise, the rest is left out."""
    total = {} if total is None else total
    for key, value in info.items():
        if isinstance(value, (bool, int, float, np.number, np.bool_)) or (
            isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
        ):
            before = total.get(key, 0)
            if np.shape(before) in ((), np.shape(value)):
                total[key] = before + value
    return total

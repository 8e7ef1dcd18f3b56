"""The layers of an environment, from the outermost wrapper inwards, and how each is saved."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from gymnasium import wrappers

from kerasrl_gpu import attributes
from kerasrl_gpu.attributes import kinds
from kerasrl_gpu.errors import CheckpointError, SnapshotError

# How a layer was made, compared rather than set; and how it is looked at.
_SKIP = frozenset(
    {"_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs", "render_mode", "metadata", "_metadata"}
)
# These record what has been; of it only the counters go on.
_RECORDERS = {
    wrappers.RecordVideo: frozenset({"step_id", "episode_id"}),
    wrappers.RenderCollection: frozenset(),
    wrappers.HumanRendering: frozenset(),
}


class Adapter(NamedTuple):
    """How a layer is saved beside its attributes.

    Attributes:
        skip: layer -> names of attributes that are not to be taken.
        take: layer -> plain data.
        put: (layer, what `take` returned) -> None.
        prepare: layer -> None, ahead of the episodes that are to be taken.
    """

    skip: Callable
    take: Callable = lambda layer: None
    put: Callable = lambda layer, taken: None
    prepare: Callable = lambda layer: None


def chain(env) -> list:
    """`env` and what it wraps, the outermost first."""
    layers = [env]
    while callable(getattr(getattr(layers[-1], "__dict__", {}).get("env"), "step", None)):
        layers.append(layers[-1].env)
    return layers


def adapter_of(layer) -> Adapter:
    """The adapter for a layer; the libraries that it is about are loaded if it is theirs."""
    if _has_own_state(layer):
        return _OWN
    if _is_a(layer, "gymnasium.envs.mujoco.mujoco_env", "MujocoEnv"):
        from kerasrl_gpu.snapshots import mujoco

        return Adapter(mujoco.skip, mujoco.take, mujoco.put)
    if _is_a(layer, "ale_py.env", "AtariEnv"):
        from kerasrl_gpu.snapshots import atari

        return Adapter(atari.skip, atari.take, atari.put, atari.prepare)
    if isinstance(layer, wrappers.RecordEpisodeStatistics):
        return _STATISTICS
    return _PLAIN


def is_recorder(layer) -> bool:
    """Whether it only watches: how it was made makes no difference to what goes on."""
    return isinstance(layer, tuple(_RECORDERS))


def _is_a(layer, module: str, name: str) -> bool:
    """isinstance without an import: what has not been loaded has no instances."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(layer, kind)


def _has_own_state(layer) -> bool:
    """Whether the class has get_state() and set_state(state); attributes passed on do not count."""
    if not all(callable(getattr(type(layer), name, None)) for name in ("get_state", "set_state")):
        return False
    try:
        inspect.signature(layer.get_state).bind()
        inspect.signature(layer.set_state).bind(None)
    except TypeError:  # MuJoCo environments have a set_state(qpos, qvel)
        return False
    return True


def _skip_plain(layer) -> frozenset:
    kept = [names for kind, names in _RECORDERS.items() if isinstance(layer, kind)]
    if kept:
        return frozenset(kinds.attributes_of(layer)) - kept[0] - {"env"}
    return _SKIP


def _skip_own(layer) -> frozenset:
    """All but spaces and generators, which `get_state` seldom knows of."""
    return frozenset(
        name
        for name, value in kinds.attributes_of(layer).items()
        if not (name == "_np_random_seed" or kinds.is_random(value))
    )


def _take_own(layer):
    try:
        return attributes.copied(layer.get_state())
    except CheckpointError as error:
        raise SnapshotError(
            f"{type(layer).__name__}.get_state() returned what cannot be saved: {error}"
        ) from None


def _take_statistics(layer) -> dict:
    return {"elapsed_s": time.perf_counter() - layer.episode_start_time}


def _put_statistics(layer, taken) -> None:
    """The clock counts from the start of a machine: what stays is how long the episode has run."""
    layer.episode_start_time = time.perf_counter() - taken["elapsed_s"]


_PLAIN = Adapter(_skip_plain)
_OWN = Adapter(_skip_own, _take_own, lambda layer, taken: layer.set_state(attributes.copied(taken)))
_STATISTICS = Adapter(
    lambda layer: _SKIP | {"episode_start_time"}, _take_statistics, _put_statistics
)

"""Writing an agent, its environment and its run as one checkpoint."""

from __future__ import annotations

import copy
import json
import math
import warnings
from importlib import metadata

import keras
import numpy as np

from kerasrl_gpu import attributes, checkpoint, engine, snapshots
from kerasrl_gpu.errors import (
    ArgumentError,
    CheckpointError,
    NotCompiled,
    SnapshotError,
    check_count,
    in_words,
)
from kerasrl_gpu.names import class_name
from kerasrl_gpu.observations import as_plain
from kerasrl_gpu.resume import architecture, memory, parts


def save(agent, path, *, keep: int = 2):
    """Write a checkpoint of everything that decides what comes next.

    Weights, targets, optimizer slots, counters, exploration, noise, every random generator, the
    replay memory, the environment and the open episode: `fit(env, nb_steps, resume=path)` goes on
    as if nothing had happened, also in another process. What of the pool did not change since the
    last checkpoint is linked to that one's files.

    Args:
        path: run directory; each call adds one checkpoint to it.
        keep: checkpoints that stay there, the newest ones.

    Returns:
        the new checkpoint's own path. None while `fit` runs: it is written when the step has
        ended, and where that fails a warning says why.

    Raises:
        NotCompiled: there is nothing to save yet.
        ArgumentError: inside `test`.
        CheckpointError: it could not be written, or a weight or the last loss is not finite. The
            older checkpoints stand.
    """
    keep = check_count("keep", keep, 1)
    if agent.trainer is None:
        raise NotCompiled(
            "there are no weights to save yet: compile the agent, and where the model waits for "
            "its first observation, start it with keras.Input(shape)."
        )
    if not agent.in_loop:
        return write(agent, path, keep)
    if not agent.training:
        raise ArgumentError("save was called inside test; call it after, or inside fit.")
    agent.runs.request_save(path, keep)
    return None


def write(agent, path, keep: int):
    """`save`, now: between two steps."""
    agent.flush()
    if not agent.in_loop:  # weights that the user has set since count
        agent.notice_weights()
    left = agent.runs.where()
    state = _state(agent, left)
    _check_finite(agent, state)
    reason = state["environment"]["reason"]
    if left is not None and reason is not None:
        warnings.warn(
            f"the environment is not in the checkpoint: {reason.rstrip('.')}. A resume will close "
            "the open episode as truncated.",
            stacklevel=3,
        )
    replay = agent.memory if agent.on_pool else None
    written = checkpoint.write(
        path,
        step=agent.step,
        manifest=_manifest(agent, state),
        state=state,
        ranges=[] if replay is None else memory.rows_of(replay),
        previous=None if replay is None else memory.previous(replay),
        keep=keep,
    )
    if replay is not None and replay.ring is not None:
        memory.note(replay, written)
    agent.runs.saved = written
    return written


def write_or_warn(agent, path, keep: int) -> None:
    """`write`; where it fails, a warning says so, and the older checkpoints stand."""
    try:
        write(agent, path, keep)
    except Exception as error:  # whatever it is: days of training are worth more than one save
        text = f"step {agent.step}: no checkpoint was written: {in_words(error)}"
        warnings.warn(text, stacklevel=2)


def _state(agent, left) -> dict:
    networks = agent.trainer.get_state()
    return {
        "config": told(agent.get_config()),
        "agent": _plain(agent.get_state(), "recent_observation", "recent_action", "shown"),
        "trainer": networks,
        "parts": {name: parts.get_state(part) for name, part in agent.parts().items()},
        "memory": _memory_state(agent),
        "run": None if left is None else _plain(left.state, "observation"),
        "environment": _environment(left),
        "acting": {**agent.acting(), "window_length": agent.memory.window_length},
        "generators": parts.get_global_generators(),
        "probe": _probe(agent, left),
    }


def told(config):
    """A config whose values can be stored and compared; see `attributes.told`."""
    if isinstance(config, dict):
        return {str(key): told(value) for key, value in config.items()}
    return attributes.told(config)


def _plain(state, *names) -> dict:
    """The state with what environments showed and agents did as plain data."""
    return {**state, **{name: as_plain(state[name]) for name in names}}


def _memory_state(agent) -> dict | None:
    if agent.on_pool:
        return memory.get_state(agent.memory)
    if not hasattr(agent.memory, "get_state"):
        return None
    return {**parts.get_state(agent.memory), "window": memory.get_window(agent.memory)}


def _environment(left) -> dict:
    """{"snapshot", "reason"}: one of the two is None."""
    if left is None:
        return {"snapshot": None, "reason": "nothing was trained yet"}
    if left.env is None or left.reason is not None:  # as it came from a checkpoint
        return {"snapshot": left.snapshot if left.reason is None else None, "reason": left.reason}
    try:
        return {"snapshot": snapshots.take(left.env), "reason": None}
    except SnapshotError as error:
        return {"snapshot": None, "reason": str(error)}


def _probe(agent, left) -> dict | None:
    """A state and what the networks say to it, for `verify` to say it again.

    No outputs where the processor cannot be copied: one that counts or draws must not see this.
    """
    observation = None if left is None else left.state["observation"]
    if observation is None and agent.on_pool and agent.memory.spec is not None:
        observation = agent.memory.spec.example
    if observation is None or not agent.prepared:
        return None
    state = agent.memory.get_recent_state(observation)
    return {"state": [as_plain(seen) for seen in state], "outputs": _outputs(agent, left, state)}


def _outputs(agent, left, state) -> np.ndarray | None:
    processor, shared = agent.processor, (agent, None if left is None else left.env)
    try:
        agent.processor = copy.deepcopy(processor, {id(one): one for one in shared})
    except Exception:  # whatever a user's class holds
        return None
    try:
        with parts.generators_kept():
            return agent.outputs([state])[0]
    finally:
        agent.processor = processor


def _manifest(agent, state) -> dict:
    run, ring = state["run"] or {}, (state["memory"] or {}).get("ring")
    return {
        "agent": class_name(agent),
        "run": agent.runs.name,
        "backend": engine.NAME,
        "versions": {"keras": keras.__version__, engine.NAME: metadata.version(engine.NAME)},
        "config": json.loads(json.dumps(_readable(state["config"]), default=str)),
        "counters": {
            "step": agent.step,
            "episode": run.get("episode", 0),
            "updates": state["trainer"]["nb_updates"],
            "rows": 0 if ring is None else sum(min(h, ring["capacity"]) for h in ring["heads"]),
        },
        "networks": {
            name: architecture.describe(model) for name, model in agent.networks().items()
        },
        "optimizers": agent.optimizer_descriptions,
        "metrics": [name for name, _ in agent.measures[:-1]],  # the last one is always there
        "environment": state["environment"]["reason"] or "saved",
    }


def _readable(config):
    """A config for people and JSON: what has no number there is text."""
    if isinstance(config, dict):
        return {str(key): _readable(value) for key, value in config.items()}
    if isinstance(config, (list, tuple, np.ndarray)):
        return [_readable(value) for value in config]
    if isinstance(config, (np.integer, np.floating, np.bool_)):
        config = config.item()
    return str(config) if isinstance(config, float) and not math.isfinite(config) else config


def _check_finite(agent, state) -> None:
    """Raise CheckpointError where the last loss or any weight is NaN or infinite."""
    loss = agent.trainer.loss
    if not math.isfinite(loss):
        raise CheckpointError(
            f"the last loss is {loss}. The older checkpoints are kept: resume from one, with a "
            "smaller learning rate or clipped gradients."
        )
    for part in ("online", "target", "slots"):
        for name, array in _named(state["trainer"][part], part):
            if not np.issubdtype(array.dtype, np.integer) and not _is_finite(array):
                raise CheckpointError(
                    f"{name} holds NaN or infinity. The older checkpoints are kept: resume from "
                    "one, with a smaller learning rate or clipped gradients."
                )


def _is_finite(array) -> bool:
    wide = array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16
    return bool(np.isfinite(wide).all())


def _named(tree, path):
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _named(value, f"{path}/{key}")
    else:
        for index, array in enumerate(tree):
            yield f"{path}/{index}", array

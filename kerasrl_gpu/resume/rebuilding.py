"""An agent from a checkpoint alone."""

from __future__ import annotations

import keras

from kerasrl_gpu import checkpoint
from kerasrl_gpu.agents.ddpg import DDPGAgent
from kerasrl_gpu.agents.dqn import DQNAgent
from kerasrl_gpu.errors import CheckpointError
from kerasrl_gpu.memory import DeviceMemory
from kerasrl_gpu.resume import architecture, parts

_AGENTS = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in (DQNAgent, DDPGAgent)}
# What may be passed in beside the networks and the agent's parts.
_OTHERS = {"memory", "optimizer", "metrics"}


def load(path, *, allow=(), **given):
    """The agent that a checkpoint holds, with its networks, compiled, and everything it knew.

        agent = kerasrl_gpu.load("runs/cartpole")
        agent.fit(env, nb_steps=200_000, resume=True)

    Networks and optimizers come back through Keras, without running code: custom layers have to be
    registered (`keras.saving.register_keras_serializable`) before. Policies, noise and processors
    of keras-rl and of this package come back with what they hold.

    Args:
        path: a run directory (its newest checkpoint counts) or one checkpoint.
        allow: see `agent.load`.
        given: what the checkpoint cannot bring back, or what shall be another one, by its name:
            model, actor, critic, policy, test_policy, processor, random_process, memory,
            optimizer (of DDPG a pair), metrics.

    Returns:
        the agent; `agent.resumed` says what was restored.

    Raises:
        CheckpointError: there is none, it is damaged, or something has to be passed in; names it.
    """
    saved = checkpoint.open_newest(path)
    agent = build(saved, given)
    agent.load(saved.path, allow=allow)
    return agent


def build(saved, given: dict, limit: int | None = None):
    """The agent, compiled, without what it learned.

    Args:
        saved: `checkpoint.Saved`.
        given: what to take in place of what the checkpoint holds.
        limit: another limit of the memory.

    Raises:
        CheckpointError: something has to be passed in, or was passed and fits nothing; names it.
    """
    kind = _agent_class(saved)
    manifest, config = saved.manifest, dict(saved.state_part("config"))
    held = saved.state_part("parts")
    unknown = sorted(set(given) - set(manifest["networks"]) - set(held) - _OTHERS)
    if unknown:
        fits = sorted({*manifest["networks"], *held, *_OTHERS})
        raise CheckpointError(f"load takes no {unknown}; it takes {fits}.")
    networks = {
        name: given[name]
        if name in given
        else architecture.rebuild(description, f"the network {name!r}", f"{name}=")
        for name, description in manifest["networks"].items()
    }
    objects = {
        name: given[name] if name in given else parts.rebuild(name, part)
        for name, part in held.items()
    }
    memory = given["memory"] if "memory" in given else _memory(config["memory"], limit)
    own = tuple(name for name in networks if name in given)
    agent = kind.from_config(config, networks, {**objects, "memory": memory}, own)
    agent.compile(_optimizers(manifest, given), metrics=_metrics(manifest, given))
    return agent


def _agent_class(saved):
    name = saved.manifest["agent"]
    if name not in _AGENTS:
        raise CheckpointError(
            f"{saved.path} holds a {name.replace(':', '.')}, a class of your own. Build and "
            "compile one, and let it take the checkpoint over: agent.load(path)."
        )
    return _AGENTS[name]


def _memory(config, limit):
    if config["class_name"] != "DeviceMemory":
        raise CheckpointError(
            f"the memory is of a class of your own, {config['class_name']}; pass one: "
            "load(path, memory=...)."
        )
    arguments = dict(config["config"])
    return DeviceMemory(**{**arguments, "limit": limit or arguments["limit"]})


def _optimizers(manifest, given):
    if "optimizer" in given:
        return given["optimizer"]
    found = [
        architecture.rebuild(description, f"the optimizer of {name!r}", "optimizer=")
        for name, description in manifest["optimizers"].items()
    ]
    return found[0] if len(found) == 1 else tuple(found)


def _metrics(manifest, given):
    if "metrics" in given:
        return given["metrics"]
    for name in manifest["metrics"]:
        try:
            keras.metrics.get(name)
        except ValueError:
            raise CheckpointError(
                f"the metric {name!r} is a function of your own; pass it, "
                "load(path, metrics=[...]), or metrics=[] to go without."
            ) from None
    return manifest["metrics"]

"""What a command is about: the agent that a script trains, or a usual one for an environment."""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium
import keras
from gymnasium.spaces import Box, Discrete

from kerasrl_gpu import networks
from kerasrl_gpu.agents.ddpg import DDPGAgent
from kerasrl_gpu.agents.dqn import DQNAgent
from kerasrl_gpu.core import Agent
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.memory import DeviceMemory
from kerasrl_gpu.planning.budgets import AUTO


class Target(NamedTuple):
    """A compiled agent and the environment that it trains on."""

    agent: Agent
    env: object


class Sizes(NamedTuple):
    """What an environment's usual agent is made with; None takes what is usual.

    Attributes:
        batch_size, updates, limit: as in the agent and its memory; "auto" where they take it.
        hidden: units of each dense layer.
        budget: of the memory.
    """

    batch_size: int | str | None = None
    updates: int = 1
    limit: int | str | None = None
    hidden: tuple | None = None
    budget: str | None = None


def find(name: str, arguments: list, sizes: Sizes) -> Target:
    """The target that a command names.

    Args:
        name: a Python file, or the id of a Gymnasium environment.
        arguments: the script's own.
        sizes: of an environment's agent.

    Raises:
        ArgumentError: neither, a script that trains no agent, an environment that none of our
            agents is for, or arguments and sizes that are for the other of the two.
    """
    if name.endswith(".py") or Path(name).is_file():
        _check_leaves_sizes(name, sizes)
        return from_script(name, arguments)
    if arguments:
        raise ArgumentError(
            f"{arguments} are for a script, and {name} is an environment; leave them out."
        )
    return for_environment(name, sizes)


def _check_leaves_sizes(script: str, sizes: Sizes) -> None:
    usual = Sizes(budget=sizes.budget)._asdict()
    given = [
        f"--{size.replace('_', '-')}" for size, value in sizes._asdict().items()
        if value != usual[size]
    ]  # fmt: skip
    if given:
        raise ArgumentError(
            f"{', '.join(given)}: an environment's usual agent takes such, and {script} makes its "
            "own; write them there."
        )


class _Caught(BaseException):
    """Unwinds a script at its first `fit`; no `except Exception` in it comes in between."""

    def __init__(self, target):
        self.target = target


def from_script(path: str, arguments: list) -> Target:
    """Run a script up to its first `fit`, and return what it would train.

    Raises:
        ArgumentError: it is not there, or ended without one.
    """
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path}; pass a script, or an id like CartPole-v1.")
    with _stopping_at_fit(), _arguments_of(path, arguments):
        try:
            runpy.run_path(path, run_name="__main__")
        except _Caught as caught:
            return caught.target
    raise ArgumentError(
        f"{path} ended without agent.fit of an agent of kerasrl_gpu; pass a script that trains "
        "one, or the id of an environment, such as CartPole-v1."
    )


@contextlib.contextmanager
def _stopping_at_fit():
    def stop(agent, env, *_, **__):
        agent.check_compiled()
        raise _Caught(Target(agent, env))

    fit, Agent.fit = Agent.fit, stop
    try:
        yield
    finally:
        Agent.fit = fit


@contextlib.contextmanager
def _arguments_of(path, arguments):
    kept = sys.argv, list(sys.path)
    sys.argv, sys.path[0:0] = [path, *arguments], [str(Path(path).resolve().parent)]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = kept


def for_environment(name: str, sizes: Sizes) -> Target:
    """A DQN or a DDPG with the usual networks for an environment.

    Raises:
        ArgumentError: no environment has that id, none of our agents is for it, or a size that
            cannot be honoured.
    """
    env = _make(name)
    space, shape = env.action_space, getattr(env.observation_space, "shape", None)
    if shape is None:
        raise ArgumentError(
            f"{name} shows {env.observation_space}; pass a script that makes the agent for it."
        )
    if isinstance(space, Discrete):
        return Target(_dqn(shape, int(space.n), sizes), env)
    if isinstance(space, Box) and len(space.shape) == 1:
        return Target(_ddpg(shape, space, sizes), env)
    raise ArgumentError(f"{name} takes {space}; pass a script that makes the agent for it.")


def _make(name):
    atari = name.startswith("ALE/")
    try:
        if atari:
            import ale_py

            gymnasium.register_envs(ale_py)
        env = gymnasium.make(name, **({"frameskip": 1} if atari else {}))
        return gymnasium.wrappers.AtariPreprocessing(env) if atari else env
    except (gymnasium.error.Error, ImportError) as error:
        raise ArgumentError(
            f"{name!r} is no file, and no environment either: {error}. Pass a script, or an id "
            "like CartPole-v1."
        ) from None


def _memory(sizes, window_length):
    return DeviceMemory(_given(sizes.limit, 100_000), window_length, budget=sizes.budget)


def _given(size, usual):
    return usual if size is None else size


def _dqn(shape, nb_actions, sizes) -> Agent:
    frames = len(shape) == 2
    if frames and sizes.hidden is not None:
        raise ArgumentError(
            f"--hidden is for dense networks, and frames of shape {shape} go into the Nature CNN; "
            "leave it out."
        )
    if frames:
        model = networks.nature_cnn(shape, nb_actions)
    else:
        model = networks.q_network(shape, nb_actions, hidden=_given(sizes.hidden, (64, 64)))
    agent = DQNAgent(
        model=model,
        nb_actions=nb_actions,
        memory=_memory(sizes, 4 if frames else 1),
        batch_size=_given(sizes.batch_size, 32),
        updates=sizes.updates,
        train_interval=sizes.updates,
    )
    agent.compile(keras.optimizers.Adam(1e-4 if frames else 1e-3))
    return agent


def _ddpg(shape, space, sizes) -> Agent:
    actor, critic, action = networks.actor_critic(
        shape, space.low, space.high, hidden=_given(sizes.hidden, (256, 256))
    )
    agent = DDPGAgent(
        nb_actions=space.shape[0],
        actor=actor,
        critic=critic,
        critic_action_input=action,
        memory=_memory(sizes, 1),
        batch_size=_given(sizes.batch_size, 256),
        updates=sizes.updates,
        train_interval=sizes.updates,
    )
    agent.compile((keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)))
    return agent


def count_or_auto(name: str, text: str | None):
    """A number, "auto" or None, as a command line writes it.

    Raises:
        ArgumentError: another text; `name` is the option that it was given to.
    """
    if text is None or text == AUTO:
        return text
    try:
        return int(text.replace(",", ""))
    except ValueError:
        raise ArgumentError(f"{name} {text}: pass a whole number, or auto.") from None

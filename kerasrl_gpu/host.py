"""What happens on the host where it must: memories and processors of the user's own."""

from __future__ import annotations

import numpy as np
from keras import tree

from kerasrl_gpu import keras_rl, tracing
from kerasrl_gpu.errors import ArgumentError

# keras-rl's public methods that make states into actions: who overrides one wants it called.
_HOOKS = ("process_state_batch", "compute_batch_q_values", "compute_q_values", "select_action")
_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def overrides(processor, hook: str) -> bool:
    """Whether a processor has this hook of its own."""
    return getattr(type(processor), hook, None) is not getattr(keras_rl.Processor, hook)


def processes_actions(agent) -> bool:
    """Whether the environment gets other actions than the agent chose."""
    return agent.processor is not None and overrides(agent.processor, "process_action")


def overridden(agent, names=_HOOKS) -> list:
    """Which of these methods a class outside this package defines anew."""
    found = []
    for name in names:
        for kind in type(agent).__mro__:
            if name in vars(kind):
                if not kind.__module__.startswith("kerasrl_gpu."):
                    found.append(name)
                break
    return found


def traced_processor(agent, state):
    """How states are processed for the networks.

    Args:
        state: k observations, an example.

    Returns:
        (process, reason): the function for compiled calls, None where only the host can do it;
        and why acting takes calls of its own, where somebody has to be told.
    """
    own = overridden(agent)
    if not agent.on_pool:
        return None, None if not own else _because(f"{type(agent).__name__} overrides {own}")
    if "process_state_batch" in own:
        return None, _because(f"{type(agent).__name__} overrides process_state_batch")
    process = identity
    if agent.processor is not None:
        process, why = _trace(agent, state)
        if process is None:
            return None, _because(why)
    return process, _because(f"{type(agent).__name__} overrides {own}") if own else None


def _trace(agent, state):
    if agent.memory.spec.is_array:
        return tracing.trace_state_batch(agent.processor, np.stack([np.stack(state)] * 2))
    if not overrides(agent.processor, "process_state_batch"):
        return identity, None
    kind = type(agent.processor).__name__
    return None, f"{kind}.process_state_batch takes structured observations"


def identity(seen):
    """States as they are: no processor changes them."""
    return seen


def _because(reason: str) -> str:
    reason = reason.rstrip(".")
    return f"{reason}: acting (and what it learns from) takes calls of its own, which is slower."


def stack(states, spec, processor):
    """B states of k observations as one array[B, k, ...].

    Args:
        spec: `ObservationSpec` of a pool; None without one.
        processor: keras-rl Processor or None.

    Structured observations become {leaf: array[B, k, ...]}, or keras-rl's array of objects where
    a processor waits for it.
    """
    first = states[0][0]
    if not isinstance(first, (dict, tuple)):
        return np.asarray(states)
    if processor is not None or spec is None:
        return np.array(states, dtype=object)
    rows = [[spec.leaves(observation) for observation in state] for state in states]
    return {
        name: np.stack([np.stack([leaves[index] for leaves in row]) for row in rows])
        for index, name in enumerate(spec.fields)
    }


def narrow(seen):
    """float64 as float32, 64-bit integers as 32 bits: what both engines compute with."""
    return tree.map_structure(
        lambda array: np.asarray(array, _NARROW.get(str(array.dtype), array.dtype)), seen
    )


def batch(agent, experiences) -> dict:
    """keras-rl's `Experience` tuples as a batch for an update; see `pool.transitions.read`.

    Raises:
        ArgumentError: there are not batch_size of them.
    """
    if len(experiences) != agent.batch_size:
        raise ArgumentError(
            f"{type(agent.memory).__name__}.sample({agent.batch_size}) returned "
            f"{len(experiences)} experiences; it has to return as many as it is asked for."
        )
    state0, action, reward, state1, terminal = zip(*experiences, strict=True)
    ended = np.asarray(terminal, bool)
    return {
        "observation": narrow(agent.process_state_batch(list(state0))),
        "next_observation": narrow(agent.process_state_batch(list(state1))),
        "action": narrow(np.asarray(action)),
        "reward": np.asarray(reward, np.float32).reshape(-1),
        "discount": np.where(ended, 0.0, agent.gamma).astype(np.float32),
        "terminated": ended,
    }


def learn(agent, what, done) -> None:
    """Learn from what the memory's own `sample` gives, as keras-rl does.

    Args:
        what: which networks learn; empty only stores the row.
        done: called with the updates' mean numbers, f32[M] as a list.
    """
    if agent.on_pool:
        agent.memory.store()
    reports = []
    for _ in range(agent.updates if what else 0):
        experiences = _sample(agent)
        if not agent.prepared:  # no `forward` came before: a loop of the user's own
            state = list(experiences[0].state0)
            agent.prepare(state[-1], state)
        reports.append(agent.trainer.learn(what, batch(agent, experiences)))
    if reports:
        done(np.mean(reports, axis=0).tolist())


def _sample(agent) -> list:
    if not agent.on_pool:
        return agent.memory.sample(agent.batch_size)
    draw = 0 if agent.trainer is None else agent.trainer.nb_updates
    return agent.memory.sample(agent.batch_size, rule=agent.rule, counters=(agent.seed, draw))

"""What an agent itself holds in a checkpoint: counters, and what was seen and done last."""

from __future__ import annotations


def get_state(agent) -> dict:
    """The counters, and what was seen and done last, as plain values and arrays.

    A subclass that holds more adds it here and takes it in `set_state`.
    """
    return {
        "step": agent.step,
        "seed": agent.seed,
        "seeded": agent.runs.seeded,
        "nb_runs": agent.runs.nb_runs,
        "run": agent.runs.name,
        "execution": agent.execution._asdict(),
        **agent.get_acting_state(),
    }


def set_state(agent, state: dict) -> None:
    """Go on where `get_state` was called."""
    agent.step, agent.seed = state["step"], state["seed"]
    agent.runs.nb_runs, agent.runs.seeded = state["nb_runs"], state["seeded"]
    agent.runs.name = state["run"]
    agent.trainer.seed = agent.seed
    agent.set_acting_state(state)


def get_acting_state(agent) -> dict:
    """What the open episode has shown last, and the networks' answer where one waits."""
    agent.flush()
    return {
        "recent_observation": agent.recent_observation,
        "recent_action": agent.recent_action,
        "ended": agent.recorder.ended,
        "shown": agent.shown,
        "answer": None if agent.trainer is None else agent.trainer.values,
    }


def set_acting_state(agent, state: dict) -> None:
    """Go on where `get_acting_state` was called."""
    for name in ("recent_observation", "recent_action"):
        setattr(agent, name, state[name])
    agent.recorder.ended, agent.shown = state["ended"], state["shown"]
    if agent.trainer is not None:
        agent.trainer.values = state["answer"]

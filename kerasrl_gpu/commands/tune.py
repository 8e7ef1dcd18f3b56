"""`kerasrl-gpu tune`: how a run's updates would be executed, measured on this machine."""

from __future__ import annotations

from kerasrl_gpu.commands.targets import Target
from kerasrl_gpu.tuning import curve


def tune(target: Target, *, steps, free, budget, seconds, cache, draw) -> None:
    """Play some steps of a target's environment, tune, and print the curve and the choice.

    Args:
        steps: environment steps that fill the pool with something to learn from.
        free, budget, seconds, cache: see `agent.tune`.
        draw: a file to draw the curve into; None draws nothing.

    Raises:
        ArgumentError, EmptyPool: see `agent.tune`; a file that cannot be drawn into.
        ImportError: `draw`, and matplotlib is not installed.
    """
    if draw is not None:
        curve.check_path(draw)
    agent, env = target
    agent.expect_tuning(free=free)
    agent.fit(env, nb_steps=steps, verbose=0)
    choice = agent.tune(free=free, budget=budget, seconds=seconds, cache=cache)
    print(choice)
    print(_arguments(agent, choice.point))
    if draw is not None:
        may = agent.plan(budget=budget or agent.memory.budget).budget_bytes
        curve.draw(choice, draw, budget_bytes=may)
        print(f"drawn in {draw}")


def _arguments(agent, point) -> str:
    """The choice as the agent's arguments, and what it means for learning."""
    chosen = {"batch_size": point.batch}
    if point.micro_batch != point.batch:
        chosen["micro_batch"] = point.micro_batch
    chosen["updates"], chosen["train_interval"] = agent.updates, agent.train_interval
    if point.fused != agent.updates:
        chosen["updates_per_call"] = point.fused
    words = ", ".join(f"{name}={value}" for name, value in chosen.items())
    ratio = agent.updates / agent.train_interval
    return f"{words}\nreplay ratio: {ratio:g} (updates a step), each of {point.batch} transitions"

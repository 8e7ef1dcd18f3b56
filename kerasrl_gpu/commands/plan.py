"""`kerasrl-gpu plan`: what a run would take, before it starts."""

from __future__ import annotations

from kerasrl_gpu import sizing
from kerasrl_gpu.commands.targets import Target


def plan(target: Target, *, budget, micro_batch: int | None, report: bool) -> bool:
    """Print a target's memory plan.

    Args:
        budget, micro_batch: see `agent.plan`; a budget of None takes the memory's.
        report: print its layers, too.

    Returns:
        whether it fits into the budget.

    Raises:
        PoolTooLarge: the memory's budget has no room for what is "auto".
        ArgumentError, ShapeError: see `agent.plan`.
    """
    agent = target.agent
    observation = first_observation(target)
    if agent.on_pool:
        budget = agent.memory.budget if budget is None else budget
        agent.memory.look_at(observation)
        sizing.settle_batch_size(agent)
    found = agent.plan(observation, micro_batch=micro_batch, budget=budget)
    print(found)
    if report:
        print(agent.report())
    return found.fits


def first_observation(target: Target):
    """What the memory would store first."""
    agent, answer = target.agent, target.env.reset()
    observation = answer[0] if isinstance(answer, tuple) else answer  # the old API shows it alone
    if agent.processor is not None:
        observation = agent.processor.process_observation(observation)
    return observation

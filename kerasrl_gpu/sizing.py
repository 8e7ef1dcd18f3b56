"""Sizes that were left to the run: `batch_size="auto"`, and what an "auto" pool has beside it."""

from __future__ import annotations

import sys

from kerasrl_gpu import execution
from kerasrl_gpu.errors import ArgumentError, KerasRLError, PoolTooLarge, check_count
from kerasrl_gpu.planning import room
from kerasrl_gpu.planning.budgets import AUTO
from kerasrl_gpu.planning.plan import NETWORKS, OPTIMIZER
from kerasrl_gpu.units import human_bytes

_SIZES = (256, 128, 64, 32)  # common for such agents; others are asked for by number
_ROWS_A_BATCH = 8  # of the pool, for each row of a batch: fewer would be the same ones again
_TRIALS_BYTES = 2**20  # small arrays of a trial's call, which count where networks are small
_SHARE = 0.25  # of what is left may go to a larger batch, where the pool takes the rest


def checked_batch_size(batch_size):
    """`batch_size` as a number, or "auto"; raises ArgumentError for anything else."""
    if isinstance(batch_size, str) and batch_size == AUTO:
        return AUTO
    return check_count("batch_size", batch_size, 1)


def beside(agent, observation=None, batch_size: int | None = None) -> room.Beside:
    """What an agent's run takes beside its pool; see `planning`.

    A run that states no budget is not stopped by a model that cannot be planned: it takes what
    can be counted.

    Args:
        observation: an example; None takes the one that the memory has seen.
        batch_size: transitions an update; None takes the agent's.
    """
    batch_size = agent.batch_size if batch_size is None else batch_size
    batch_size = _SIZES[-1] if batch_size == AUTO else batch_size
    try:
        plan = agent.plan(
            observation,
            limit=agent.memory.least_limit,
            batch_size=batch_size,
            micro_batch=agent.execution.rows(batch_size),
        )
    except KerasRLError:
        if agent.memory.budget is not None:
            raise
        return room.Beside()
    needs = plan.peak_bytes - plan.pool_bytes
    if agent.is_tuned:  # trials compute on a second state
        needs += plan.of(NETWORKS, OPTIMIZER) + _TRIALS_BYTES
    return room.Beside(needs, plan.persistent_bytes, batch_size)


def expect_tuning(agent, *, free: bool) -> None:
    """Say that this run will be tuned: an "auto" pool leaves room for it, until the run ends.

    Args:
        free: whether the batch may change, so that "auto" needs no budget.
    """
    agent.is_tuned, agent.batch_is_free = True, free


def settle_batch_size(agent) -> None:
    """Make `batch_size="auto"` a number, now that the shapes are known, and say which and why.

    Raises:
        ArgumentError: neither a budget nor a tuner can decide, or the pool is smaller than a batch.
        PoolTooLarge: the budget has no room for the smallest batch.
    """
    given, memory = agent.batch_size, agent.memory
    size, why = (given, None) if given != AUTO else _chosen(agent)
    if AUTO in (given, memory.limit):  # two numbers were compared before
        agent.batch_size = size
        limit = memory.estimate(memory.spec.example)["limit"]
        if size > limit:
            agent.batch_size = given
            raise ArgumentError(
                f"batch_size={size} is more than the memory holds, limit={limit}; raise limit or "
                f"the budget, or pass batch_size={limit} or less."
            )
    if why is None:
        return
    execution.settle(agent, agent.execution, size)
    say(f"batch_size={size}: {why}")


def _chosen(agent) -> tuple:
    """(batch, why)."""
    if agent.memory.budget is not None:
        return _largest(agent, agent.memory.budget)
    if agent.batch_is_free:
        return _SIZES[-1], "to begin with; the tuner chooses after the warm-up"
    raise ArgumentError(
        "batch_size='auto' needs something to go by: a budget, as in DeviceMemory(limit, "
        "budget='70%'), or callbacks=[BatchTuner(free=True)], which measures."
    )


def say(sentence: str) -> None:
    """Tell what was chosen, where somebody asked for a choice."""
    print(sentence, file=sys.stderr)


def _largest(agent, budget) -> tuple:
    """(the largest batch that the budget has room for, why)."""
    memory, smallest = agent.memory, _SIZES[-1]
    is_open = memory.limit == AUTO
    rows = memory.least_limit if is_open else memory.limit
    rows_bytes = rows * memory.estimate(memory.spec.example, limit=rows)["row_bytes"]
    least = beside(agent, batch_size=smallest)
    may = room.spendable(budget, least.held)
    left = may - least.needs - rows_bytes
    if left < 0:
        raise PoolTooLarge(
            f"budget={budget!r} lets this run take {human_bytes(may)}; networks and slots take "
            f"{human_bytes(least.held)}, {rows:_} rows of the pool {human_bytes(rows_bytes)}, and "
            f"an update of {smallest} transitions {human_bytes(least.needs - least.held)}. Pass "
            f"budget={least.needs + rows_bytes:_} or more, a smaller limit, or a smaller network."
        )
    fed = _SIZES[0] if is_open else max(smallest, rows // _ROWS_A_BATCH)
    sizes = [size for size in _SIZES if size <= fed]
    for size in sizes:
        takes = beside(agent, batch_size=size)
        if takes.needs - least.needs <= (_SHARE * left if is_open else left):
            break
    ends = "the most that fits"
    if size == sizes[0]:
        ends = "the most that is tried" if size == _SIZES[0] else f"enough for {rows:_} rows"
    return (
        size,
        f"an update takes {human_bytes(takes.needs - takes.held)} of {human_bytes(may)}, {ends}",
    )

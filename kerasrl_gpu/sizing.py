"""Sizes that were left to the run: `batch_size="auto"`, and what an "auto" pool has beside it."""

from __future__ import annotations

import sys

from kerasrl_gpu.errors import ArgumentError, KerasRLError, PoolTooLarge, check_count
from kerasrl_gpu.memory import AUTO
from kerasrl_gpu.planning import room
from kerasrl_gpu.planning.budgets import in_words

_SIZES = (256, 128, 64, 32)  # common for such agents; others are asked for by number
_ROWS_A_BATCH = 8  # of the pool, for each row of a batch: fewer would be the same ones again
_SHARE = (
    0.25  # of what is left beside the networks may go to updates, where the pool takes the rest
)


def checked_batch_size(batch_size):
    """`batch_size` as a number, or "auto"; raises ArgumentError for anything else."""
    if isinstance(batch_size, str) and batch_size == AUTO:
        return AUTO
    return check_count("batch_size", batch_size, 1)


def beside(agent, batch_size: int | None = None) -> room.Beside:
    """What an agent's run takes beside its pool; see `planning`.

    A run that states no budget is not stopped by a model that cannot be planned: it takes what
    can be counted.
    """
    batch_size = agent.batch_size if batch_size is None else batch_size
    batch_size = _SIZES[-1] if batch_size == AUTO else batch_size
    try:
        plan = agent.plan(
            limit=agent.memory.least_limit,
            batch_size=batch_size,
            micro_batch=agent.execution.rows(batch_size),
        )
    except KerasRLError:
        if agent.memory.budget is not None:
            raise
        return room.Beside()
    return room.Beside(plan.peak_bytes - plan.pool_bytes, plan.persistent_bytes)


def settle_batch_size(agent) -> None:
    """Make `batch_size="auto"` a number, now that the shapes are known, and say which and why.

    Raises:
        ArgumentError: neither a budget nor a tuner can decide.
        PoolTooLarge: the budget has no room for the smallest batch.
    """
    if agent.batch_size != AUTO:
        return
    budget = agent.memory.budget
    if budget is not None:
        agent.batch_size, why = _largest(agent, budget)
    elif agent.batch_is_free:
        agent.batch_size, why = _SIZES[-1], "to begin with; the tuner chooses after the warm-up"
    else:
        raise ArgumentError(
            "batch_size='auto' needs something to go by: a budget, as in DeviceMemory(limit, "
            "budget='70%'), or callbacks=[BatchTuner(free=True)], which measures."
        )
    say(f"batch_size={agent.batch_size}: {why}")


def say(sentence: str) -> None:
    """Tell what was chosen, where somebody asked for a choice."""
    print(sentence, file=sys.stderr)


def _largest(agent, budget) -> tuple:
    memory = agent.memory
    least = memory.least_limit
    row_bytes = memory.estimate(memory.spec.example, limit=least)["row_bytes"]
    open_limit = memory.limit == AUTO
    rows = least if open_limit else memory.limit
    for size in _SIZES:
        if not open_limit and size > max(_SIZES[-1], rows // _ROWS_A_BATCH):
            continue
        takes = beside(agent, size)
        may = room.spendable(budget, takes.held)
        left = may - takes.held - rows * row_bytes
        update = takes.needs - takes.held
        if update <= (_SHARE * left if open_limit else left):
            share = " and leaves the pool its share" if open_limit else ""
            ends = "the most that is tried" if size == _SIZES[0] else "the most that fits"
            return size, f"an update takes {in_words(update)} of {in_words(left)}{share}, {ends}"
    raise PoolTooLarge(
        f"budget={budget!r} lets this run take {in_words(may)}; networks and slots take "
        f"{in_words(takes.held)}, {rows:_} rows of the pool {in_words(rows * row_bytes)}, and an "
        f"update of {size} transitions {in_words(update)}. Raise the budget, or lower limit."
    )

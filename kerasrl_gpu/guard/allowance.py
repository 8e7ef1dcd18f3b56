"""What a run may take of the host's memory, and whether that is enough for it."""

from __future__ import annotations

from kerasrl_gpu import engine, probes
from kerasrl_gpu.errors import ArgumentError, KerasRLError
from kerasrl_gpu.units import human_bytes


def nbytes(budget) -> int | None:
    """A budget in bytes; None for no budget.

    Args:
        budget: `planning.budgets.Budget`; a share is one of the smallest limit on this process.

    Raises:
        ArgumentError: a share of a limit that cannot be read.
    """
    if budget is None or budget.bytes is not None:
        return None if budget is None else budget.bytes
    limit = probes.host_limit()
    if limit.bytes is None:
        raise ArgumentError(
            f"budget='{budget.share:.0%}' is a share of the host's memory, which does not tell its "
            "size; pass an amount, such as budget='6GiB'."
        )
    return int(limit.bytes * budget.share)


def check(agent, budget) -> None:
    """Raise ArgumentError where a run takes more of the host than its budget, with the sum.

    Args:
        agent: one whose pool is there: a host gives its pages at once, and they are among what the
            process has.
    """
    may = nbytes(budget)
    if may is None:
        return
    has, update, pool = probes.host.tree_rss()[0] or 0, 0, 0
    if engine.on_cpu():
        try:
            update = agent.plan().step_bytes
        except KerasRLError:  # what cannot be planned is only watched
            return
        pool = agent.memory.tier_bytes["device"] if agent.on_pool else 0
    needs = has + update
    if needs > may:
        raise ArgumentError(
            f"a budget of {may:_} B is less than this run takes: it has {human_bytes(has)}, the "
            f"pool's {human_bytes(pool)} among them, and an update takes {human_bytes(update)} "
            f"more, {human_bytes(needs)} in all. Pass budget={needs:_} or more, a smaller limit, "
            "or a smaller micro_batch."
        )

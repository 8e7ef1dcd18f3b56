"""Room: the bytes that a run may take where its pool lies, and the rows that fit into them."""

from __future__ import annotations

from typing import NamedTuple

from kerasrl_gpu import engine, probes
from kerasrl_gpu.errors import ArgumentError, PoolTooLarge, check_count
from kerasrl_gpu.planning import budgets
from kerasrl_gpu.planning.budgets import AUTO
from kerasrl_gpu.units import human_bytes

_MOST_ROWS = 2**31 - 1  # slots are i32


class Beside(NamedTuple):
    """What a run takes beside its pool.

    Attributes:
        needs: bytes in all: networks, slots, an update at its peak, a margin.
        held: bytes of these that are taken already.
        rows: of the pool that a batch needs at least.
    """

    needs: int = 0
    held: int = 0
    rows: int = 0


def device_limits() -> list[probes.Limit]:
    """Every limit on the device that pools lie on; [] where nobody can say."""
    if engine.on_cpu():
        return probes.host_limits()
    told = engine.device_memory()
    if told is None:
        return []
    limit_bytes, used_bytes, _ = told
    return [probes.Limit(limit_bytes, used_bytes, "the device's allocator")]


def spendable(budget, held_bytes: int = 0) -> int | None:
    """Bytes that a run may take in all; see `planning.budgets.available`.

    Args:
        budget: "70%", "6GiB", bytes, or None for all that is free.
        held_bytes: what it has taken already.

    Returns:
        never below zero; None where neither a limit nor an amount is known.

    Raises:
        ArgumentError: no budget, or a share of a limit that nobody knows.
    """
    budget = budgets.parse(budget)
    limits = device_limits() or [probes.Limit(None, None, "unknown")]
    each = [budgets.available(budget, one.bytes, one.used_bytes, held_bytes) for one in limits]
    return min((one for one in each if one is not None), default=None)


def for_pool(budget, beside: Beside) -> int | None:
    """Bytes that are left for a pool, below zero where not even the rest fits; None: unknown."""
    may = spendable(budget, beside.held)
    return None if may is None else may - beside.needs


def auto_limit(row_bytes: int, least: int, budget, beside: Beside) -> int:
    """The most rows that a budget leaves room for.

    Args:
        row_bytes: of one row.
        least: rows that a pool needs at least.
        budget: see `spendable`; one is stated.

    Raises:
        PoolTooLarge: there is no room for `least` rows.
    """
    left, least = for_pool(budget, beside), max(least, beside.rows)
    if left // row_bytes < least:
        may = spendable(budget, beside.held)
        raise PoolTooLarge(
            f"budget={budget!r} lets this run take {human_bytes(may)}; networks, optimizer "
            f"slots, an update and compiled code take {human_bytes(beside.needs)}, and {least} "
            f"rows of the pool {human_bytes(least * row_bytes)}. Pass "
            f"budget={beside.needs + least * row_bytes:_} or more, a smaller network, or a "
            "smaller batch."
        )
    return min(left // row_bytes, _MOST_ROWS)


def check_limit(limit: int, row_bytes: int, least: int, budget, beside: Beside) -> None:
    """Raise PoolTooLarge unless so many rows fit beside the rest; names the most that do."""
    left, need = for_pool(budget, beside), limit * row_bytes
    if left is None or need <= left:
        return
    if left < least * row_bytes:
        hint = f"Pass budget={beside.needs + need:_}, a smaller network, or a smaller batch."
        hint = hint if budget is not None else "Free some memory, or make them smaller."
    else:
        hint = f"Pass limit={left // row_bytes:_} or less, or store frames as uint8."
    rest = f" beside {human_bytes(beside.needs)} for networks and updates" if beside.needs else ""
    raise PoolTooLarge(
        f"limit={limit:_} rows of {row_bytes:_} B need {human_bytes(need)}; "
        f"{human_bytes(max(0, left))} are left for the pool{rest}. {hint}"
    )


def checked_limit(limit, window_length: int, budget):
    """`limit` of a memory as a number of rows, or "auto".

    Raises:
        ArgumentError: too few for a transition, or "auto" without a budget.
    """
    if isinstance(limit, str) and limit == AUTO:
        if budget is None:
            raise ArgumentError(
                "limit='auto' spends a budget, and none is stated; pass budget='70%' or "
                "budget='6GiB' with it."
            )
        return AUTO
    if check_count("limit", limit) < window_length + 2:
        raise ArgumentError(
            f"limit={limit} is too small for window_length={window_length}: a transition needs "
            f"its window and the next observation. Pass limit={window_length + 2} or more."
        )
    return int(limit)


def rows_for(memory, example, row_bytes: int) -> int:
    """The memory's limit as a number.

    Args:
        example: an observation.
        row_bytes: of one row of such.

    Raises:
        PoolTooLarge: so many rows have no room.
    """
    least = memory.least_limit
    if memory.limit == AUTO:
        most = auto_limit(row_bytes, least, memory.budget, memory.beside(example))
        return min(most, memory.preferred_limit or most)
    is_tight = _is_tight(memory.budget, memory.limit * row_bytes)
    beside = memory.beside(example) if is_tight else Beside()
    check_limit(memory.limit, row_bytes, least, memory.budget, beside)
    return memory.limit


def _is_tight(budget, pool_bytes) -> bool:
    """Whether what the run takes beside the pool can decide; to plan that takes 0.1 s."""
    if budget is not None:
        return True
    free = spendable(None)
    return free is not None and 2 * pool_bytes > free

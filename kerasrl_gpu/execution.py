"""How updates are executed: rows computed at a time, updates in one call. Never what they learn."""

from __future__ import annotations

import warnings
from typing import NamedTuple

from kerasrl_gpu.errors import ArgumentError, check_count
from kerasrl_gpu.planning.budgets import AUTO


class Execution(NamedTuple):
    """How the updates of an agent are executed.

    Attributes:
        micro_batch: rows of a batch that are computed at a time, m; None for all. Where it does
            not divide the batch, the rows left over are computed last.
        updates_per_call: updates in one device call; None for all that are due at once.
    """

    micro_batch: int | None = None
    updates_per_call: int | None = None

    def rows(self, batch_size: int) -> int:
        """Rows at a time of batches of this size."""
        return min(self.micro_batch or batch_size, batch_size)

    def per_call(self, updates: int) -> int:
        """Updates in one call where `updates` are due."""
        return self.updates_per_call or updates


AT_ONCE = Execution()


def checked(micro_batch, updates_per_call, batch_size: int, updates: int) -> Execution:
    """The execution with these numbers.

    Raises:
        ArgumentError: rows beyond the batch, or calls that the updates do not fill.
    """
    if micro_batch is not None:
        micro_batch = check_count("micro_batch", micro_batch, 1)
        if batch_size != AUTO and micro_batch > batch_size:
            raise ArgumentError(
                f"micro_batch={micro_batch} is more than batch_size={batch_size}; pass "
                f"{batch_size} or less, or None to compute the batch at once."
            )
    if updates_per_call is not None:
        updates_per_call = check_count("updates_per_call", updates_per_call, 1)
        if updates % updates_per_call:
            raise ArgumentError(
                f"updates_per_call={updates_per_call} does not divide updates={updates}; pass one "
                f"of {[n for n in range(1, updates + 1) if updates % n == 0]}."
            )
    return Execution(micro_batch, updates_per_call)


def set_micro_batch(agent, rows: int | None) -> None:
    """Compute every batch so many rows at a time, from the next update on.

    Less memory for activations, and what is learned stays: each row's loss is divided by the
    whole batch, gradients are summed, and clipped and applied once. Sums in another order differ
    by rounding.

    Args:
        rows: 1 .. batch_size; None for all at once.

    Raises:
        ArgumentError: another number, or a network that looks at a batch as a whole.
    """
    take(agent, agent.execution._replace(micro_batch=rows))


def set_batch_size(agent, rows: int) -> None:
    """Learn from batches of another size, from the next update on. This changes what is learned.

    Rows that are computed at a time stay; where the batch has no more of them, it is computed at
    once.

    Raises:
        ArgumentError: no whole number of at least 1, more rows than the memory holds, or a network
            that looks at a batch as a whole, where only parts of it would be computed at a time.
    """
    rows = check_count("batch_size", rows, 1)
    limit = getattr(agent.memory, "limit", AUTO)
    if limit not in (AUTO, None) and rows > limit:
        raise ArgumentError(
            f"batch_size={rows} is more than the memory holds, limit={limit}; pass {limit} or less."
        )
    if rows == agent.batch_size:
        return
    if agent.prepared:
        check_possible(agent, agent.execution, rows)
    settle(agent, agent.execution, rows)


def set_updates_per_call(agent, updates: int | None) -> None:
    """Make so many updates in one device call, from the next update on.

    Args:
        updates: a divisor of the agent's `updates`; None for all of them.

    Raises:
        ArgumentError: another number.
    """
    take(agent, agent.execution._replace(updates_per_call=updates))


def take(agent, execution: Execution) -> None:
    """Execute updates like this from the next one on.

    Raises:
        ArgumentError: see `checked` and `check_possible`.
    """
    execution = checked(*execution, agent.batch_size, agent.updates)
    if agent.prepared:
        check_possible(agent, execution, agent.batch_size)
    settle(agent, execution, agent.batch_size)


def settle(agent, execution: Execution, batch_size: int) -> None:
    """Execute updates of such batches so; those that have no more rows than parts, at once."""
    if batch_size != AUTO and execution.rows(batch_size) == batch_size:
        execution = execution._replace(micro_batch=None)
    trainer = agent.trainer
    if trainer is None or not trainer.stuck:
        agent.flush()
    elif trainer.left % execution.per_call(agent.updates):
        raise ArgumentError(
            f"updates_per_call={execution.updates_per_call}: {trainer.left} updates of a step that "
            f"ran out of memory wait to be run again; pass a divisor of {trainer.left} for now."
        )
    agent.execution, agent.batch_size = execution, batch_size
    if agent.prepared:
        agent.trainer.learner.execute(execution, batch_size)


def check_possible(agent, execution: Execution, batch_size: int) -> None:
    """Raise ArgumentError where an agent cannot learn as `execution` would.

    Warns where it learns the same only in distribution. See `splitting.check`.
    """
    if execution.updates_per_call is not None and (agent.learns_on_host or not agent.on_pool):
        raise ArgumentError(
            f"updates_per_call={execution.updates_per_call}: batches come from the host here, and "
            "each update is a call of its own. Leave it out, or use a DeviceMemory and a processor "
            "that can be traced."
        )
    if execution.rows(batch_size) == batch_size:
        return
    if agent.trainer.learner.draws_at_random():
        warnings.warn(
            f"micro_batch={execution.micro_batch}: a network has random layers, such as Dropout, "
            "which draw other numbers for a part than for the whole. The run learns the same in "
            "distribution, but not number for number.",
            stacklevel=4,
        )

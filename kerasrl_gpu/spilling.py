"""`agent.spill`, `agent.pull`, `agent.resize`: where an agent's replay pool lies, and its size."""

from __future__ import annotations

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.planning.budgets import AUTO
from kerasrl_gpu.pool.tiers import DEVICE


def spill(agent, nbytes: int, *, of=DEVICE, to: str | None = None, folder=None) -> int:
    """Move rows of the pool off the device; see `DeviceMemory.spill`."""
    return _pool(agent).spill(nbytes, of=of, to=to, folder=folder)


def pull(agent, nbytes: int | None = None) -> int:
    """Move rows of the pool back to the device; see `DeviceMemory.pull`."""
    return _pool(agent).pull(nbytes)


def resize(agent, limit: int, *, folder=None) -> None:
    """Give the pool another number of rows; see `DeviceMemory.resize`.

    Raises:
        ArgumentError: also where so many rows are less than a batch.
    """
    memory = _pool(agent)
    if agent.batch_size != AUTO and isinstance(limit, int) and limit < agent.batch_size:
        raise ArgumentError(
            f"limit={limit} is less than batch_size={agent.batch_size}; pass "
            f"limit={max(agent.batch_size, memory.least_limit)} or more."
        )
    memory.resize(limit, folder=folder)


def _pool(agent):
    if not agent.on_pool:
        raise ArgumentError(
            f"{type(agent.memory).__name__} has no rows on the device that could move; pass "
            "memory=DeviceMemory(limit) to the agent."
        )
    return agent.memory

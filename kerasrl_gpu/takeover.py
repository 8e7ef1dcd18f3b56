"""The memories that scripts hand in: taken as they are, or taken over by a pool."""

from __future__ import annotations

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.keras_rl import Memory, SequentialMemory
from kerasrl_gpu.memory import DeviceMemory
from kerasrl_gpu.planning.budgets import AUTO
from kerasrl_gpu.pool import ring
from kerasrl_gpu.pool.layout import Field

_DEQUES = ("observations", "actions", "rewards", "terminals")


def adopt(memory, action: Field, batch_size: int) -> Memory:
    """The memory that an agent works with, for the one that was handed in.

    Args:
        memory: a DeviceMemory, keras-rl's SequentialMemory (taken over), another keras-rl Memory.
        action: what one action is.
        batch_size: transitions an update, or "auto".

    Raises:
        ArgumentError: no memory, or one that is smaller than a batch.
    """
    if memory is None:
        raise ArgumentError("memory is missing; pass memory=DeviceMemory(limit=50_000).")
    if not isinstance(memory, Memory):
        raise ArgumentError(
            f"memory={memory!r} is no keras-rl Memory; pass memory=DeviceMemory(limit=50_000)."
        )
    if type(memory) in (SequentialMemory, TakenOver):
        memory = take_over(memory, action)
    elif isinstance(memory, DeviceMemory):
        memory.bind(action)
    limit = getattr(memory, "limit", None)
    if AUTO not in (limit, batch_size) and limit is not None and batch_size > limit:
        raise ArgumentError(
            f"batch_size={batch_size} is more than the memory holds, limit={limit}; "
            f"pass batch_size={limit} or less, or a larger limit."
        )
    return memory


def take_over(memory: SequentialMemory, action: Field, span: int = 1) -> DeviceMemory:
    """A DeviceMemory with the limit, window and contents of a SequentialMemory.

    Of filled deques the row after each terminal one is a final observation. The object handed in
    answers from the pool afterwards.

    Args:
        memory: of exactly keras-rl's class; a subclass has a mind of its own.
        action: what one action is.
        span: n of n-step returns.
    """
    if isinstance(memory, TakenOver):
        memory.device.bind(action, span)
        return memory.device
    device = DeviceMemory(memory.limit, memory.window_length, memory.ignore_episode_boundaries)
    device.bind(action, span)
    rows = list(zip(*(getattr(memory, name) for name in _DEQUES), strict=True))
    if rows:
        _refill(device, rows, cut=len(rows) == memory.limit)
    device.recent_observations.extend(memory.recent_observations)
    device.recent_terminals.extend(memory.recent_terminals)
    for name in _DEQUES:
        del memory.__dict__[name]
    memory.__class__ = TakenOver
    memory.device = device
    return device


def _refill(device, rows, cut):
    device.allocate(rows[0][0])
    if cut:  # what came before the oldest row is gone: it may be a final one, or mid-episode
        device.ring.continue_episode()
    for index, (observation, action, reward, terminal) in enumerate(rows):
        start = not (cut and index < device.window_length)  # no stack reaches the oldest row
        ending = ring.TERMINATED if terminal else 0
        device.stage(observation, action, reward, ending=ending, start=start)
        device.store()


def _from_pool(name):
    return property(lambda self: getattr(self.device, name), doc=f"`{name}` of the pool.")


class TakenOver(SequentialMemory):
    """What a SequentialMemory is after an agent took it over: a view of the agent's pool."""

    observations, actions = _from_pool("observations"), _from_pool("actions")
    rewards, terminals = _from_pool("rewards"), _from_pool("terminals")
    nb_entries = _from_pool("nb_entries")

    def sample(self, batch_size, batch_idxs=None):
        """See `DeviceMemory.sample`."""
        return self.device.sample(batch_size, batch_idxs)

    def append(self, observation, action, reward, terminal, training=True):
        """See `DeviceMemory.append`."""
        self.device.append(observation, action, reward, terminal, training)

    def get_recent_state(self, current_observation):
        """See `DeviceMemory.get_recent_state`."""
        return self.device.get_recent_state(current_observation)

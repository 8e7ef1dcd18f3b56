"""From steps to rows: what an agent saw, did and got, and where its episode stands."""

from __future__ import annotations

import warnings

from kerasrl_gpu.errors import EmptyPool
from kerasrl_gpu.memory import DeviceMemory
from kerasrl_gpu.observations import as_reward
from kerasrl_gpu.pool import ring


class Recorder:
    """Stores an agent's steps in its memory: stages them on a pool, appends them elsewhere.

    Args:
        memory: a keras-rl Memory.
        bootstrap_truncated: whether a truncated episode's last value counts.

    Attributes:
        on_pool: whether the memory is a DeviceMemory.
        ended: whether the last step ended its episode; the next one only shows its last state.
    """

    def __init__(self, memory, bootstrap_truncated: bool):
        self.memory = memory
        self._warns_of_truncation = bootstrap_truncated
        self.on_pool = isinstance(memory, DeviceMemory)
        self.ended = False
        self._open = None  # what an episode that is still open shows last
        self._enough = False

    def record(
        self, observation, action, reward, terminal, *, truncated, start, step, training, checked
    ) -> bool:
        """Store a step, or stage it on the pool for the next compiled call.

        Args:
            truncated: whether a terminal step only ran out of time.
            start: whether a transition may start here; a terminal step always may.
            step: the agent's counter.
            training: False only remembers the observation for the acting window.
            checked: the observation passed the spec before.

        Returns:
            whether this only showed the last state of an episode; it is stored then.
        """
        closing, self.ended = self.ended, bool(terminal)
        if not training and hasattr(self.memory, "remember"):
            self.memory.remember(observation, terminal)
        elif not self.on_pool:
            if terminal and truncated:
                self._warn_of_truncation()
            self.memory.append(observation, action, reward, terminal, training=training)
        else:
            self.memory.settle()
            ending = ring.TRUNCATED if truncated else ring.TERMINATED
            self.memory.stage(
                observation,
                action,
                as_reward(reward, step),
                ending=ending if terminal else 0,
                start=start or bool(terminal),
                step=step,
                checked=checked,
            )
            self.memory.remember(observation, terminal)
            if closing:
                self.memory.store()
        return closing

    def _warn_of_truncation(self) -> None:
        if self._warns_of_truncation:
            self._warns_of_truncation = False
            warnings.warn(
                f"{type(self.memory).__name__} cannot tell an episode that ran out of time from "
                "one that ended: its last state's value does not count. A DeviceMemory can; "
                "truncation='terminal' says that it shall be so.",
                stacklevel=5,
            )

    def check_can_sample(self, batch_size: int) -> None:
        """Raise EmptyPool unless the pool holds a transition; warn where it holds fewer rows."""
        try:
            self.memory.check_can_sample()
        except EmptyPool:
            self.memory.store()  # the row that came with this step is not lost
            raise
        if not self._enough and self.memory.nb_entries < batch_size:
            warnings.warn(
                f"{self.memory.nb_entries} rows are stored, fewer than batch_size={batch_size}: "
                "batches repeat rows. A longer nb_steps_warmup avoids it.",
                stacklevel=5,
            )
        self._enough = True  # or warned of; rows never become fewer

    def begin_run(self, recent_observation) -> None:
        """Close an episode that was left open as truncated, and forget the acting window."""
        if self.on_pool:
            self.memory.close_episode(recent_observation if self._open is None else self._open)
        self.forget()
        self._open = None

    def forget(self) -> None:
        """Start a new acting window; what is stored stays."""
        if self.on_pool:
            self.memory.forget_window()
        self.ended = False

    def leave_open(self, observation) -> None:
        """Note what an episode that is still open shows last; None if none is."""
        self._open = observation

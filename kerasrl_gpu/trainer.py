"""The training state and its calls: act, learn, and a queued step that waits for the next act."""

from __future__ import annotations

import numpy as np

from kerasrl_gpu import engine
from kerasrl_gpu.mirror import Mirror
from kerasrl_gpu.state import TrainState


class Trainer:
    """Holds the one current TrainState and runs a `Learner`'s programs on it.

    A step that is queued runs together with the next `act`, in one device call, or when somebody
    asks for the state.

    Args:
        mirror: the user's Keras objects.
        seed: of the draws; draw number n belongs to update n.
        updates: updates a queued step runs, K.
    """

    def __init__(self, mirror: Mirror, seed: int, updates: int):
        self.mirror, self.learner = mirror, None
        self.nb_updates = 0
        self._seed, self._updates = seed, updates
        self._state, self._queued = mirror.start(), None

    @property
    def state(self) -> TrainState:
        """The state with all queued work done. The next call consumes it: keep no copy."""
        self.flush()
        return self._state

    def publish(self) -> None:
        """Give the user's Keras objects what training has made of them."""
        self.mirror.publish(self.state)

    def take_weights(self) -> None:
        """Take what the user's models hold, if anybody changed it since the last `publish`."""
        self._state = self.mirror.take(self.state)

    def copy_targets(self) -> None:
        """Give every target its network's weights."""
        self._state = self.mirror.copy_targets(self.state)

    def act(self, memory) -> np.ndarray:
        """What the networks say to the state in the memory's wire, f32[A], after queued work."""
        if self._queued is not None:
            return self._run()
        return engine.to_host(self.learner.act(memory)(self._state, memory.wire))

    def infer(self, seen) -> np.ndarray:
        """What the networks say to observations on the host, f32[B, A]."""
        return engine.to_host(self.learner.infer()(self.state, seen))

    def queue(self, memory, what, done, copy_targets: bool) -> None:
        """Let the staged row, and an update if `what` names networks, wait for the next call.

        Args:
            memory: a DeviceMemory with a staged row.
            what: networks that learn; empty to store the row only.
            done: called with the update's numbers, f32[M] as a list.
            copy_targets: whether a hard target update follows.
        """
        if what:
            counters = memory.wire.view
            counters["seed"][...] = self._seed % 2**32
            counters["draw"][...] = self.nb_updates % 2**32
        self._queued = (memory, what, done, copy_targets)

    def flush(self) -> None:
        """Run what is queued; nothing if there is none."""
        if self._queued is not None:
            self._run()

    def _run(self) -> np.ndarray:
        (memory, what, done, copy_targets), self._queued = self._queued, None
        if what:
            self._state = self.mirror.refresh(self._state)
        program = self.learner.step(memory, what)
        self._state, memory.pool, out = program(self._state, memory.pool, memory.wire)
        values = engine.to_host(out)
        if what:
            self.nb_updates += self._updates
            cut = len(values) - self.learner.nb_metrics
            done(values[cut:].tolist())
            values = values[:cut]
        if copy_targets:
            self.copy_targets()
        return values

    def learn(self, what, batch) -> list:
        """One update from a batch on the host; the update's numbers."""
        self._state = self.mirror.refresh(self.state)
        self._state, numbers = self.learner.learn(what)(self._state, batch)
        self.nb_updates += 1
        return engine.to_host(numbers).tolist()

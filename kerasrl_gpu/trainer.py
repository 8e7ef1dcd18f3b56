"""The training state and its calls: act, learn, and a queued step that waits for the next act."""

from __future__ import annotations

import numpy as np

from kerasrl_gpu import engine
from kerasrl_gpu.mirror import Mirror
from kerasrl_gpu.state import TrainState


class Trainer:
    """Holds the one current TrainState and runs a `Learner`'s programs on it.

    A step is queued; it runs together with the next `act`, in one device call, or when somebody
    asks for the state. Where the next observation is known already, `launch` starts that call, and
    the host goes on until it needs the answer.

    Args:
        mirror: the user's Keras objects.
        seed: of the draws; draw number n belongs to update n.
        updates: updates a queued step runs, K.
    """

    def __init__(self, mirror: Mirror, seed: int, updates: int):
        self.mirror, self.learner = mirror, None
        self.nb_updates = 0
        self.seed, self._updates = seed, updates
        self.loss = 0.0  # the last update's
        self.values = None  # what the last call that acted said, f32[A]
        self._state = mirror.start()
        self._queued = self._running = None

    @property
    def state(self) -> TrainState:
        """The state with all queued work done. The next call consumes it: keep no copy."""
        self.flush()
        self._state = engine.unpack(self._state)
        return self._state

    def get_state(self) -> dict:
        """Weights, targets, slots and counters, with host arrays; all queued work is done."""
        self._state = self._refreshed(self.state)
        return {**self.mirror.get_state(self._state), "nb_updates": self.nb_updates}

    def check(self, saved: dict) -> None:
        """Raise CheckpointError unless `set_state` can take it."""
        self.mirror.check(self.state, saved)

    def set_state(self, saved: dict, rates: bool = True) -> None:
        """Go on where `get_state` was called, on this backend or another.

        Args:
            rates: whether the learning rates are taken over, too.

        Raises:
            CheckpointError: other networks or another optimizer; nothing has changed then.
        """
        self._state = self.mirror.set_state(self.state, saved, rates)
        self.nb_updates, self.loss = saved["nb_updates"], 0.0
        self.publish()  # what the user's models held before does not count any more

    def set_weights(self, online: dict, target: dict | None = None) -> None:
        """Take networks, and targets where they are given, from `get_state`'s parts.

        Raises:
            CheckpointError: other networks; nothing has changed then.
        """
        self._state = self.mirror.set_state(self.state, {"online": online, "target": target})
        self.publish()

    def publish(self) -> None:
        """Give the user's Keras objects what training has made of them."""
        self.mirror.publish(self.state)

    def take_weights(self) -> bool:
        """Take what the user's models hold, and say if anybody changed it since `publish`."""
        before = self.state
        self._state = self.mirror.take(before)
        return self._state is not before

    def copy_targets(self) -> None:
        """Give every target its network's weights."""
        self._state = self.mirror.copy_targets(self.state)

    def act(self, memory) -> np.ndarray:
        """What the networks say to the state in the memory's wire, f32[A], after queued work."""
        if self._queued is None:
            return engine.to_host(self.learner.act(memory)(self.state, memory.wire))
        self.launch()
        return self.answer()

    def probe(self, seen) -> np.ndarray:
        """What every network says to observations on the host, f32[B, P]."""
        return engine.to_host(self.learner.probe()(self.state, seen))

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
            counters["seed"][...] = self.seed % 2**32
            counters["draw"][...] = self.nb_updates % 2**32
        self._queued = (memory, what, done, copy_targets)

    def launch(self) -> None:
        """Start what is queued, with the state in the memory's wire to act on."""
        (memory, what, done, copy_targets), self._queued = self._queued, None
        if what:
            self._state = self._refreshed(self._state)
        before = self._updates // self.learner.updates_per_call - 1 if what else 0
        numbers = [self._run_one_of_many(memory, what) for _ in range(before)]
        self._running = (self._call(memory, what), done if what else None, numbers)
        if what:
            self.nb_updates += self._updates
        if copy_targets:
            self._state = self.mirror.copy_targets(engine.unpack(self._state))

    def _call(self, memory, what):
        """One call of the program for what the wire says; what it returns."""
        program = self.learner.step(memory, what)
        if memory.tiers is None:
            self._state, memory.pool, out = program(self._state, memory.pool, memory.wire)
        else:
            staged = memory.stage_batches(self.learner, what)
            self._state, _, out = program(self._state, staged, memory.wire)
        return out

    def _run_one_of_many(self, memory, what) -> list:
        """One of the calls that share the updates of a step, not the last; its numbers.

        Each writes the step's row to its place again.
        """
        numbers = engine.to_host(self._call(memory, what))[-self.learner.nb_metrics :]
        memory.wire.view["draw"] += np.uint32(self.learner.updates_per_call)  # it is free by now
        return numbers

    def answer(self) -> np.ndarray:
        """What the networks said in the last call that was launched, f32[A]."""
        self.flush()
        return self.values

    def flush(self) -> None:
        """Run what is queued and wait for what runs; nothing if there is none."""
        if self._queued is not None:
            self.launch()
        if self._running is None:
            return
        (out, done, earlier), self._running = self._running, None
        values = engine.to_host(out)
        if done is not None:
            cut = len(values) - self.learner.nb_metrics
            numbers, values = values[cut:], values[:cut]
            if earlier:
                numbers = np.mean([*earlier, numbers], axis=0)
            self.loss = float(numbers[0])
            done(numbers.tolist())
        self.values = values

    def learn(self, what, batch) -> list:
        """One update from a batch on the host; the update's numbers."""
        state = self._refreshed(self.state)
        self._state, numbers = self.learner.learn(what)(state, batch)
        self.nb_updates += 1
        numbers = engine.to_host(numbers).tolist()
        self.loss = numbers[0]
        return numbers

    def _refreshed(self, state):
        """The state with learning rates that somebody has set on the Keras optimizers since."""
        return self.mirror.refresh(engine.unpack(state)) if self.mirror.rates_changed() else state

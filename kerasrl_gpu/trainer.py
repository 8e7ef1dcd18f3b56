"""The training state and its calls: act, learn, and a queued step that waits for the next act."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np

from kerasrl_gpu import engine
from kerasrl_gpu.errors import OutOfMemory, StateLost, in_words
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

    Attributes:
        careful: whether calls that learn or write run as their twins, which a failed allocation
            cannot take the state from; slower, and the state takes twice its memory meanwhile.
        guarded: whether the first call of every program is such a one.
        on_exhausted: called with the error when such a call has run out of memory. Where it says
            True it has made room, by `agent.set_micro_batch` for instance, and the call is run
            again. It must not save or act: the step is not over.
        stuck: whether the queued step has run out of memory. The next flush runs it again.
        left: updates of the queued step that are still to be made.
    """

    def __init__(self, mirror: Mirror, seed: int, updates: int):
        self.mirror, self.learner = mirror, None
        self.nb_updates = 0
        self.seed, self._updates = seed, updates
        self.loss = 0.0  # the last update's
        self.values = None  # what the last call that acted said, f32[A]
        self._state = mirror.start()
        self._queued = self._running = None
        self.careful = self.guarded = self.stuck = False
        self.on_exhausted: Callable[[Exception], bool] | None = None
        self.left, self._numbers = 0, []  # what the queued step's calls have reported so far
        self._proven = weakref.WeakSet()  # programs that have run once; they hold the pool

    @property
    def state(self) -> TrainState:
        """The state with all queued work done. The next call consumes it: keep no copy."""
        self.flush()
        self._state = engine.unpack(self._state)
        return self._state

    def restart(self) -> None:
        """Begin again with what the user's models and optimizers hold, for want of better."""
        self._queued = self._running = None
        self.stuck, self._state = False, self.mirror.start()

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
        self.left, self._numbers = self._updates if what else 0, []

    def launch(self) -> None:
        """Start what is queued, with the state in the memory's wire to act on.

        Raises:
            OutOfMemory: it stays queued, without those of its updates that are made.
            StateLost: see there.
        """
        queued, self._queued = self._queued, None
        memory, what, done, copy_targets = queued
        if what:
            self._state = self._refreshed(self._state)
        try:
            while self.left > self.learner.updates_per_call:
                self._run_one_of_many(memory, what)
            out = self._run(memory, what)
        except OutOfMemory:
            self._queued = queued
            raise
        self._running = (out, done if what else None, self._numbers)
        if what:
            self.nb_updates += self._updates
        if copy_targets:
            self._state = self.mirror.copy_targets(engine.unpack(self._state))

    def _run_one_of_many(self, memory, what) -> None:
        """One of the calls that share the updates of a step, not the last.

        Each writes the step's row to its place again.
        """
        numbers = self._heard(self._run(memory, what))  # the wire is free then
        self._numbers.append(numbers[-self.learner.nb_metrics :])
        memory.wire.view["draw"] += np.uint32(self.learner.updates_per_call)
        self.left -= self.learner.updates_per_call

    def _run(self, memory, what):
        """One call; what it said, f32[A + M]."""

        def call(program, careful):
            tiers = memory.tiers is not None
            if not tiers and careful:
                memory.store()
            pool = memory.stage_batches(self.learner, what) if tiers else memory.pool
            if careful:
                self._state, out = program.twin(self._state, pool, memory.wire)
            elif tiers:
                self._state, _, out = program(self._state, pool, memory.wire)
            else:
                self._state, memory.pool, out = program(self._state, pool, memory.wire)
            return out

        return self._attempt(
            lambda: self.learner.step(memory, what), call, lambda: (self._state, memory.pool)
        )

    def _attempt(self, find, call, given):
        """What a program's call returns, once there is memory for it.

        Args:
            find: () -> the program, as updates are executed now.
            call: (program, whether its twin runs) -> the result.
            given: () -> what a donating call consumes.

        Raises:
            OutOfMemory, StateLost.
        """
        while True:
            program = find()
            careful = self.careful or (self.guarded and program not in self._proven)
            try:
                out = call(program, careful)
            except Exception as error:
                if not engine.is_exhausted(error):
                    raise
                if not (careful or engine.survived(given())):
                    raise StateLost(_LOST.format(_first_line(error))) from error
                self.stuck = True
                if self.on_exhausted is None or not self.on_exhausted(error):
                    raise OutOfMemory(self._sentence(error)) from error
            else:
                self.stuck = False
                self._proven.add(program)
                return out

    def _heard(self, out) -> np.ndarray:
        """`out` on the host; JAX tells only now of a call that failed after it had begun."""
        try:
            return engine.to_host(out)
        except Exception as error:
            if engine.is_exhausted(error):
                raise StateLost(_LOST.format(_first_line(error))) from error
            raise

    def _sentence(self, error) -> str:
        size = self.learner.batch_size
        rows = self.learner.execution.rows(size)
        return (
            f"an update that computes {rows} of batch_size={size} rows at a time ran out of memory "
            f"({_first_line(error)}). Nothing was lost: weights, optimizer and pool are as before, "
            f"and the step waits to be run again. Call agent.set_micro_batch({max(1, rows // 2)}) "
            "and go on, or start with a smaller pool (DeviceMemory(limit=...))."
        )

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
        values = self._heard(out)
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
        self._state, numbers = self._attempt(
            lambda: self.learner.learn(what),
            lambda program, careful: (program.twin if careful else program)(state, batch),
            lambda: state,
        )
        self.nb_updates += 1
        numbers = self._heard(numbers).tolist()
        self.loss = numbers[0]
        return numbers

    def _refreshed(self, state):
        """The state with learning rates that somebody has set on the Keras optimizers since."""
        return self.mirror.refresh(engine.unpack(state)) if self.mirror.rates_changed() else state


_LOST = (
    "a device call ran out of memory after it had begun to overwrite the training state "
    "({}). What the models hold is old or half an update, and the pool is empty; "
    "agent.fit(..., resume=path) goes on from the newest checkpoint."
)


def _first_line(error) -> str:
    return in_words(error).splitlines()[0][:200]

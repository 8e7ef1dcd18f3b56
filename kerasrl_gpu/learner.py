"""The compiled calls of one agent: act; write and act; write, learn and act; learn from a batch."""

from __future__ import annotations

from functools import partial

from keras import ops

from kerasrl_gpu import engine
from kerasrl_gpu.execution import AT_ONCE
from kerasrl_gpu.pool import transitions, uniform
from kerasrl_gpu.pool.ring import Live
from kerasrl_gpu.pool.tiers import unstage
from kerasrl_gpu.updates.batches import Batch

_STEP, _WRITE = "step", "write"  # the calls that touch the pool


class Learner:
    """Compiles an agent's pure functions once each, and counts the traces.

    Args:
        update: what -> ((state, updates.batches.Batch) -> (state, f32[M])); `what` says which
            networks learn.
        act: (state, seen) -> f32[B, A].
        rule: how transitions are read.
        batch_size: B.
        updates: updates that are due at once.
        probe: (state, seen) -> f32[B, P], what every network says; None is `act`.
        process: seen -> seen inside the compiled call; a traced `Processor.process_state_batch`.
        nb_metrics: numbers that an update reports, M.
        convolutional: whether any network convolves.
        draws: () -> whether a random layer learns; raises where a batch cannot be computed in
            parts. Asked once, before the first batch that is.
        execution: how updates are executed; see `execute`.

    Attributes:
        batch_size, execution: as they are now.
        updates_per_call: updates in one call of `step`, K.
    """

    def __init__(
        self,
        *,
        update,
        act,
        rule,
        batch_size,
        updates,
        process,
        nb_metrics,
        convolutional,
        probe=None,
        draws=None,
        execution=AT_ONCE,
    ):
        self._update, self._act, self._probe, self._process = update, act, probe or act, process
        self._rule, self._updates = rule, updates
        self.nb_metrics, self._convolutional = nb_metrics, convolutional
        self._draws, self._drawn = draws, None
        self._programs, self._made_for = {}, batch_size
        self.execute(execution, batch_size)

    @property
    def traces(self) -> dict:
        """Program -> how often it was traced; 1 each while no shape changes."""
        found = {}
        for (call, *parts), program in self._programs.items():
            name = " ".join([call, *(str(part) for part in parts if part)])
            twin = getattr(program, "twin", None)
            found[name] = program.traces
            if twin is not None and twin.traces:
                found[f"{name} twin"] = twin.traces
        return found

    @property
    def span(self) -> int:
        """n of n-step returns."""
        return self._rule.span

    def execute(self, execution, batch_size: int) -> None:
        """Execute updates of batches of this size so, from the next call on."""
        self.execution, self.batch_size = execution, batch_size
        self.updates_per_call = execution.per_call(self._updates)
        numbers = execution._asdict()
        if batch_size != self._made_for:
            numbers["batch_size"] = batch_size
        # one program of another's networks: a step costs by what is looked up
        self._label = ", ".join(f"{name}={number}" for name, number in numbers.items() if number)

    def draws_at_random(self) -> bool:
        """Whether a batch in parts draws other numbers than a whole one; see `splitting.check`."""
        if self._drawn is None:
            self._drawn = self._draws()
        return self._drawn

    def _compiled(self, call, make, *parts):
        key = (call, *parts)
        if key not in self._programs:
            self._programs[key] = make()
        return self._programs[key]

    def forget_pool(self, resized: bool = False) -> None:
        """Let go of a pool that compiled calls hold; the next ones are compiled anew.

        Args:
            resized: whether another one comes, which calls that hold none do not fit, either.
        """
        if not (resized or engine.HOLDS_POOL):
            return
        for key in [key for key in self._programs if key[0] in (_STEP, _WRITE)]:
            del self._programs[key]

    def act(self, memory):
        """program(state, wire) -> f32[A] for the state that the wire shows."""
        return self._compiled(
            "act",
            lambda: engine.compile_act(
                self._act_on_wire(memory), convolutional=self._convolutional
            ),
        )

    def step(self, memory, what):
        """program(state, pool, wire) -> (state, pool, f32[A + M]).

        Where the rows lie on several tiers, `pool` is what `Tiers.stage` returns, and only read.

        Args:
            memory: a DeviceMemory that has its pool.
            what: which networks learn; falsy writes and acts only.
        """
        return self._compiled(
            _STEP if what else _WRITE,
            lambda: self._made_step(
                memory, what, self.batch_size, self.execution, memory.row_to_write
            ),
            *((what, self._label) if what else ()),
            "of tiers" if memory.tiers is not None else None,
        )

    def trial(self, memory, what, batch_size, execution):
        """As `step`, executed otherwise, and without the row: the pool is only read.

        It is not kept, and whoever made it drops it.
        """
        return self._made_step(memory, what, batch_size, execution, row=None)

    def _made_step(self, memory, what, batch_size, execution, row):
        return engine.compile_step(
            self._learn_from_pool(memory, what, batch_size, execution) if what else None,
            self._act_on_wire(memory),
            row,
            updates=execution.per_call(self._updates) if what else 0,
            convolutional=self._convolutional,
        )

    def learn(self, what):
        """program(state, batch of host arrays) -> (state, f32[M])."""
        return self._compiled(
            "learn",
            lambda: engine.compile_learn(
                self._learn_from_rows(what), convolutional=self._convolutional
            ),
            what,
            self._label,
        )

    def infer(self):
        """program(state, seen as host arrays) -> f32[B, A]."""
        return self._compiled(
            "infer", lambda: engine.compile_infer(self._act, convolutional=self._convolutional)
        )

    def probe(self):
        """program(state, seen as host arrays) -> f32[B, P]."""
        return self._compiled(
            "probe", lambda: engine.compile_infer(self._probe, convolutional=self._convolutional)
        )

    def _act_on_wire(self, memory):
        wire, leaves = memory.wire, memory.layout.leaves

        def act(state, message):
            seen = {name: wire.read(message, f"see/{name}")[None] for name in leaves}
            return self._act(state, self._process(bare(seen)))[0]

        return act

    def _learn_from_pool(self, memory, what, size, execution):
        if memory.tiers is not None:
            return self._learn_from_staged(memory.layout, what, size, execution)
        wire, layout, rule, update = memory.wire, memory.layout, self._rule, self._update(what)
        at_once = execution.rows(size)

        def draw(pool, message, offset):
            live = Live(wire.read(message, "tail"), wire.read(message, "size"))
            counter = engine.counter(wire.read(message, "draw"), offset)
            seed = wire.read(message, "seed")
            return live, uniform.sample(pool, layout, live, seed, counter, size, rule.span)

        def read(pool, live, starts, first, count):
            part = [ops.slice(start, (first,), (count,)) for start in starts]
            return transitions.read(pool, layout, live, *part, rule)

        def draw_and_read(pool, message, offset):
            live, starts = draw(pool, message, offset)
            return transitions.read(pool, layout, live, *starts, rule)

        def learn(state, pool, message, offset):
            if at_once == size:  # one kernel on TensorFlow
                rows = self._processed(engine.cluster(draw_and_read)(pool, message, offset))
                return update(state, Batch.of(rows, size))
            live, starts = engine.cluster(draw)(pool, message, offset)

            def rows(first, count):
                some = engine.cluster(partial(read, count=count))
                return self._processed(some(pool, live, starts, first))

            return update(state, Batch(rows, size, at_once, unroll=self._convolutional))

        return learn

    def _learn_from_staged(self, layout, what, size, execution):
        rule, update, at_once = self._rule, self._update(what), execution.rows(size)
        read = engine.cluster(lambda rows: transitions.of_rows(rows, layout, rule))

        def learn(state, staged, message, offset):
            index = ops.reshape(ops.cast(offset, "int32"), (1,))
            drawn = unstage(staged, layout, size, rule.span, index)

            def rows(first, count):
                shape = count, *drawn.shape[1:]
                return self._processed(read(ops.slice(drawn, (first, 0, 0), shape)))

            if at_once == size:
                return update(state, Batch.of(self._processed(read(drawn)), size))
            return update(state, Batch(rows, size, at_once, unroll=self._convolutional))

        return learn

    def _processed(self, rows):
        for key in ("observation", "next_observation"):
            rows[key] = self._process(bare(rows[key]))
        return rows

    def _learn_from_rows(self, what):
        update, size, unroll = self._update(what), self.batch_size, self._convolutional
        at_once = self.execution.rows(size)
        return lambda state, rows: update(state, Batch.of(rows, size, at_once, unroll))


def bare(leaves: dict):
    """A plain array where the observation is one."""
    return leaves["observation"] if list(leaves) == ["observation"] else leaves

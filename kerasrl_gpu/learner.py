"""The compiled calls of one agent: act; write and act; write, learn and act; learn from a batch."""

from __future__ import annotations

from kerasrl_gpu import engine
from kerasrl_gpu.pool import transitions, uniform
from kerasrl_gpu.pool.ring import Live


class Learner:
    """Compiles an agent's pure functions once each, and counts the traces.

    Args:
        update: what -> ((state, batch) -> (state, f32[M])); `what` says which networks learn.
        act: (state, seen) -> f32[B, A].
        rule: how transitions are read.
        batch_size: B.
        updates: updates a call, K.
        probe: (state, seen) -> f32[B, P], what every network says; None is `act`.
        process: seen -> seen inside the compiled call; a traced `Processor.process_state_batch`.
        nb_metrics: numbers that an update reports, M.
        convolutional: whether any network convolves.
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
    ):
        self._update, self._act, self._probe, self._process = update, act, probe or act, process
        self._rule, self._batch_size, self._updates = rule, batch_size, updates
        self.nb_metrics, self._convolutional = nb_metrics, convolutional
        self._programs = {}

    @property
    def traces(self) -> dict:
        """Program -> how often it was traced; 1 each while no shape changes."""
        return {
            f"{call} {what}" if what else call: program.traces
            for (call, what), program in self._programs.items()
        }

    def _compiled(self, call, make, what=()):
        program = self._programs.get((call, what))
        if program is None:
            program = self._programs[call, what] = make()
        return program

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

        Args:
            memory: a DeviceMemory that has its pool.
            what: which networks learn; falsy writes and acts only.
        """
        return self._compiled(
            "step" if what else "write",
            lambda: engine.compile_step(
                self._learn_from_pool(memory, what) if what else None,
                self._act_on_wire(memory),
                memory.wire.row,
                updates=self._updates if what else 0,
                convolutional=self._convolutional,
            ),
            what,
        )

    def learn(self, what):
        """program(state, batch of host arrays) -> (state, f32[M])."""
        return self._compiled(
            "learn",
            lambda: engine.compile_learn(self._update(what), convolutional=self._convolutional),
            what,
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
            return self._act(state, self._process(_bare(seen)))[0]

        return act

    def _learn_from_pool(self, memory, what):
        wire, layout, rule, update = memory.wire, memory.layout, self._rule, self._update(what)

        def draw_batch(pool, message, offset):
            live = Live(wire.read(message, "tail"), wire.read(message, "size"))
            draw = engine.counter(wire.read(message, "draw"), offset)
            starts = uniform.sample(
                pool, layout, live, wire.read(message, "seed"), draw, self._batch_size, rule.span
            )
            return transitions.read(pool, layout, live, *starts, rule)

        def learn(state, pool, message, offset):
            batch = engine.cluster(draw_batch)(pool, message, offset)
            for key in ("observation", "next_observation"):
                batch[key] = self._process(_bare(batch[key]))
            return update(state, batch)

        return learn


def _bare(leaves: dict):
    """A plain array where the observation is one."""
    return leaves["observation"] if list(leaves) == ["observation"] else leaves

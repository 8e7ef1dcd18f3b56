"""Updates of an agent that leave no trace, on a borrowed state: what each takes, how fast it is."""

from __future__ import annotations

import contextlib

from kerasrl_gpu import engine
from kerasrl_gpu.errors import TuningStopped
from kerasrl_gpu.execution import Execution
from kerasrl_gpu.planning.plan import nbytes
from kerasrl_gpu.tuning.points import Point
from kerasrl_gpu.wire import StepWire


class Trials:
    """Runs and weighs device calls of an agent that learn for nothing.

    Weights, targets, slots, seeds and counters are a copy's; the pool is read and never written.

    Args:
        agent: prepared, with a pool that has transitions.
        state: a TrainState to compute with; see `engine.borrowed`.
    """

    def __init__(self, agent, state):
        self._agent, self._state = agent, state
        self._what = tuple(agent.networks())
        self._wire = _wire(agent)
        self._programs = {}
        plan = agent.plan()
        # what is there whatever is computed: the agent, its pool, the state to compute with
        self.held_bytes = plan.persistent_bytes + plan.pool_bytes + nbytes(engine.leaves(state))

    def peak_bytes(self, point: Point) -> int:
        """Bytes in use at the peak of one call: planned, or more where that is told.

        JAX tells what the compiler gives out, which on a CPU is not all that its kernels take;
        TensorFlow on a GPU what its allocator did. A process' resident memory would tell
        compilation and earlier peaks.
        """
        plan = self._agent.plan(batch_size=point.batch, micro_batch=point.micro_batch)
        told = self._program(point).extra_bytes(self._state, self._agent.memory.pool, self._wire)
        return self.held_bytes + max(plan.step_bytes, told or 0)

    @contextlib.contextmanager
    def run(self, point: Point):
        """A function of nothing: one call, which has ended when it returns."""
        program = self._program(point)

        def call():
            if self._agent.runs.is_stopping:
                raise TuningStopped("the run was asked to stop; tuning ends, and nothing changed.")
            self._state, _, out = program(self._state, self._agent.memory.pool, self._wire)
            engine.to_host(out)

        try:
            yield call
        finally:
            self._programs.pop(point, None)

    def _program(self, point):
        if point not in self._programs:
            execution = Execution(point.micro_batch, point.fused)
            self._programs[point] = self._agent.trainer.learner.trial(
                self._agent.memory, self._what, point.batch, execution
            )
        return self._programs[point]


@contextlib.contextmanager
def trials(agent):
    """`Trials` of an agent, which is afterwards what it was, whatever is raised inside."""
    agent.flush()
    with engine.borrowed(agent.trainer.state) as state:
        yield Trials(agent, state)


def _wire(agent) -> StepWire:
    """A message of its own: the pool's live rows, the agent's seed, and a state of zeros to see."""
    wire, live = StepWire(agent.memory.layout), agent.memory.ring.live()
    wire.view["tail"][...], wire.view["size"][...] = live.tail, live.size
    wire.view["seed"][...] = agent.trainer.seed % 2**32
    return wire

"""`Agent`: keras-rl's agent over the engine. It owns the state; its agents say what to learn."""

from __future__ import annotations

import math
import warnings
from functools import partial

import keras
import numpy as np

from kerasrl_gpu import execution, host, keras_rl, loop, pausing, planning, sizing, spilling
from kerasrl_gpu.errors import (
    ArgumentError,
    NotCompiled,
    ObservationError,
    check_count,
    check_number,
)
from kerasrl_gpu.measures import Metrics
from kerasrl_gpu.mirror import Mirror, with_weights
from kerasrl_gpu.pool.layout import Field
from kerasrl_gpu.pool.transitions import Rule
from kerasrl_gpu.recorder import Recorder
from kerasrl_gpu.resume import architecture, counters, restoring, saving
from kerasrl_gpu.resume.report import Report
from kerasrl_gpu.runs import Runs
from kerasrl_gpu.state import TrainState
from kerasrl_gpu.takeover import adopt
from kerasrl_gpu.trainer import Trainer
from kerasrl_gpu.tuning.agents import tune


class Agent(keras_rl.Agent):
    """What DQN, DDPG and their kin share: the memory, the state, one device call a step.

    An agent's class fills in `compile` (which calls `_start`), `forward`, `_what` and its pure
    functions; nothing here calls keras-rl's abstract methods.

    Args:
        memory: DeviceMemory, keras-rl's SequentialMemory (taken over), or any other keras-rl
            Memory, which is honoured through its own `sample`, on the host.
        processor: keras-rl Processor.
        seed: makes a run repeatable: draws, exploration by our policies and noise, the first
            reset of the environment. None takes one from NumPy's global generator, so that
            `np.random.seed` at the top of a keras-rl script still does what it did.
        updates: K updates in one call whenever one is due; the replay ratio is
            updates / train_interval.
        batch_size: transitions an update. "auto": the most, up to 256, that the memory's budget
            leaves room for; with BatchTuner(free=True) what that measures.
        micro_batch: rows of a batch that are computed at a time; None for all. See
            `set_micro_batch`.
        updates_per_call: updates in one device call, a divisor of `updates`; None for all.
        truncation: "bootstrap" lets the value of a truncated episode's last state count;
            "terminal" is keras-rl's old way.
        gamma, train_interval, memory_interval, target_model_update, delta_range, delta_clip,
            custom_model_objects: as in keras-rl.
    """

    def __init__(
        self,
        *,
        memory,
        processor,
        gamma,
        batch_size,
        train_interval,
        memory_interval,
        target_model_update,
        delta_range,
        delta_clip,
        custom_model_objects,
        seed,
        updates,
        truncation,
        micro_batch,
        updates_per_call,
    ):
        if isinstance(processor, type):
            raise ArgumentError(
                f"processor is the class {processor.__name__}; pass an instance, "
                f"processor={processor.__name__}()."
            )
        super().__init__(processor)
        if delta_range is not None:
            warnings.warn(
                f"delta_range is deprecated: using delta_clip={delta_range[1]}", stacklevel=3
            )
            delta_clip = delta_range[1]
        if truncation not in ("bootstrap", "terminal"):
            raise ArgumentError(f"truncation={truncation!r}; pass 'bootstrap' or 'terminal'.")
        self.target_model_update = _target_model_update(target_model_update)
        self.gamma = check_number(
            "gamma", gamma, lambda g: 0 <= g <= 1, "a discount between 0 and 1"
        )
        self.delta_clip = check_number(
            "delta_clip", delta_clip, lambda d: d > 0, "a number above 0, or np.inf"
        )
        self.batch_size = sizing.checked_batch_size(batch_size)
        self.is_tuned = self.batch_is_free = False  # see `expect_tuning`
        self.train_interval = check_count("train_interval", train_interval, 1)
        self.memory_interval = check_count("memory_interval", memory_interval, 1)
        self.updates = check_count("updates", updates, 1)
        self.execution = execution.checked(
            micro_batch, updates_per_call, self.batch_size, self.updates
        )
        self.custom_model_objects, self.truncation = dict(custom_model_objects or {}), truncation
        if seed is not None:
            seed = check_count("seed", seed)
        # the global generator on purpose: np.random.seed at a script's top still decides
        self.seed = int(np.random.randint(2**31) if seed is None else seed)  # noqa: NPY002
        self.compiled, self.stop_training, self.stop_reason = False, False, None
        self.in_loop = False  # inside fit or test
        # of the step that ends here, set by `loop`: whether time ran out, and what is seen next
        self.truncated, self.upcoming = False, None
        self.recent_observation = self.recent_action = None
        self._given_memory, self.memory = memory, None
        self.rule = Rule(gamma=self.gamma, bootstrap_truncated=truncation == "bootstrap")
        self.trainer, self.prepared = None, False
        self.acts_separately = self.learns_on_host = False
        self.shown = None  # the observation that the running call answers
        self.traced_as = None
        self.runs = Runs(self, seeded=seed is not None)

    # The memory and the compiled calls ------------------------------------------------------------

    def _take_memory(self, action: Field) -> None:
        """Adopt the memory that was handed in, now that it is known what an action is."""
        self.memory = adopt(self._given_memory, action, self.batch_size)
        self.recorder = Recorder(self.memory, self.rule.bootstrap_truncated)
        if self.on_pool:
            self.memory.settle, self.memory.beside = self.flush, partial(sizing.beside, self)
            self.memory.release = self._forget_pool
        elif self.batch_size == sizing.AUTO:
            raise ArgumentError(
                f"batch_size='auto' is planned for a DeviceMemory; {type(self.memory).__name__} "
                "needs a number: pass batch_size=32, say."
            )

    def _forget_pool(self, resized):
        if self.prepared:
            self.trainer.learner.forget_pool(resized)

    @property
    def on_pool(self) -> bool:
        """Whether transitions are drawn on the device; False under a Memory of the user's own."""
        return self.recorder.on_pool

    def _start(self, models: dict, targets: tuple, optimizers: dict) -> None:
        """Make the state afresh; see `Mirror`."""
        self.optimizer_descriptions = {
            name: architecture.describe(optimizer) for name, optimizer in optimizers.items()
        }
        self.trainer = Trainer(Mirror(models, targets, optimizers), self.seed, self.updates)
        self.prepared, self.shown = False, None  # the answer was the former trainer's

    # Weights between the device and the user's models -------------------------------------------

    @property
    def state(self) -> TrainState:
        """The training state, all queued work done. The next call consumes it: keep no copy."""
        if self.trainer is None:
            raise NotCompiled(_COMPILE_FIRST)
        return self.trainer.state

    @property
    def traces(self) -> dict:
        """Compiled call -> how often it was traced: 1 each, unless a shape changed."""
        return self.trainer.learner.traces if self.prepared else {}

    def begin_again(self) -> None:
        """After StateLost: the weights that the models hold, and an empty pool."""
        self.trainer.restart()
        if self.on_pool:
            self.memory.begin_again()
        self.shown = None

    def flush(self) -> None:
        """Run the queued row and update now; nothing if there is none."""
        if self.trainer is not None:
            self.trainer.flush()

    def sync(self) -> None:
        """Give the user's Keras models and optimizers what training has made of them."""
        if self.trainer is not None:
            self.trainer.publish()

    def take_weights(self) -> None:
        """Take what the user's models hold, if anybody changed it since the last sync.

        Who sets weights while `fit` runs calls this, and the next action goes by them.
        """
        self.shown = None  # what the old weights said about it does not count
        self.notice_weights()

    def notice_weights(self) -> None:
        """`take_weights`, where nobody said that they were set: it may be that nothing was."""
        if self.trainer is not None and self.trainer.take_weights():
            self.shown = None

    def _copy_targets(self) -> None:
        if self.trainer is not None:
            self.trainer.copy_targets()

    def _target_model(self, name, model):
        with keras.utils.custom_object_scope(self.custom_model_objects):
            return with_weights(model, self.state.target[name])

    # One step -----------------------------------------------------------------------------------

    def _advance(self, observation) -> np.ndarray:
        """What the networks say to an observation, after the queued row and update: f32[A]."""
        shown, self.shown = self.shown, None
        if shown is not None:
            answer = self.trainer.answer()  # also where it is not asked for: the wire is in use
            if shown is observation:
                return answer
        if not self.in_loop:
            self.notice_weights()
        self.memory.see(observation, self.step, checked=self.in_loop)
        return self.trainer.act(self.memory)

    def _backward(self, reward, terminal, tail: list) -> Metrics:
        """keras-rl's `backward`: record the step and learn when it is time.

        Args:
            tail: what policy and processor report, behind the update's numbers.
        """
        self.check_compiled()
        closing = self.recorder.record(
            self.recent_observation,
            self.recent_action,
            reward,
            terminal,
            truncated=self.truncated,
            start=self.step % self.memory_interval == 0,
            step=self.step,
            training=self.training,
            checked=self.in_loop,
        )
        self.truncated = False
        nothing = [math.nan] * (1 + len(self.measures)) + tail
        if not self.training or closing:
            return Metrics(len(nothing), self.flush, nothing)
        what = self._what() if self.step % self.train_interval == 0 else ()
        hard = self.target_model_update >= 1 and self.step % self.target_model_update == 0
        metrics = Metrics(len(nothing), self.flush, None if what else nothing)
        if not self.on_pool or self.learns_on_host:  # no look yet where nobody called `forward`
            host.learn(self, what, lambda numbers: metrics.fill(numbers + tail))
            if hard:
                self._copy_targets()
            return metrics
        if what:
            self.recorder.check_can_sample(self.batch_size)
        self.trainer.queue(
            self.memory, what, lambda numbers: metrics.fill(numbers + tail), copy_targets=hard
        )
        if not self.in_loop:
            self.flush()
        elif self.upcoming is not None and not self.acts_separately:
            self.shown, self.upcoming = self.upcoming, None
            self.memory.see(self.shown, self.step, checked=True)
            self.trainer.launch()
        return metrics

    def _infer(self, states) -> np.ndarray:
        """What the acting network says to B states, f32[B, A], by a call of its own."""
        if not self.in_loop:
            self.notice_weights()
        return self.trainer.infer(host.narrow(self.process_state_batch(states)))

    def process_state_batch(self, batch):
        """States as the networks see them: stacked, and through the processor; see keras-rl."""
        spec = self.memory.spec if self.on_pool else None
        batch = host.stack(batch, spec, self.processor)
        return batch if self.processor is None else self.processor.process_state_batch(batch)

    expect_tuning, pause = sizing.expect_tuning, pausing.pause
    set_batch_size, set_micro_batch = execution.set_batch_size, execution.set_micro_batch
    set_updates_per_call = execution.set_updates_per_call

    # Checkpoints --------------------------------------------------------------------------------

    save, load = saving.save, restoring.load

    @property
    def resumed(self) -> Report:
        """What the last `load` or resumed `fit` brought back."""
        return self.runs.resumed

    def parts(self) -> dict:
        """Name -> object whose state decides what comes next; an agent's class adds its own."""
        return {"processor": self.processor}

    def networks(self) -> dict:
        """Name -> the user's Keras model of each network that learns."""
        raise NotImplementedError  # the agent's class says it, as keras-rl's Agent does

    def acting(self) -> dict:
        """How actions follow from what a network says: see `resume.player`."""
        raise NotImplementedError  # the agent's class says it

    get_state, set_state = counters.get_state, counters.set_state
    get_acting_state, set_acting_state = counters.get_acting_state, counters.set_acting_state

    def outputs(self, states) -> np.ndarray:
        """What every network says to B states, f32[B, P]; `verify` compares it."""
        return self.trainer.probe(host.narrow(self.process_state_batch(states)))

    # What a run takes ---------------------------------------------------------------------------

    plan, report, tune = planning.plan, planning.report, tune
    spill, pull, resize = spilling.spill, spilling.pull, spilling.resize

    @property
    def processes_states(self) -> bool:
        """Whether a processor changes states between the memory and the networks."""
        return self.processor is not None and host.overrides(self.processor, "process_state_batch")

    def passes(self) -> list:
        """The passes of an update: for each optimizer's step a list of `planning.passes.Pass`."""
        raise NotImplementedError  # the agent's class says it

    # keras-rl's loop ------------------------------------------------------------------------------

    fit, test = loop.fit, loop.test
    train_function = None  # Keras' TensorBoard asks for one

    def get_config(self) -> dict:
        """The arguments that are plain values; models and processors are saved by themselves."""
        return {
            "gamma": self.gamma,
            "batch_size": self.batch_size,
            "train_interval": self.train_interval,
            "memory_interval": self.memory_interval,
            "target_model_update": self.target_model_update,
            "delta_clip": self.delta_clip,
            "seed": self.seed,
            "updates": self.updates,
            "truncation": self.truncation,
            **self.execution._asdict(),
            "memory": keras_rl.config_of(self.memory),
        }

    def check_compiled(self) -> None:
        """Raise NotCompiled unless `compile` was called."""
        if not self.compiled:
            raise NotCompiled(_COMPILE_FIRST)

    def check_observation(self, observation) -> None:
        """Raise ObservationError unless the memory can store it; `loop` asks at once."""
        if self.on_pool and self.prepared:
            self.memory.spec.leaves(observation, self.step)
        elif observation is None:
            raise ObservationError(f"step {self.step}: the environment returned None.")

    def begin_run(self, env, training: bool, resumed: bool = False) -> int | None:
        """Get ready for a `fit` or `test`; `Run` calls it.

        Takes over the models' weights where somebody changed them. An episode that was left open
        is closed as truncated, unless this run goes on with it, or tests on another environment.

        Args:
            training: whether it is a `fit`.
            resumed: whether it goes on where one was left; the step counter stays then.

        Returns:
            the seed of the environment's first reset; None where the agent has no seed.

        Raises:
            ArgumentError: inside a `fit` or `test`.
        """
        return self.runs.begin(env, training, resumed)

    def end_run(self, left) -> None:
        """Finish what is queued, and give the Keras models their weights; `Run` calls it.

        Args:
            left: where a training run was left, see `runs.Left`.
        """
        self.runs.end(left)

    def derived_seed(self, *streams: int) -> int:
        """A seed for one of the run's parts, a pure function of the agent's seed: 0 .. 2**31-1."""
        return int(np.random.SeedSequence([self.seed, *streams]).generate_state(1)[0] >> 1)

    @property
    def closing(self) -> bool:
        """Whether the next observation is only the last of an episode: nobody acts on it."""
        return self.recorder.ended and self.in_loop

    def _see_last(self, observation):
        self.flush()
        self.recent_observation = observation
        return self.recent_action

    def request_stop(self, reason: str) -> None:
        """End the running `fit` or `test` after this step; `History.reason` says why."""
        self.stop_training, self.stop_reason = True, reason


_COMPILE_FIRST = "the agent is not compiled; call agent.compile(keras.optimizers.Adam(1e-3)) first."


def _target_model_update(value):
    """A fraction below 1, or a whole number of steps."""
    check_number(
        "target_model_update",
        value,
        lambda number: number >= 0,
        "a fraction below 1 (soft, at each update) or a number of steps (hard copy)",
    )
    return int(value) if value >= 1 else float(value)

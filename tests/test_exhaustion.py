"""An update that runs out of memory waits to be run again: really, and where it can be arranged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasrl_gpu import DeviceMemory, DQNAgent, engine
from kerasrl_gpu.errors import ArgumentError, OutOfMemory, StateLost
from kerasrl_gpu.policy import EpsGreedyQPolicy
from kerasrl_gpu.processors import Processor

PROGRAM = Path(__file__).with_name("exhausted_run.py")
BATCH, WARMUP = 12, 15


@pytest.mark.skipif(not engine.on_cpu(), reason="the limit is one of the host's memory")
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS holds on Linux")
@pytest.mark.parametrize("updates_per_call", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_that_runs_out_of_memory_learns_what_it_would_have(backend, updates_per_call):
    result = subprocess.run(
        [sys.executable, str(PROGRAM), str(updates_per_call), str(updates_per_call)],
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["tried"] == [65_536, 16_384]
    assert found["made"] == [12, 12]
    assert found["off"] < 1e-6


# The twin ---------------------------------------------------------------------------------------


def drifting(step):
    return np.random.default_rng(step).normal(size=(4, 3)).astype(np.float32)


def dense(units, activation=None):
    start = keras.initializers.GlorotUniform(seed=units)
    return keras.layers.Dense(units, activation, kernel_initializer=start)


def layers(kind):
    start = keras.initializers.GlorotUniform(seed=3)
    if kind == "dense":
        return [keras.layers.Flatten(), dense(16, "tanh")]
    if kind == "random":
        return [keras.layers.Flatten(), dense(16, "tanh"), keras.layers.Dropout(0.3, seed=1)]
    conv = keras.layers.Conv2D(4, 2, activation="relu", kernel_initializer=start)
    return [keras.layers.Permute((2, 3, 1)), conv, keras.layers.Flatten()]


class Untraceable(Processor):
    """Has batches made on the host."""

    def process_state_batch(self, batch):
        return np.asarray([float(str(x)) for x in batch.ravel()], np.float32).reshape(batch.shape)


def make(kind="dense", optimizer=None, **options):
    model = keras.Sequential([keras.Input((1, 4, 3)), *layers(kind), dense(3)])
    agent = DQNAgent(
        model=model,
        nb_actions=3,
        memory=DeviceMemory(60),
        policy=EpsGreedyQPolicy(eps=1.0),
        batch_size=BATCH,
        nb_steps_warmup=WARMUP,
        target_model_update=0.05,
        seed=5,
        **options,
    )
    agent.compile(optimizer or keras.optimizers.Adam(0.01))
    agent.training = True
    return agent


def step(agent):
    agent.step += 1
    agent.forward(drifting(agent.step))
    return agent.backward(float(agent.step % 5), terminal=agent.step % 7 == 6)


def trained(agent, steps):
    """Every array of the state, the pool, and the last numbers reported, after so many steps."""
    for _ in range(steps):
        numbers = step(agent)
    return everything(agent), list(numbers)


def everything(agent):
    agent.flush()
    every = [np.array(engine.to_host(leaf)) for leaf in engine.leaves(agent.state)]
    return [*every, agent.memory.observations, agent.trainer.nb_updates]


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.1),
    "average": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
}


@pytest.mark.parametrize(
    ("kind", "optimizer", "options"),
    [
        ("dense", "adam", {}),
        ("dense", "sgd", {"updates": 3}),
        ("dense", "average", {"updates": 4, "updates_per_call": 2, "micro_batch": 5}),
        ("random", "adam", {"updates": 2}),
        ("convolutional", "adam", {"updates": 2}),
    ],
)
def test_a_twin_gives_the_same_bits(kind, optimizer, options):
    want = trained(make(kind, OPTIMIZERS[optimizer](), **options), WARMUP + 8)
    careful = make(kind, OPTIMIZERS[optimizer](), **options)
    careful.trainer.careful = True
    np.testing.assert_equal(trained(careful, WARMUP + 8), want)


@pytest.mark.filterwarnings("ignore:.*takes calls of its own")
def test_a_twin_learns_the_same_from_the_hosts_batches():
    want = trained(make(processor=Untraceable()), WARMUP + 4)
    careful = make(processor=Untraceable())
    careful.trainer.careful = True
    np.testing.assert_equal(trained(careful, WARMUP + 4), want)


# What follows a failure ---------------------------------------------------------------------------


class Fails:
    """A learner's programs, whose twins fail after their work as often as `times` says."""

    def __init__(self, agent, monkeypatch, skip=0, times=1, of="twin"):
        self.calls, self.skip, self.times = 0, skip, times
        found = agent.trainer.learner.step

        def step(memory, what):
            program = found(memory, what)
            if not what:
                return program
            return self.wrapped(program, of)

        monkeypatch.setattr(agent.trainer.learner, "step", step)

    def wrapped(self, program, of):
        outer = self

        class Wrapped:
            def __call__(self, *args):
                return outer.call(program, args, of == "program")

            def twin(self, *args):
                return outer.call(program.twin, args, of == "twin")

            def __eq__(self, other):
                return True

            def __hash__(self):
                return 0

        return Wrapped()

    def call(self, program, args, counts):
        self.calls += counts
        if counts and self.skip < self.calls <= self.skip + self.times:
            raise MemoryError("no room")
        return program(*args)


def prepared(monkeypatch, updates_per_call=None, **fails):
    """Two agents before their first update, the second of which runs out of memory."""
    options = {"updates": 4, "updates_per_call": updates_per_call}
    plain, agent = make(**options), make(**options)
    for each in (plain, agent):
        for _ in range(WARMUP):
            step(each)
    agent.trainer.careful = True
    return plain, agent, Fails(agent, monkeypatch, **fails)


def alike(agent, plain):
    for got, want in zip(everything(agent), everything(plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("per_call", "skip"), [(None, 0), (1, 2), (2, 1)])
def test_a_step_that_failed_is_run_again_with_fewer_rows(monkeypatch, per_call, skip):
    plain, agent, fails = prepared(monkeypatch, per_call, skip=skip)
    step(plain)
    made = agent.trainer.nb_updates
    with pytest.raises(
        OutOfMemory, match=r"12 of batch_size=12 rows .*no room.*set_micro_batch\(6"
    ):
        step(agent)
    assert agent.trainer.stuck
    assert agent.trainer.nb_updates == made
    agent.set_micro_batch(6)
    alike(agent, plain)
    assert not agent.trainer.stuck
    assert fails.calls == skip + 2 + (4 // (per_call or 4) - skip - 1)
    for each in (plain, agent):
        step(each)
    alike(agent, plain)


def test_a_hook_that_makes_room_has_the_call_run_again(monkeypatch):
    plain, agent, _ = prepared(monkeypatch, times=2)
    heard = []

    def halve(error):
        heard.append((str(error), agent.execution.rows(BATCH)))
        agent.set_micro_batch(agent.execution.rows(BATCH) // 2)
        return True

    agent.trainer.on_exhausted = halve
    for each in (plain, agent):
        step(each)
    assert heard == [("no room", 12), ("no room", 6)]
    assert agent.execution.micro_batch == 3
    alike(agent, plain)


def test_what_cannot_be_made_room_for_is_raised(monkeypatch):
    _, agent, _ = prepared(monkeypatch, times=9)
    agent.trainer.on_exhausted = lambda error: False
    for _ in range(2):  # the step waits as long as it takes
        with pytest.raises(OutOfMemory):
            agent.flush() if agent.trainer.stuck else step(agent)


def test_what_is_left_of_a_step_is_made_in_whole_calls(monkeypatch):
    _, agent, _ = prepared(monkeypatch, updates_per_call=1, skip=1)
    with pytest.raises(OutOfMemory):
        step(agent)
    with pytest.raises(ArgumentError, match="3 updates of a step"):
        agent.set_updates_per_call(2)


def test_other_errors_are_not_taken_for_it(monkeypatch):
    _, agent, fails = prepared(monkeypatch)
    fails.call = lambda *args: (_ for _ in ()).throw(ValueError("another"))
    agent.trainer.on_exhausted = lambda error: pytest.fail("was asked")
    with pytest.raises(ValueError, match="another"):
        step(agent)


def test_a_donating_call_that_fails_takes_the_state_with_it(monkeypatch):
    _, agent, _ = prepared(monkeypatch, of="program")
    agent.trainer.careful = False
    monkeypatch.setattr(engine, "survived", lambda given: False)
    with pytest.raises(StateLost, match="newest checkpoint"):
        step(agent)


def test_a_donating_call_that_did_not_begin_leaves_the_state(monkeypatch):
    plain, agent, _ = prepared(monkeypatch, of="program")
    agent.trainer.careful = False
    monkeypatch.setattr(engine, "survived", lambda given: True)
    with pytest.raises(OutOfMemory):
        step(agent)
    step(plain)
    alike(agent, plain)


@pytest.mark.parametrize(("guarded", "careful"), [(False, 0), (True, 2)])
def test_a_guard_has_the_first_call_of_every_program_run_as_its_twin(guarded, careful):
    agent, twins = make(), []
    agent.trainer.guarded = guarded
    for at in range(WARMUP + 6):
        step(agent)
        if at == WARMUP + 2:
            agent.set_micro_batch(5)
        if agent.prepared and not twins:
            found = agent.trainer.learner.step

            def watched(memory, what, found=found):
                program = found(memory, what)
                run = program.twin
                if what and not isinstance(run, Watched):
                    program.twin = Watched(run, twins)
                return program

            agent.trainer.learner.step = watched
            twins.append(None)
    assert len(twins) - 1 == careful


class Watched:
    traces = 0

    def __init__(self, run, seen):
        self.run, self.seen = run, seen

    def __call__(self, *args):
        self.seen.append(args)
        return self.run(*args)


@pytest.mark.skipif(os.environ["KERAS_BACKEND"] != "jax", reason="about JAX")
def test_jax_says_what_a_failed_call_has_consumed():
    import jax.numpy as jnp

    array = jnp.ones(3)
    assert engine.survived(([array], "a plan"))
    array.delete()
    assert not engine.survived(([array], "a plan"))


def test_exhaustion_has_one_name():
    assert engine.is_exhausted(MemoryError())
    assert not engine.is_exhausted(ValueError("a shape"))
    if os.environ["KERAS_BACKEND"] == "jax":
        assert engine.is_exhausted(ValueError("RESOURCE_EXHAUSTED: Out of memory"))
    else:
        import tensorflow as tf

        assert engine.is_exhausted(tf.errors.ResourceExhaustedError(None, None, "no room"))
        assert not engine.is_exhausted(tf.errors.InternalError(None, None, "a bug"))
        assert engine.is_exhausted(tf.errors.InternalError(None, None, "std::bad_alloc"))

"""A batch computed a few rows at a time teaches what the whole batch teaches."""

import warnings

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from keras import ops

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.execution import AT_ONCE, Execution
from kerasrl_gpu.keras_rl import Processor
from kerasrl_gpu.policy import EpsGreedyQPolicy

WARMUP, UPDATES, BATCH = 30, 100, 12


class Drift(gymnasium.Env):
    """Shows numbers that no action changes, so that two runs see the same; 9 steps an episode."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)

    def __init__(self, action_space=None):
        self.action_space = action_space or Discrete(3)
        self.random = np.random.default_rng(3)

    def reset(self, *, seed=None, options=None):
        self.n = 0
        return self.random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        self.n += 1
        shown = self.random.normal(size=3).astype(np.float32)
        return shown, float(shown.sum()), self.n == 9, False, {}


def dense(units, activation=None, **options):
    start = keras.initializers.GlorotUniform(seed=units)
    return keras.layers.Dense(units, activation, kernel_initializer=start, **options)


def q_model(*hidden):
    hidden = hidden or (dense(16, "tanh", kernel_regularizer="l2"),)
    layers = [keras.Input((1, 3)), keras.layers.Flatten(), *hidden, dense(3)]
    return keras.Sequential(layers)


def dqn(optimizer="sgd", model=None, **options):
    options = {"batch_size": BATCH, "target_model_update": 0.05, "seed": 5, **options}
    agent = DQNAgent(
        model=model or q_model(),
        nb_actions=3,
        memory=options.pop("memory", None) or DeviceMemory(100),
        policy=EpsGreedyQPolicy(eps=1.0),  # what is done does not hang on the weights
        nb_steps_warmup=WARMUP,
        delta_clip=0.5,
        **options,
    )
    agent.compile(OPTIMIZERS[optimizer](), metrics=["mae", "mse"])
    return agent


def rate():
    return keras.optimizers.schedules.ExponentialDecay(0.05, 20, 0.8)


OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "sgd, schedule, global norm": lambda: keras.optimizers.SGD(rate(), global_clipnorm=0.1),
    "adam": lambda: keras.optimizers.Adam(0.003),
    "adam, schedule, average, global norm": lambda: keras.optimizers.Adam(
        rate(), use_ema=True, ema_overwrite_frequency=30, global_clipnorm=0.1, epsilon=1e-3
    ),
}


class Metrics(keras.callbacks.Callback):
    """What every update reported."""

    def on_train_begin(self, logs=None):
        self.reported = []

    def on_step_end(self, step, logs=None):
        self.reported.append(list(logs["metrics"]))


def trained(agent, action_space=None, steps=UPDATES, callbacks=()):
    """The agent's networks, targets and slots as flat arrays, and what its updates reported."""
    watch = Metrics()
    env = Drift(action_space)
    agent.fit(env, nb_steps=WARMUP + 1 + steps, callbacks=[watch, *callbacks], verbose=0)
    state = agent.trainer.get_state()
    weights = [
        array
        for part in (state["online"], state["target"])
        for network in part.values()
        for array in network["trainable"]
    ]
    slots = [array for network in state["slots"].values() for array in network]
    return weights, slots, np.array(watch.reported[WARMUP + 1 :])


def assert_the_same(one, other, rtol):
    for ours, theirs in zip(one[:2], other[:2], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            scale = np.max(np.abs(b), initial=0)
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(scale, 1e-3))
    np.testing.assert_allclose(one[2], other[2], rtol=1e-4, atol=1e-5)


# 5 leaves 2 rows over; a gradient of the wrong size is not seen after a clip, nor by Adam
ADAM = "adam, schedule, average, global norm"
SPLITS = [("sgd", 1), ("sgd", 4), ("sgd", 5), ("sgd, schedule, global norm", 5), (ADAM, 5)]
MORE = [("adam", 4), ("adam", 5), ("sgd, schedule, global norm", 4)]
MORE += [(ADAM, rows) for rows in (1, 2, 3, 4, 6)]


@pytest.fixture(scope="module")
def unsplit():
    """By optimizer: the run that computes every batch at once; made when first asked for."""
    runs = {}

    def of(name):
        if name not in runs:
            agent = dqn(name)
            runs[name] = trained(agent)
            assert "step ('model',)" in agent.traces
        return runs[name]

    return of


@pytest.mark.parametrize(
    ("optimizer", "rows"), SPLITS + [pytest.param(*one, marks=pytest.mark.slow) for one in MORE]
)
def test_every_split_of_a_batch_learns_what_the_whole_one_does(unsplit, optimizer, rows):
    agent = dqn(optimizer, micro_batch=rows)
    assert_the_same(trained(agent), unsplit(optimizer), rtol=1e-6)
    assert f"step ('model',) micro_batch={rows}" in agent.traces  # another program


# DDPG -------------------------------------------------------------------------------------------


def ddpg(**options):
    observation, action = keras.Input((1, 3)), keras.Input((2,))
    flat = keras.layers.Flatten()(observation)
    actor = keras.Model(observation, dense(2, "tanh")(dense(8, "tanh")(flat)))
    both = keras.layers.Concatenate()([action, flat])
    critic = keras.Model([action, observation], dense(1)(dense(9, "tanh")(both)))
    agent = DDPGAgent(
        nb_actions=2,
        actor=actor,
        critic=critic,
        critic_action_input=action,
        memory=DeviceMemory(100),
        batch_size=BATCH,
        nb_steps_warmup_critic=WARMUP,
        nb_steps_warmup_actor=WARMUP,
        target_model_update=0.05,
        seed=5,
        **options,
    )
    agent.compile([OPTIMIZERS["sgd"](), OPTIMIZERS["sgd, schedule, global norm"]()])
    return agent


def test_ddpg_learns_the_same_from_parts():
    box = Box(-1, 1, (2,), np.float32)
    unsplit = trained(ddpg(), box, steps=20)
    assert_the_same(trained(ddpg(micro_batch=5), box, steps=20), unsplit, rtol=1e-6)


# Where the rows come from -------------------------------------------------------------------------


class Halved(Processor):
    """Something to trace."""

    def process_state_batch(self, batch):
        return batch / 2


class Untraceable(Processor):
    def process_state_batch(self, batch):
        return np.asarray([float(str(x)) for x in batch.ravel()], np.float32).reshape(batch.shape)


@pytest.mark.parametrize("processor", [Halved, Untraceable])
@pytest.mark.filterwarnings("ignore:.*takes calls of its own")
def test_processed_rows_are_split_on_the_device_and_on_the_host(processor):
    unsplit = trained(dqn(processor=processor()), steps=20)
    split = trained(dqn(processor=processor(), micro_batch=5), steps=20)
    assert_the_same(split, unsplit, rtol=1e-6)


def conv_model():
    start = keras.initializers.GlorotUniform(seed=3)
    return keras.Sequential(
        [
            keras.Input((2, 3)),
            keras.layers.Conv1D(8, 2, activation="tanh", kernel_initializer=start),
            keras.layers.Flatten(),
            dense(3),
        ]
    )


def test_convolutions_and_windows_split_too():
    # JAX writes the parts and the updates out on a CPU, TensorFlow leaves them to its own kernels
    make = lambda **options: dqn(  # noqa: E731
        model=conv_model(), memory=DeviceMemory(100, window_length=2), updates=2, **options
    )
    assert_the_same(trained(make(micro_batch=5), steps=20), trained(make(), steps=20), rtol=1e-6)


# Updates in one call, and changing it on the way --------------------------------------------------


class Switch(keras.callbacks.Callback):
    """Sets how updates are executed for ten steps of a run, as a guard or a tuner would."""

    def __init__(self, **execution):
        super().__init__()
        self.execution = Execution(**execution)

    def on_step_end(self, step, logs=None):
        at = self.model.step - WARMUP
        if at in (10, 20):
            execution = self.execution if at == 10 else AT_ONCE
            self.model.set_updates_per_call(execution.updates_per_call)
            self.model.set_micro_batch(execution.micro_batch)


@pytest.mark.parametrize(("per_call", "rows", "target"), [(1, None, 0.05), (2, 5, 3)])
def test_updates_that_share_a_step_learn_the_same_in_one_call_or_several(
    tmp_path, per_call, rows, target
):
    # target 3: a hard copy every third step, after all of the step's updates
    agent = dqn("adam", updates=4, enable_double_dqn=True, target_model_update=target)
    first = agent.save(tmp_path)
    unsplit = trained(agent, steps=30)
    agent.load(first)
    switch = Switch(updates_per_call=per_call, micro_batch=rows)
    assert_the_same(trained(agent, steps=30, callbacks=[switch]), unsplit, rtol=1e-6)
    assert agent.trainer.nb_updates == 4 * 30
    steps = {name: count for name, count in agent.traces.items() if name.startswith("step")}
    assert list(steps.values()) == [1, 1]  # it went back without being compiled again


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """(agent, its checkpoint) that computes a batch in parts, and 2 of 4 updates a call."""
    agent = dqn(updates=4, micro_batch=5, updates_per_call=2)
    agent.fit(Drift(), nb_steps=5, verbose=0)
    return agent, agent.save(tmp_path_factory.mktemp("run"))


def test_a_checkpoint_goes_on_executed_as_it_was(executed):
    agent, path = executed
    other = dqn(updates=4)
    other.load(path)
    assert other.execution == other.trainer.learner.execution == agent.execution == (5, 2)
    assert other.get_config()["micro_batch"] == 5
    other = dqn(updates=4, micro_batch=3)
    other.fit(Drift(), nb_steps=8, resume=path, verbose=0)
    assert other.execution == other.trainer.learner.execution == agent.execution


# What cannot be split -----------------------------------------------------------------------------


@keras.saving.register_keras_serializable("tests")
class Centred(keras.layers.Layer):
    """Takes the batch's mean away: a row's value hangs on the rows beside it."""

    def call(self, inputs):
        return inputs - ops.mean(inputs, axis=0, keepdims=True)


@keras.saving.register_keras_serializable("tests")
class Counting(keras.layers.Layer):
    """Remembers how often it was called."""

    def build(self, shape):
        self.count = self.add_weight(name="count", shape=(), trainable=False)

    def call(self, inputs, training=False):
        if training:
            self.count.assign(self.count + 1)
        return inputs


def hidden():
    return dense(8, "tanh")


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([hidden(), keras.layers.BatchNormalization(name="norm")], "'norm' normalises"),
        ([hidden(), Centred()], "looks at a batch as a whole"),
        ([hidden(), Counting()], "looks at a batch as a whole"),
        ([keras.layers.ActivityRegularization(l2=0.1)], "looks at a batch as a whole"),
    ],
    ids=["batch norm", "batch mean", "counter", "activity"],
)
def test_a_network_that_looks_at_the_batch_is_refused(layers, named):
    agent = dqn(model=q_model(*layers), micro_batch=5)
    with pytest.raises(ArgumentError, match=named):
        agent.fit(Drift(), nb_steps=5, verbose=0)
    agent = dqn(model=q_model(*[type(one).from_config(one.get_config()) for one in layers]))
    agent.fit(Drift(), nb_steps=5, verbose=0)
    with pytest.raises(ArgumentError, match="cannot learn from a batch in parts"):
        agent.set_micro_batch(5)
    assert agent.execution == agent.trainer.learner.execution == (None, None)


def test_a_network_that_cannot_be_split_goes_on_at_once():
    agent = dqn(model=q_model(Centred()))
    agent.fit(Drift(), nb_steps=5, verbose=0)
    with pytest.raises(ArgumentError, match="looks at a batch as a whole"):
        agent.set_micro_batch(5)
    agent.fit(Drift(), nb_steps=WARMUP + 3, verbose=0)
    assert agent.trainer.nb_updates == 2


def centring(share):
    """A layer that takes so much of the batch's mean away."""
    return keras.layers.Lambda(lambda x: x - share * ops.mean(x, axis=0))


@pytest.mark.parametrize(
    ("start", "layers", "seen"),
    [
        # a share of 1e-4 of the mean: less than any tolerance for rounding in other orders
        (keras.Input((1, 3)), [hidden(), centring(1e-4)], np.zeros(3, np.float32)),
        # frames, whose numbers are small once they are scaled
        (
            keras.Input((1, 6)),
            [keras.layers.Rescaling(1 / 255), centring(1), dense(16, "tanh")],
            np.zeros(6, np.uint8),
        ),
        # one of seven states, so that rows are often the same
        (
            keras.Input((1,), dtype="int32"),
            [keras.layers.Embedding(7, 4), centring(1)],
            np.int64(0),
        ),
        # the same states, as numbers
        (
            keras.Input((1, 1)),
            [keras.layers.Flatten(), keras.layers.Embedding(7, 4), centring(1)],
            np.zeros(1, np.float32),
        ),
    ],
    ids=["weakly", "frames", "state", "state as number"],
)
def test_a_network_that_hardly_looks_at_the_batch_is_refused(start, layers, seen):
    network = keras.Sequential([start, *layers, keras.layers.Flatten(), dense(3)])
    with pytest.raises(ArgumentError, match="looks at a batch as a whole"):
        dqn(model=network, micro_batch=5).prepare(seen)


class Mirrored(Processor):
    """Takes from every row the one at the same place from the other end."""

    def process_state_batch(self, batch):
        return batch - batch[::-1]


class Whitened(Processor):
    """Looks at the batch as a whole before any network does."""

    def process_state_batch(self, batch):
        return batch - batch[:1]


@pytest.mark.parametrize("processor", [Whitened, Mirrored])
def test_a_processor_that_looks_at_the_batch_is_refused(processor):
    agent = dqn(processor=processor(), micro_batch=5)
    with pytest.raises(ArgumentError, match="looks at a batch as a whole"):
        agent.fit(Drift(), nb_steps=5, verbose=0)


def normalised():
    frozen = keras.layers.BatchNormalization()
    frozen.trainable = False
    return q_model(keras.layers.LayerNormalization(), frozen)


def test_frozen_and_row_wise_normalisation_split():
    unsplit = trained(dqn(model=normalised()), steps=20)
    split = trained(dqn(model=normalised(), micro_batch=5), steps=20)
    assert_the_same(split, unsplit, rtol=1e-5)


def test_random_layers_are_declared_inexact():
    agent = dqn(model=q_model(keras.layers.Dropout(0.5, seed=1)), micro_batch=5)
    with pytest.warns(UserWarning, match="random layers, such as Dropout"):
        agent.fit(Drift(), nb_steps=WARMUP + 5, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.set_micro_batch(None)


@pytest.mark.parametrize("rows", [0, -1, 1.5, 13, "all", True])
def test_rows_that_no_batch_has_are_refused(rows):
    with pytest.raises(ArgumentError, match="micro_batch"):
        dqn(micro_batch=rows)
    agent = dqn()
    with pytest.raises(ArgumentError, match="micro_batch"):
        agent.set_micro_batch(rows)


def test_calls_that_the_updates_do_not_fill_are_refused():
    with pytest.raises(ArgumentError, match=r"does not divide updates=6; pass one of \[1, 2, 3, 6"):
        dqn(updates=6, updates_per_call=4)


@pytest.mark.filterwarnings("ignore:.*takes calls of its own")
def test_calls_that_are_made_one_by_one_cannot_be_shared():
    agent = dqn(processor=Untraceable(), updates=2, updates_per_call=1)
    with pytest.raises(ArgumentError, match="batches come from the host"):
        agent.fit(Drift(), nb_steps=5, verbose=0)
    agent = dqn(processor=Untraceable(), updates=2)
    agent.fit(Drift(), nb_steps=5, verbose=0)
    with pytest.raises(ArgumentError, match="batches come from the host"):
        agent.set_updates_per_call(1)


@pytest.mark.parametrize(
    ("options", "allow"),
    [
        ({"updates": 4, "batch_size": 4}, "batch_size"),  # fewer than are computed at a time
        ({"updates": 3}, "updates"),  # 2 a call do not fill them
        ({"updates": 4, "model": q_model(dense(16), Centred())}, "network"),
    ],
    ids=["batch", "updates", "network"],
)
def test_a_checkpoint_whose_execution_does_not_fit_goes_on_as_this_agent_is(
    executed, options, allow
):
    agent, path = executed
    other = dqn(**options)
    report = other.load(path, allow=(allow,))
    assert other.execution == (None, None)
    assert any(line.startswith("execution: ") for line in report.ignored)
    assert other.step == agent.step

"""Bad input gets a sentence: what came, what fits, what to type. And nothing is swallowed."""

import runpy

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, engine
from kerasrl_gpu.errors import (
    ArgumentError,
    BackendError,
    KerasRLError,
    NotCompiled,
    ObservationError,
    ShapeError,
)
from kerasrl_gpu.keras_rl import Experience, Memory, Processor, SequentialMemory
from kerasrl_gpu.policy import GreedyQPolicy

NEVER = 10**9


class Count(gymnasium.Env):
    """Shows how many steps the episode has had; pays and shows what it is told to, for once.

    Args:
        length: steps an episode.
        at: environment step of the run, from 0, whose observation and reward are replaced.
        reset_at: episode of the run, from 0, whose first observation is.
    """

    observation_space, action_space = Box(0, np.inf, (1,)), Discrete(2)

    def __init__(self, length=3, at=None, reset_at=None, **instead):
        self.length, self.at, self.reset_at, self.instead = length, at, reset_at, instead
        self.steps = self.episodes = 0

    def look(self):
        return np.full(1, self.n, np.float32)

    def reset(self, *, seed=None, options=None):
        self.n = 0
        bad = self.episodes == self.reset_at
        self.episodes += 1
        return (self.instead["observation"] if bad else self.look()), {}

    def step(self, action):
        self.n += 1
        bad = self.instead if self.steps == self.at else {}
        self.steps += 1
        observation, reward = bad.get("observation", self.look()), bad.get("reward", 1.0)
        return observation, reward, self.n >= self.length, False, {}


class Pictures(Count):
    observation_space = Box(0, 255, (4, 4, 3), np.uint8)

    def look(self):
        return np.full((4, 4, 3), self.n, np.uint8)


def network(inputs=(1, 1), outputs=2, flat=True):
    layers = [keras.layers.Flatten()] if flat else []
    return keras.Sequential([keras.Input(inputs), *layers, keras.layers.Dense(outputs)])


def dqn(model=None, compiled=True, **options):
    options = {"nb_actions": 2, "batch_size": 4, "nb_steps_warmup": NEVER, "seed": 1, **options}
    options.setdefault("memory", DeviceMemory(500))
    agent = DQNAgent(network() if model is None else model, **options)
    if compiled:
        agent.compile("sgd")
    return agent


def ddpg_networks(nb_actions=1, observation=(1, 1), outputs=1):
    """(actor, critic, action input)."""
    action, seen = keras.Input((nb_actions,)), keras.Input(observation)
    both = keras.layers.Concatenate()([action, keras.layers.Flatten()(seen)])
    critic = keras.Model([action, seen], keras.layers.Dense(outputs)(both))
    return network(observation, nb_actions), critic, action


def ddpg(networks=None, nb_actions=1, compiled=True, **options):
    actor, critic, action = networks or ddpg_networks(nb_actions)
    options.setdefault("memory", DeviceMemory(500))
    agent = DDPGAgent(nb_actions, actor, critic, action, **options)
    if compiled:
        agent.compile("sgd")
    return agent


def refused(kind, match):
    """pytest.raises, and the error is one of ours as well as what Python would call it."""
    assert issubclass(kind, KerasRLError)
    return pytest.raises(kind, match=match)


# Models ----------------------------------------------------------------------------------------


def test_a_model_with_another_output_is_refused():
    with refused(ShapeError, r"one output of shape \(None, 2\).*\(None, 3\).*Dense\(2\)"):
        dqn(network(outputs=3))
    with refused(ShapeError, r"one output of shape \(None, 2\).*\(None, 1, 2\).*Flatten\(\)"):
        dqn(network(flat=False))
    inputs = keras.Input((1, 1))
    flat = keras.layers.Flatten()(inputs)
    two = keras.Model(inputs, [keras.layers.Dense(2)(flat), keras.layers.Dense(2)(flat)])
    with refused(ShapeError, r"one output of shape \(None, 2\).*\(None, 2\), \(None, 2\)"):
        dqn(two)
    with refused(ShapeError, r"actor.*one output of shape \(None, 1\).*\(None, 2\).*Dense\(1\)"):
        ddpg((network(outputs=2), *ddpg_networks()[1:]))


def test_a_model_without_its_input_shape_is_looked_at_in_the_first_step():
    agent, env = dqn(keras.Sequential([keras.layers.Dense(2)])), Count()
    with refused(ShapeError, r"one output of shape \(None, 2\).*Flatten\(\)"):
        agent.fit(env, 5, verbose=0)
    assert env.steps == 0
    agent = dqn(keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)]))
    assert agent.fit(env, 5, verbose=0).completed
    assert agent.model.get_weights()[0].shape == (1, 2)


@pytest.mark.parametrize(
    "inputs, window, env, sentence",
    [
        # missing: observations (1,), a window of 4
        ((1,), 4, Count, r"takes observations of shape \(1,\).*gives \(4, 1\).*Input\(\(4, 1\)\)"),
        # one too many
        ((1, 1, 1), 1, Count, r"takes .*\(1, 1, 1\).*gives \(1, 1\).*Input\(\(1, 1\)\)"),
        ((2, 1), 4, Count, r"takes .*\(2, 1\).*gives \(4, 1\).*window_length=2"),
        ((1, 7), 1, Count, r"takes .*\(1, 7\).*gives \(1, 1\)"),
        ((4, 4, 3), 2, Pictures, r"takes .*\(4, 4, 3\).*gives \(2, 4, 4, 3\).*\(2, 4, 4, 3\)"),
        ((4, 4, 12), 4, Pictures, r"takes .*\(4, 4, 12\).*gives \(4, 4, 4, 3\)"),
    ],
)
def test_the_window_axis_is_explained(inputs, window, env, sentence):
    env = env()
    agent = dqn(network(inputs), memory=DeviceMemory(500, window_length=window))
    with refused(ShapeError, sentence):
        agent.fit(env, 5, verbose=0)
    assert env.steps == 0  # before training


@pytest.mark.parametrize(
    "inputs, env",
    [((1,), Count), ((1, 1), Count), ((4, 4, 3), Pictures), ((1, 4, 4, 3), Pictures)],
)
def test_with_a_window_of_1_the_window_axis_may_be_left_out(inputs, env):
    agent = dqn(network(inputs))
    observation, _ = env().reset()
    agent.compute_q_values([observation])
    assert agent.forward(observation) in (0, 1)


def test_ddpgs_networks_are_held_to_the_same_shapes():
    actor, critic, action = ddpg_networks(observation=(1, 5))
    agent = ddpg((network((1, 1), 1), critic, action))
    with refused(ShapeError, r"takes observations of shape \(1, 5\).*gives \(1, 1\)"):
        agent.fit(Count(), 5, verbose=0)
    agent = ddpg((actor, *ddpg_networks()[1:]))
    with refused(ShapeError, r"takes observations of shape \(1, 5\).*gives \(1, 1\)"):
        agent.fit(Count(), 5, verbose=0)


def test_an_environment_of_another_shape_at_first_leaves_the_agent_usable():
    agent = dqn()
    with refused(ShapeError, r"\(1, 4, 4, 3\)"):
        agent.fit(Pictures(), 5, verbose=0)
    assert agent.memory.nb_entries == 0
    assert agent.fit(Count(), 5, verbose=0).completed


def test_a_critic_without_its_action_input_is_refused():
    actor, critic, _ = ddpg_networks()
    sentence = r"critic_action_input=.* is none of the critic's inputs.*pass the same tensor"
    with refused(ArgumentError, sentence):
        ddpg((actor, critic, keras.Input((1,))))
    alone = keras.Sequential([keras.Input((1, 1)), keras.layers.Flatten(), keras.layers.Dense(1)])
    with refused(ArgumentError, sentence):
        ddpg((actor, alone, keras.Input((1,))))
    action = keras.Input((1,))
    blind = keras.Model(action, keras.layers.Dense(1)(action))
    with refused(ShapeError, r"takes 0 observation inputs.*gives 1"):
        ddpg((actor, blind, action)).fit(Count(), 5, verbose=0)


def test_a_critic_with_a_value_for_each_action_is_refused():
    actor, critic, action = ddpg_networks(nb_actions=2, outputs=2)
    with refused(ShapeError, r"critic.*\(None, 1\).*\(None, 2\).*Dense\(1\)"):
        ddpg((actor, critic, action), nb_actions=2)


def test_a_model_of_another_keras_is_refused():
    # what a tf_keras model looks like from here: the same names, other classes
    foreign = type("Sequential", (), {"__module__": "tf_keras.src.engine.sequential"})()
    with refused(
        ArgumentError, r"model is a tf_keras\.src\.engine\.sequential\.Sequential.*Keras 3"
    ):
        dqn(foreign)
    with refused(ArgumentError, r"actor is a tf_keras.*`import keras`"):
        ddpg((foreign, *ddpg_networks()[1:]))
    with refused(ArgumentError, r"critic is a tf_keras"):
        ddpg((network(), foreign, None))


@pytest.mark.parametrize("called", [True, False])
def test_a_model_whose_inputs_nobody_knows_is_refused(called):
    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(2)

        def call(self, inputs):
            return self.out(keras.ops.reshape(inputs, (-1, 1)))

    model = Mine()
    if called:
        model(np.zeros((1, 1, 1)))
    with refused(ArgumentError, r"subclassed model.*keras\.Sequential"):
        dqn(model)


@pytest.mark.parametrize("enabled", [True, False])
def test_an_unknown_dueling_type_is_refused(enabled):
    with refused(ArgumentError, r"dueling_type='mean'; pass one of \('avg', 'max', 'naive'\)"):
        dqn(enable_dueling_network=enabled, dueling_type="mean")


# Memories --------------------------------------------------------------------------------------


@pytest.mark.parametrize("window, least", [(1, 3), (4, 6)])
def test_a_limit_below_a_window_and_two_is_refused(window, least):
    sentence = rf"limit={least - 1} .*window_length={window}.*Pass limit={least} or more"
    with refused(ArgumentError, sentence):
        DeviceMemory(least - 1, window_length=window)
    with refused(ArgumentError, sentence):
        dqn(memory=SequentialMemory(limit=least - 1, window_length=window))
    DeviceMemory(least, window_length=window)


@pytest.mark.parametrize("memory", [DeviceMemory(20), SequentialMemory(limit=20, window_length=1)])
def test_a_batch_that_the_memory_cannot_hold_is_refused(memory):
    with refused(ArgumentError, r"batch_size=32.*limit=20.*pass batch_size=20 or less"):
        dqn(memory=memory, batch_size=32)
    dqn(memory=memory, batch_size=20)


def test_a_missing_memory_is_named():
    for make in (dqn, ddpg):
        with refused(ArgumentError, r"memory is missing; pass memory=DeviceMemory\("):
            make(memory=None)
        for wrong in ("memory", DeviceMemory, 50_000):
            with refused(ArgumentError, r"pass memory=DeviceMemory\("):
                make(memory=wrong)


def test_a_memory_that_samples_too_little_is_named():
    class Short(Memory):
        def sample(self, batch_size, batch_idxs=None):
            return [Experience([np.zeros(1)], 0, 0.0, [np.zeros(1)], False)] * 3

    agent = dqn(memory=Short(window_length=1), nb_steps_warmup=0)
    agent.training, agent.step = True, 1
    with refused(ArgumentError, r"Short\.sample\(4\) returned 3 experiences"):
        agent.backward(0.0, terminal=False)


def test_training_before_anything_can_be_sampled_is_explained():
    agent = dqn(nb_steps_warmup=0, memory=DeviceMemory(500))
    agent.training, agent.step = True, 1
    agent.recent_observation, agent.recent_action = np.zeros(1, np.float32), 0
    agent.memory.allocate(agent.recent_observation)
    with refused(KerasRLError, r"none of the 1 stored rows.*Raise nb_steps_warmup"):
        agent.backward(0.0, terminal=False)


# Numbers ---------------------------------------------------------------------------------------


COUNTS = ["batch_size", "train_interval", "memory_interval", "updates"]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 2.5, float("nan"), float("inf"), "4", None])
def test_counts_have_to_be_whole_and_positive(name, value):
    for make in (dqn, ddpg):
        with refused(ArgumentError, rf"{name}={value!r}; pass a whole number"):
            make(**{name: value})


@pytest.mark.parametrize("name", COUNTS)
def test_whole_numbers_may_come_as_floats(name):
    agent = dqn(**{name: 4.0})
    assert type(getattr(agent, name)) is int
    assert type(agent.get_config()[name]) is int


@pytest.mark.parametrize("value", [-1, 2.5, None, "10"])
def test_warm_ups_have_to_be_counts(value):
    with refused(ArgumentError, r"nb_steps_warmup="):
        dqn(nb_steps_warmup=value)
    for name in ("nb_steps_warmup_critic", "nb_steps_warmup_actor"):
        with refused(ArgumentError, f"{name}="):
            ddpg(**{name: value})


@pytest.mark.parametrize("value", [None, 0, -2, 2.5, "2"])
def test_a_number_of_actions_is_needed(value):
    with refused(ArgumentError, "nb_actions"):
        dqn(nb_actions=value)
    with refused(ArgumentError, "nb_actions"):
        ddpg(ddpg_networks(), nb_actions=value)


@pytest.mark.parametrize(
    "name, values, fits",
    [
        ("gamma", [-0.1, 1.1, float("nan"), None, "0.9"], "between 0 and 1"),
        ("target_model_update", [-1, float("nan"), None], "fraction below 1"),
        ("delta_clip", [0, -1.0, float("nan"), None], "above 0"),
        ("truncation", ["end", None, True], "'bootstrap' or 'terminal'"),
        ("seed", [-1, 1.5, "x"], "whole number"),
    ],
)
def test_settings_out_of_range_are_refused(name, values, fits):
    for value in values:
        for make in (dqn, ddpg):
            with refused(ArgumentError, rf"{name}={value!r}; pass .*{fits}"):
                make(**{name: value})


@pytest.mark.parametrize(
    "options", [{"limit": 10.5}, {"limit": "10"}, {"window_length": 0}, {"window_length": 1.5}]
)
def test_a_memorys_numbers_have_to_be_counts(options):
    (name,) = options
    with refused(ArgumentError, f"{name}="):
        DeviceMemory(**{"limit": 10, **options})


@pytest.mark.parametrize("name", ["nb_steps", "action_repetition", "nb_max_start_steps"])
@pytest.mark.parametrize("value", [-1, 2.5, "3", None])
def test_a_runs_numbers_have_to_be_counts(name, value):
    with refused(ArgumentError, rf"{name}={value!r}; pass"):
        dqn().fit(Count(), **{"nb_steps": 3, "verbose": 0, name: value})


# Agents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda agent: agent.fit(Count(), 3),
        lambda agent: agent.test(Count()),
        lambda agent: agent.forward(np.zeros(1, np.float32)),
        lambda agent: agent.backward(0.0, terminal=False),
    ],
    ids=["fit", "test", "forward", "backward"],
)
@pytest.mark.parametrize("make", [dqn, ddpg])
def test_an_agent_that_is_not_compiled_says_so(make, use):
    with refused(NotCompiled, r"agent\.compile\(keras\.optimizers\.Adam"):
        use(make(compiled=False))


def test_what_else_needs_compile_says_so():
    state = [np.zeros(1, np.float32)]
    with refused(NotCompiled, "compile"):
        dqn(compiled=False).compute_q_values(state)
    with refused(NotCompiled, "compile"):
        ddpg(compiled=False).select_action(state)
    with refused(NotCompiled, "compile"):
        _ = dqn(compiled=False).target_model


def test_what_compile_cannot_take_is_refused():
    for agent in (dqn(), ddpg()):
        with refused(ArgumentError, r"optimizer='addam'"):
            agent.compile("addam")
        with refused(ArgumentError, r"metrics: Keras knows no metric 'maee'"):
            agent.compile("sgd", metrics=["maee"])
        with refused(ArgumentError, r"metrics: 5 is neither a name, a function"):
            agent.compile("sgd", metrics=[5])
        agent.compile("sgd", metrics=None)
        assert agent.metrics_names == ["loss", "mean_q"]
    with refused(ArgumentError, r"3 optimizers; pass one, or a pair"):
        ddpg().compile(["sgd"] * 3)


class Noise:
    def __init__(self, sample):
        self.sample = lambda: sample

    def reset_states(self):
        pass


@pytest.mark.parametrize("sample", [np.zeros(2), np.zeros((1, 1)), 0.5], ids=np.shape)
def test_noise_of_another_size_is_refused(sample):
    agent, env = ddpg(random_process=Noise(sample)), Count()
    env.action_space = Box(-1, 1, (1,))
    with refused(ArgumentError, r"noise of shape .*actions of shape \(1,\); pass size=1"):
        agent.fit(env, 5, verbose=0)
    assert env.steps == 0


def test_a_class_given_as_callback_is_named():
    for callback in (keras.callbacks.History, type("Mine", (keras.callbacks.Callback,), {})):
        with refused(ArgumentError, rf"callbacks\[1\] is the class {callback.__name__}.*instance"):
            dqn().fit(Count(), 3, callbacks=[keras.callbacks.History(), callback], verbose=0)


def test_pytorch_gets_one_sentence(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with refused(BackendError, r"'torch'.*KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax"):
        runpy.run_path(engine.__file__)


# Environments, in the middle of a run ----------------------------------------------------------


@pytest.fixture(scope="module")
def agent():
    """A DQN that stores and acts, and never learns; every test adds to its memory."""
    return dqn(policy=GreedyQPolicy(), memory=DeviceMemory(3000))


@pytest.fixture(scope="module")
def other():
    """The same for tests that store what `assert_goes_on` would object to."""
    return dqn(policy=GreedyQPolicy(), memory=DeviceMemory(3000))


def contents(memory):
    """field -> what its rows hold, of a pool that has not wrapped yet."""
    return memory.layout.unpack(engine.to_host(memory.pool)[: memory.nb_entries])


def last_reward(memory):
    return contents(memory)["reward"][-1]


def assert_kept(memory, before):
    after = contents(memory)
    for name, rows in before.items():
        np.testing.assert_array_equal(after[name][: len(rows)], rows)


@pytest.fixture(scope="module")
def stored(agent):
    """Rows are there before anything goes wrong."""
    assert agent.fit(Count(3), 4, verbose=0).completed


def assert_goes_on(agent, before):
    """`fit` and `test` work, and no transition was made of what does not belong together."""
    assert agent.fit(Count(3), 7, verbose=0).completed
    assert agent.test(Count(3), verbose=0, visualize=False).completed
    assert_kept(agent.memory, before)
    batch = agent.memory.read_batch(256)
    starts = batch["observation"]["observation"].ravel()
    following = batch["next_observation"]["observation"].ravel()
    went_on = following == starts + 1
    cut_there = (following == starts) & ~batch["terminated"]
    assert (went_on | cut_there).all()


OBSERVATIONS = {
    "another shape": (np.zeros(2, np.float32), r"\(2,\).*\(1,\)"),
    "no shape": (0.5, r"\(\).*\(1,\)"),
    "None": (None, "None"),
    "NaN": (np.full(1, np.nan, np.float32), "NaN"),
    "text": ("left", "left|shape"),
    "a dict": ({"a": np.zeros(1)}, r"\(1,\)"),
    "complex": (np.zeros(1, complex), "complex"),
}


@pytest.mark.parametrize("observation, sentence", OBSERVATIONS.values(), ids=OBSERVATIONS)
@pytest.mark.parametrize("at", [4, 5], ids=["mid-episode", "last"])
def test_a_bad_observation_is_named_and_costs_nothing(agent, stored, observation, sentence, at):
    before = contents(agent.memory)
    with refused(ObservationError, rf"^step {at}: .*({sentence})"):
        agent.fit(Count(3, at=at, observation=observation), 50, verbose=0)
    assert_kept(agent.memory, before)
    # what came before it is there: an episode of 3 steps with its end, and the next one's first
    rows = contents(agent.memory)["leaf/observation"][len(before["leaf/observation"]) :, 0]
    assert "0 1 2 3 0" in " ".join(f"{value:g}" for value in rows)
    assert_goes_on(agent, before)


def test_a_bad_first_observation_is_named_and_costs_nothing(agent, stored):
    for observation, sentence in (
        (np.zeros(2), r"\(2,\).*\(1,\)"),
        (None, r"env\.reset\(\).*None"),
    ):
        before = contents(agent.memory)
        with refused(ObservationError, f"^step 6: .*{sentence}"):
            agent.fit(Count(3, reset_at=2, observation=observation), 50, verbose=0)
        assert_kept(agent.memory, before)
        assert_goes_on(agent, before)


@pytest.mark.parametrize("reward", [np.nan, None, "much", np.zeros(2)], ids=str)
@pytest.mark.parametrize("at", [4, 5], ids=["mid-episode", "last"])
def test_a_bad_reward_is_named_and_costs_nothing(agent, stored, reward, at):
    before = contents(agent.memory)
    with refused(ObservationError, rf"^step {at}: the reward is"):
        agent.fit(Count(3, at=at, reward=reward), 50, verbose=0)
    assert_kept(agent.memory, before)
    assert_goes_on(agent, before)


def test_a_bad_observation_in_a_test_is_named(agent, stored):
    with refused(ObservationError, r"^step 1: .*\(2,\).*\(1,\)"):
        agent.test(Count(3, at=1, observation=np.zeros(2)), verbose=0, visualize=False)
    assert not agent.in_loop
    assert_goes_on(agent, contents(agent.memory))


def test_a_bad_observation_in_a_repeated_action_is_named(other):
    other.fit(Count(9), 1, verbose=0)
    before = contents(other.memory)
    with refused(ObservationError, r"^step 1: "):
        other.fit(Count(9, at=3, observation=None), 5, action_repetition=2, verbose=0)
    assert_kept(other.memory, before)
    other.fit(Count(9), 1, verbose=0)
    # step 1 began at 2, where its episode is closed; then the next one's start
    np.testing.assert_array_equal(contents(other.memory)["leaf/observation"][-3:, 0], [0, 2, 0])


def test_numbers_in_forms_that_fit_are_taken(other):
    for reward in (np.float32(2), np.array(2.0), np.array([2.0]), 2, np.array([[2.0]])):
        other.fit(Count(3, at=0, reward=reward), 1, verbose=0)
        assert last_reward(other.memory) == 2
    for observation in ([4], np.array([4.0]), np.array([4], np.uint8)):
        other.fit(Count(3, at=0, observation=observation), 2, verbose=0)
        assert contents(other.memory)["leaf/observation"][-1, 0] == 4


def test_what_others_raise_comes_through(agent, stored):
    class Broken(Processor):
        def process_reward(self, reward):
            raise ZeroDivisionError("in the processor")

    class Lost(GreedyQPolicy):
        def select_action(self, q_values):
            raise LookupError("in the policy")

    before = agent.policy
    agent.policy = Lost()
    with pytest.raises(LookupError, match="in the policy"):
        agent.fit(Count(3), 5, verbose=0)
    agent.policy, agent.processor = before, Broken()
    with pytest.raises(ZeroDivisionError, match="in the processor"):
        agent.fit(Count(3), 5, verbose=0)
    agent.processor = None
    assert_goes_on(agent, contents(agent.memory))


# The memory on its own -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first, then, sentence",
    [
        (np.zeros(3, np.float32), np.zeros(4, np.float32), r"\(4,\).*\(3,\)"),
        (np.zeros(3, np.float32), None, "None"),
        (np.zeros(3, np.float32), np.float32([0, np.nan, 0]), "NaN"),
        # an environment whose reset shows integers and whose steps show fractions
        (np.zeros(3, np.int64), np.full(3, 0.5), r"float64.*int32"),
        (np.zeros(3, np.uint8), np.full(3, 300), r"int64.*uint8"),
        ({"a": np.zeros(2), "b": np.zeros(1)}, {"a": np.zeros(2)}, "another structure"),
        ({"a": np.zeros(2)}, {"a": np.zeros(3)}, r"\(3,\).*\(2,\)"),
        ((np.zeros(2), np.zeros(1)), (np.zeros(2), None), "None"),
    ],
)
def test_a_row_that_does_not_fit_leaves_the_memory_as_it_was(first, then, sentence):
    memory = DeviceMemory(20)
    for reward in (1.0, 2.0):
        memory.append(first, 0, reward, False)
    with refused(ObservationError, sentence):
        memory.append(then, 0, 3.0, False)
    assert memory.nb_entries == 2
    memory.append(first, 0, 4.0, False)
    assert memory.rewards.tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("reward", [None, np.nan, "much", np.zeros(2)], ids=str)
def test_a_reward_that_does_not_fit_leaves_the_memory_as_it_was(reward):
    memory = DeviceMemory(20)
    memory.append(np.zeros(1), 0, 1.0, False)
    with refused(ObservationError, "the reward is"):
        memory.append(np.zeros(1), 0, reward, False)
    assert memory.nb_entries == 1
    memory.append(np.zeros(1), 0, np.array([2.0]), False)
    assert memory.rewards.tolist() == [1.0, 2.0]


def test_an_array_that_was_written_into_is_looked_at_again():
    # a loop of one's own hands in what the environment goes on writing into
    memory, buffer = DeviceMemory(20), np.zeros(1, np.float32)
    memory.append(buffer, 0, 1.0, False)
    buffer[0] = np.nan
    with refused(ObservationError, "NaN"):
        memory.append(buffer, 0, 2.0, False)
    with refused(ObservationError, "NaN"):
        memory.see(buffer)
    assert memory.nb_entries == 1


def test_what_no_pool_can_hold_is_refused():
    for observation in (np.zeros(2, complex), "text", np.array([{}]), None):
        memory = DeviceMemory(20)
        with refused(KerasRLError, "complex|no array of numbers|None"):
            memory.append(observation, 0, 0.0, False)
        memory.append(np.zeros(2), 0, 0.0, False)
        assert memory.nb_entries == 1


def test_a_run_inside_a_run_is_refused(other):
    inner = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda episode, logs: other.test(Count(), verbose=0, visualize=False)
    )
    with refused(ArgumentError, "inside a running one"):
        other.fit(Count(3), 10, callbacks=[inner], verbose=0)
    assert other.fit(Count(3), 4, verbose=0).completed

"""DQN and DDPG as agents: what they report, what they learn, and whose methods they call."""

import inspect
import itertools
import json
import math
import subprocess
import sys
import warnings

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TimeLimit
from keras import ops

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, keras_rl
from kerasrl_gpu.agents.dqn import dueling
from kerasrl_gpu.callbacks import Callback
from kerasrl_gpu.inputs import Inputs
from kerasrl_gpu.keras_rl import Experience, Memory, Processor, SequentialMemory
from kerasrl_gpu.policy import GreedyQPolicy

NEVER = 10**9


class Walk(gymnasium.Env):
    """Shows (steps this episode, last action); pays the action. Ends, or is cut, after `length`."""

    observation_space = Box(-np.inf, np.inf, (2,))

    def __init__(self, length=7, cut=False, action_space=None):
        self.length, self.cut, self.actions = length, cut, []
        self.action_space = action_space or Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.n = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.n += 1
        self.actions.append(np.array(action))
        number = float(np.ravel(action)[0])
        done = self.n >= self.length
        shown = np.array([self.n / 8, number], np.float32)
        return shown, number, done and not self.cut, done and self.cut, {}


class Batches(Memory):
    """A memory of the user's own: hands out the same transitions at every draw."""

    def __init__(self, *experiences, window_length=1):
        super().__init__(window_length)
        self.experiences = list(experiences)

    def sample(self, batch_size, batch_idxs=None):
        return self.experiences


def dense(outputs, seed=0, **options):
    start = keras.initializers.GlorotUniform(seed=seed)
    return keras.layers.Dense(outputs, kernel_initializer=start, **options)


def flat_model(outputs=2, inputs=2, **options):
    """One layer: a table of values where the observations are one-hot."""
    return keras.Sequential(
        [
            keras.Input((1, inputs)),
            keras.layers.Flatten(),
            dense(outputs, **options),
        ]
    )


def dqn(kind=DQNAgent, *, model=None, optimizer=None, metrics=(), **options):
    options = {"nb_actions": 2, "batch_size": 4, "nb_steps_warmup": NEVER, "seed": 1, **options}
    options.setdefault("memory", DeviceMemory(200))
    agent = kind(flat_model() if model is None else model, **options)
    agent.compile(optimizer or keras.optimizers.SGD(0.1), metrics=metrics)
    return agent


def fit(agent, env, nb_steps, **options):
    return agent.fit(env, nb_steps, **{"verbose": 0, **options})


def by_hand(agent, env, nb_steps, after_step=lambda metrics: None):
    """keras-rl's loop written out, as in scripts that need one of their own."""
    agent.training, observation = True, None
    for agent.step in range(nb_steps):
        if observation is None:
            agent.reset_states()
            observation, _ = env.reset()
        action = agent.forward(observation)
        observation, reward, terminated, _, _ = env.step(action)
        after_step(agent.backward(reward, terminal=terminated))
        if terminated:
            agent.forward(observation)
            agent.backward(0.0, terminal=False)
            observation = None


def assert_same_weights(got, want, **tolerance):
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, **{"rtol": 0, "atol": 0, **tolerance})


# What is reported, and when --------------------------------------------------------------------


class Keeps(GreedyQPolicy):
    """Greedy, and keeps the values that it was asked with."""

    def __init__(self):
        super().__init__()
        self.q_values = []

    def select_action(self, q_values):
        self.q_values.append(q_values.copy())
        return super().select_action(q_values)


class LateReader(Callback):
    """Keeps `logs["metrics"]`; reads it at once in every third step, else never."""

    def __init__(self):
        super().__init__()
        self.kept, self.ready, self.ready_later = [], [], []

    def on_step_end(self, episode_step, logs=None):
        self.ready_later += [self.kept[-1].ready] if self.kept else []
        self.kept.append(logs["metrics"])
        self.ready.append(logs["metrics"].ready)
        if len(self.kept) % 3 == 0:
            self.numbers = list(logs["metrics"])


def test_metrics_come_late_in_fit_and_at_once_in_a_loop_of_ones_own(capsys):
    # updates in steps 12, 14, 16, ...: after the warm-up of 10, every second step
    options = {"nb_steps_warmup": 10, "train_interval": 2, "metrics": ["mae"]}
    policy, reader = Keeps(), LateReader()
    agent = dqn(policy=policy, target_model_update=0.1, optimizer="adam", **options)
    agent.compile(keras.optimizers.SGD(0.1), metrics=["mae"])  # again: as if it were the first time
    fit(agent, Walk(), 30, callbacks=[reader], verbose=1, log_interval=15)
    assert "mae" in capsys.readouterr().out
    assert int(agent.optimizer.iterations) == 9

    own_policy, numbers, ready = Keeps(), [], []
    own = dqn(policy=own_policy, target_model_update=0.1, **options)
    by_hand(own, Walk(), 30, lambda got: (ready.append(got.ready), numbers.append(list(got))))

    learns = [step > 10 and step % 2 == 0 for step in range(30)]
    assert all(ready)
    assert reader.ready == [not due for due in learns]
    assert all(reader.ready_later)  # the next step's action brought them
    assert all(kept.ready for kept in reader.kept)
    names = ["loss", "mae", "mean_q"]
    assert agent.metrics_names == own.metrics_names == names
    for kept, number, due in zip(reader.kept, numbers, learns, strict=True):
        assert len(kept) == len(number) == len(names)
        assert [math.isnan(value) for value in kept] == [not due] * 3
        np.testing.assert_array_equal(kept, number)
    assert_same_weights(agent.model.get_weights(), own.model.get_weights())
    # and the action that comes with an update is the one that a call of its own would give; in a
    # loop of one's own the last observation of an episode is acted on too
    asked = [values for row, values in enumerate(own_policy.q_values) if row % 8 != 7]
    np.testing.assert_allclose(policy.q_values, asked, rtol=1e-5, atol=1e-6)
    assert set(agent.traces.values()) == {1}


def test_metrics_read_like_a_list():
    agent = dqn()
    seen = []
    by_hand(agent, Walk(), 1, seen.append)
    (metrics,) = seen
    assert np.isnan(np.asarray(metrics)).all()
    assert np.asarray(metrics).shape == (2,)
    assert math.isnan(metrics[0])
    assert len(metrics[:]) == 2
    assert repr(metrics) == "[nan, nan]"


# Names and values ------------------------------------------------------------------------------


def first_value(y_true, y_pred):
    return y_pred[:, 0]


METRICS = {
    "none": ([], []),
    "a name": (["mae"], ["mae"]),
    "a function": ([first_value], ["first_value"]),
    "two": (["mse", first_value], ["mse", "first_value"]),
    "objects": (
        [keras.metrics.MeanSquaredError(), keras.metrics.MeanAbsoluteError(name="off")],
        ["mean_squared_error", "off"],
    ),
    "a class": ([keras.metrics.MeanAbsoluteError], ["MeanAbsoluteError"]),
}


@pytest.mark.parametrize("metrics, names", METRICS.values(), ids=METRICS)
def test_there_is_a_name_for_every_number(metrics, names):
    given = list(metrics)
    for agent in (
        dqn(memory=Batches(), metrics=metrics),
        ddpg(memory=Batches(), metrics=metrics),
        ddpg(memory=Batches(), metrics=(["mse", "mae"], metrics)),  # keras-rl's pair
    ):
        assert agent.metrics_names == ["loss", *names, "mean_q"]
        agent.training, agent.recent_observation = True, np.zeros(2)
        assert len(list(agent.backward(0.0, terminal=False))) == len(agent.metrics_names)
    assert metrics == given


def test_policy_and_processor_report_behind_them():
    class Told(Processor):
        metrics_names, metrics = ["told"], [5.0]

    class Reports(GreedyQPolicy):
        metrics_names, metrics = ["eps"], [0.5]

    agent = dqn(memory=Batches(), policy=Reports(), processor=Told())
    assert agent.metrics_names == ["loss", "mean_q", "eps", "told"]
    agent.training = True
    assert list(agent.backward(0.0, terminal=False))[2:] == [0.5, 5.0]


def test_compile_never_changes_what_it_was_given():
    # keras-rl appends mean_q to the list, to the default one too: one more with every agent
    metrics = ["mae"]
    first, second = dqn(metrics=metrics), dqn(metrics=metrics)
    first.compile("sgd", metrics=metrics)
    first.compile("adam", metrics=metrics)
    assert metrics == ["mae"]
    assert first.metrics_names == second.metrics_names == ["loss", "mae", "mean_q"]
    second.compile("sgd")
    third = dqn()
    third.compile("sgd")
    assert second.metrics_names == third.metrics_names == ["loss", "mean_q"]


# Updates by hand -------------------------------------------------------------------------------


def one_hot(state):
    return [np.eye(2, dtype=np.float32)[state]]


@pytest.mark.parametrize(
    "double, target, changed", [(False, 21, 21), (True, 11, 11)], ids=["plain", "double"]
)
def test_an_update_by_hand(double, target, changed):
    # one transition: state 0, action 1, reward 1, state 1; gamma 0.5; the target network values
    # state 1 at (40, 20), the online one at (1, 3), and state 0 at (5, 6).
    #   plain   1 + 0.5 * max(40, 20) = 21        double   1 + 0.5 * 20 = 11
    # SGD with rate 1 on half the square moves Q(0, 1) = 6 onto the target.
    slow, fast = np.float32([[1, 2], [40, 20]]), np.float32([[5, 6], [1, 3]])
    model = flat_model(use_bias=False)
    model.set_weights([slow])
    agent = dqn(
        model=model, gamma=0.5, batch_size=1, nb_steps_warmup=0, target_model_update=0.25,
        memory=Batches(Experience(one_hot(0), 1, 1.0, one_hot(1), False)),
        enable_double_dqn=double, optimizer=keras.optimizers.SGD(1.0),
        metrics=["mae", first_value, keras.metrics.MeanSquaredError()],
    )  # fmt: skip
    agent.model.set_weights([fast])
    agent.take_weights()
    agent.training, agent.step, agent.recent_observation = True, 1, one_hot(0)[0]
    numbers = dict(zip(agent.metrics_names, agent.backward(0.0, terminal=False), strict=True))
    # what keras-rl compares: the target at the action taken and 0 elsewhere, with all Q-values
    error = target - 6
    assert numbers == pytest.approx(
        {
            "loss": error**2 / 2,
            "mae": (5 + error) / 2,
            "first_value": 5,
            "mean_squared_error": (25 + error**2) / 2,
            "mean_q": 6,
        }
    )
    np.testing.assert_allclose(agent.model.get_weights()[0], [[5, changed], [1, 3]], rtol=1e-6)
    # the blend takes the weights from before the step, as keras-rl2's does
    (blended,) = agent.target_model.get_weights()
    np.testing.assert_allclose(blended, 0.75 * slow + 0.25 * fast, rtol=1e-6)


def test_the_loss_is_the_updates_own():
    # the target jumps from 0 to 1000 at update 5; a running mean would still show a sixth of it
    memory = Batches()
    agent = dqn(
        model=flat_model(use_bias=False), memory=memory, batch_size=1, nb_steps_warmup=0,
        metrics=[keras.metrics.MeanAbsoluteError()],
    )  # fmt: skip
    agent.training, agent.recent_observation = True, one_hot(0)[0]
    for update in range(8):
        reward = 0.0 if update < 5 else 1000.0
        memory.experiences = [Experience(one_hot(0), 1, reward, one_hot(1), True)]
        q_values = agent.model.get_weights()[0][0]
        agent.step = update + 1
        loss, off, _ = agent.backward(0.0, terminal=False)
        error = reward - q_values[1]
        assert loss == pytest.approx(error**2 / 2, rel=1e-5)
        assert off == pytest.approx((abs(error) + abs(q_values[0])) / 2, rel=1e-5)


class Same(gymnasium.Env):
    """One state, one action, reward 1, for ever (or ended after `length`)."""

    observation_space, action_space = Box(0, 1, (1,)), Discrete(1)

    def __init__(self, length=NEVER):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.n = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.n += 1
        return np.ones(1, np.float32), 1.0, self.n >= self.length, False, {}


def one_number(**options):
    """An agent whose network is one number: the value of the only state."""
    model = flat_model(1, 1, use_bias=False)
    model.set_weights([np.zeros((1, 1))])
    return dqn(model=model, nb_actions=1, **options)


def test_k_updates_in_one_call_are_k_single_ones():
    # all rows are alike, so it does not matter which are drawn; hard copies every 6 steps
    options = {"target_model_update": 6, "batch_size": 1, "nb_steps_warmup": 0}
    options["optimizer"] = keras.optimizers.SGD(0.3)
    single, together = one_number(**options), one_number(updates=3, train_interval=3, **options)
    values, reported = {}, {}

    def note(agent):
        def after_step(metrics):
            state = agent.state
            online, target = state.online["model"].trainable, state.target["model"].trainable
            row = [float(ops.convert_to_numpy(x[0])[0, 0]) for x in (online, target)]
            values.setdefault(agent, []).append(row)
            reported.setdefault(agent, []).append(list(metrics))

        return after_step

    for agent in (single, together):
        by_hand(agent, Same(), 16, note(agent))
    online, target = np.array(values[single]).T
    # the target holds what the network was when a multiple of 6 was last over
    np.testing.assert_array_equal(target, [online[step // 6 * 6] for step in range(16)])
    assert len(set(online)) == 16  # it learns in every step but the first
    np.testing.assert_allclose(values[together][::3], values[single][::3], rtol=1e-5)
    assert np.isnan(reported[together]).all(axis=1).tolist() == [
        step % 3 != 0 or step == 0 for step in range(16)
    ]
    # a copy in place is no reason to compile anything again
    for agent in (single, together):
        assert set(agent.traces.values()) == {1}
    means = np.array(reported[single])[1:].reshape(5, 3, 2).mean(axis=1)
    np.testing.assert_allclose(np.array(reported[together])[3::3], means, rtol=1e-5)


# Truncation ------------------------------------------------------------------------------------


def value_after(agent, env, **options):
    """What the agent takes the only state to be worth after 200 more steps, started from 0."""
    agent.model.set_weights([np.zeros((1, 1))])
    agent.take_weights()
    agent.update_target_model_hard()
    fit(agent, env, 200, **options)
    return float(agent.compute_q_values([np.ones(1, np.float32)])[0])


def clock_learner(truncation):
    return one_number(
        gamma=0.9, target_model_update=0.5, batch_size=16, nb_steps_warmup=16,
        memory=DeviceMemory(60),
        optimizer=keras.optimizers.SGD(0.8), truncation=truncation,
    )  # fmt: skip


def test_a_clock_that_runs_out_is_no_ending():
    # reward 1 for ever is worth 1 / (1 - 0.9) = 10. Where a cut after 10 steps counts as an end,
    # one row in 10 has no future: v = 1 + 0.9 * 0.9 * v, 5.3.
    agent = clock_learner("bootstrap")
    assert value_after(agent, TimeLimit(Same(), 10)) == pytest.approx(10, abs=0.5)
    assert value_after(agent, Same(), nb_max_episode_steps=10) == pytest.approx(10, abs=0.5)
    # both at once is an ending
    assert value_after(agent, TimeLimit(Same(10), 10)) == pytest.approx(5.3, abs=1.2)


def test_keras_rls_way_takes_it_for_one():
    agent = clock_learner("terminal")
    assert value_after(agent, TimeLimit(Same(), 10)) == pytest.approx(5.3, abs=1.2)
    assert value_after(agent, Same(), nb_max_episode_steps=10) == pytest.approx(5.3, abs=1.2)


# Loops of one's own ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def acting():
    """A DQN that stores and acts, and never learns; in training it takes the worst action."""

    class Worst(GreedyQPolicy):
        def select_action(self, q_values):
            return super().select_action(-q_values)

    return dqn(policy=Worst())


def test_a_loop_of_ones_own_after_a_cut_stores_endings(acting):
    fit(acting, Walk(2, cut=True), 2)
    stored = acting.memory.nb_entries
    by_hand(acting, Walk(2), 2)
    batch = acting.memory.read_batch(2, [stored - 2, stored + 1])
    np.testing.assert_array_equal(batch["terminated"], [False, True])


def test_a_loop_of_ones_own_acts_with_the_weights_that_it_was_given(acting):
    acting.training = False
    observation = np.array([1, 0], np.float32)
    for best in (0, 1, 0):
        kernel, bias = np.zeros((2, 2)), np.eye(2)[best]
        acting.model.set_weights([kernel, bias])
        assert acting.forward(observation) == best
        acting.model.set_weights([kernel, -bias])
        assert acting.compute_q_values([observation]).argmax() != best


def test_test_acts_greedily_and_stores_nothing(acting):
    stored = acting.memory.nb_entries
    acting.model.set_weights([np.zeros((2, 2)), np.array([0.0, 1.0])])
    env = Walk(5)
    acting.test(env, nb_episodes=3, verbose=0, visualize=False)
    assert [int(action) for action in env.actions] == [1] * 15
    assert acting.memory.nb_entries == stored


# Subclasses ------------------------------------------------------------------------------------


def test_forward_and_backward_may_be_overridden():
    class Mine(DQNAgent):
        def forward(self, observation):
            super().forward(observation)
            self.recent_action = 1
            return 1

        def backward(self, reward, terminal):
            return super().backward(10 * reward, terminal)

    agent, env = dqn(Mine, policy=GreedyQPolicy()), Walk(4)
    agent.model.set_weights([np.zeros((2, 2)), np.array([1.0, 0.0])])  # prefers action 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one call a step all the same: nothing to say
        fit(agent, env, 6)
    assert {int(action) for action in env.actions} == {1}
    np.testing.assert_array_equal(agent.memory.actions[:4], 1)
    np.testing.assert_array_equal(agent.memory.rewards[:4], 10)


def messages(caught):
    return [str(warning.message) for warning in caught if "overrides" in str(warning.message)]


@pytest.mark.parametrize("method", ["compute_q_values", "compute_batch_q_values"])
def test_values_may_be_computed_by_a_subclass(method):
    def values(self, states):
        asked.append(np.shape(states))
        return np.array([0.0, 1.0]) if method == "compute_q_values" else np.array([[0.0, 1.0]])

    asked = []
    agent = dqn(type("Mine", (DQNAgent,), {method: values}), policy=GreedyQPolicy())
    env = Walk(4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(agent, env, 6)
        fit(agent, env, 2)
    assert {int(action) for action in env.actions} == {1}
    assert len(asked) == len(env.actions)
    assert set(asked) == {(1, 2) if method == "compute_q_values" else (1, 1, 2)}
    (said,) = messages(caught)  # once
    assert f"Mine overrides ['{method}']" in said


def test_states_may_be_processed_by_a_subclass():
    class Mine(DQNAgent):
        def process_state_batch(self, batch):
            batch = super().process_state_batch(batch)
            sizes.append(batch.shape)
            return 0 * batch

    sizes = []
    model, weights = flat_model(), [np.ones((2, 2)), np.ones(2)]
    model.set_weights(weights)
    agent = dqn(Mine, model=model, nb_steps_warmup=5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(agent, Walk(99), 8)
    # as in keras-rl: one state to act, and two batches an update, in steps 6 and 7
    acted, learned = (1, 1, 2), (4, 1, 2)
    assert sizes[-8:] == [acted, acted, acted, learned, learned, acted, learned, learned]
    assert len(messages(caught)) == 1
    # states that are all zero teach the bias only
    assert_same_weights([agent.model.get_weights()[0]], [weights[0]])
    assert (agent.model.get_weights()[1] != weights[1]).any()


def test_actions_may_be_selected_by_a_subclass():
    class Mine(DDPGAgent):
        def select_action(self, state):
            states.append(np.shape(state))
            return np.array([0.25], np.float32)

    states = []
    agent, env = ddpg(Mine), walk_line()
    with pytest.warns(UserWarning, match=r"Mine overrides \['select_action'\]"):
        fit(agent, env, 6)
    assert {float(action[0]) for action in env.actions} == {0.25}
    assert set(states) == {(1, 2)}


def test_processors_see_state_batches_as_in_keras_rl():
    class Spy(Processor):
        """Keeps what it sees, so it cannot be part of a compiled call."""

        def __init__(self):
            self.sizes = []

        def process_state_batch(self, batch):
            self.sizes.append(np.shape(batch))
            return np.asarray(batch) * 2

    agent = dqn(processor=Spy(), nb_steps_warmup=5)
    with pytest.warns(UserWarning, match="slower"):
        fit(agent, Walk(99), 8)
    acted, learned = (1, 1, 2), (4, 1, 2)
    sizes = agent.processor.sizes
    assert sizes[-8:] == [acted, acted, acted, learned, learned, acted, learned, learned]


# Dueling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dueling_type, values", [("avg", [8, 12]), ("max", [6, 10]), ("naive", [11, 15])]
)
def test_dueling_values_by_hand(dueling_type, values):
    # V = 10, A = (1, 5); mean A = 3, max A = 5:  10 + 1 - 3 = 8,  10 + 5 - 5 = 10,  10 + 5 = 15
    model = dueling(flat_model(), dueling_type)
    model.set_weights([np.array([[10, 1, 5], [0, 0, 0]]), np.zeros(3)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it takes what the model took
        got = model(np.float32([[[1, 0]]]))
    np.testing.assert_allclose(got, [values], rtol=1e-6)


def test_a_dueling_network_comes_back_with_keras_alone(tmp_path):
    observations = np.random.default_rng(0).normal(size=(5, 1, 2)).astype(np.float32)
    rows = [Experience(one_hot(0), row % 2, 1.0, one_hot(1), False) for row in range(4)]
    trained = dqn(enable_dueling_network=True, memory=Batches(*rows), nb_steps_warmup=0)
    trained.training, trained.step, trained.recent_observation = True, 1, one_hot(0)[0]
    trained.backward(0.0, terminal=False)
    models = {"trained": trained.model}
    for dueling_type in ("max", "naive"):
        agent = dqn(enable_dueling_network=True, dueling_type=dueling_type)
        models[dueling_type] = agent.model
    outputs = {}
    for name, model in models.items():
        model.save(tmp_path / f"{name}.keras")
        outputs[name] = ops.convert_to_numpy(model(observations))
    np.savez(tmp_path / "seen.npz", observations=observations, **outputs)
    code = """
import sys, keras, numpy as np
seen = np.load("seen.npz")
for name in ("trained", "max", "naive"):
    model = keras.saving.load_model(name + ".keras", safe_mode=True)
    got = keras.ops.convert_to_numpy(model(seen["observations"]))
    np.testing.assert_allclose(got, seen[name], rtol=1e-6, atol=1e-6)
assert not any(name.startswith(("kerasrl_gpu", "rl.")) for name in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


# DDPG ------------------------------------------------------------------------------------------


def ddpg_networks(action_first=True, outputs=1, nb_actions=1, window=1, width=2):
    """(actor, critic, action input); the same weights wherever the action goes in."""
    observation = keras.Input((window, width))
    actor = keras.Model(
        observation, dense(nb_actions, activation="tanh")(keras.layers.Flatten()(observation))
    )
    action, observation = keras.Input((nb_actions,)), keras.Input((window, width))
    both = keras.layers.Concatenate()([action, keras.layers.Flatten()(observation)])
    value = dense(outputs)(dense(4, seed=1, activation="relu")(both))
    inputs = [action, observation] if action_first else [observation, action]
    return actor, keras.Model(inputs, value), action


def ddpg(kind=DDPGAgent, *, networks=None, optimizer="sgd", metrics=(), **options):
    actor, critic, action = networks or ddpg_networks()
    options = {"nb_actions": 1, "batch_size": 4, "seed": 1, **options}
    options.setdefault("memory", DeviceMemory(200))
    agent = kind(actor=actor, critic=critic, critic_action_input=action, **options)
    agent.compile(optimizer, metrics=metrics)
    return agent


def walk_line(**options):
    return Walk(action_space=Box(-2, 2, (1,)), **options)


class Noise:
    """keras-rl's interface for exploration: pushes to both sides in turn, far."""

    def __init__(self, size=9.0):
        self.size, self.samples, self.resets = size, 0, 0

    def sample(self):
        self.samples += 1
        return np.array([self.size * (-1) ** self.samples])

    def reset_states(self):
        self.resets += 1


class WeightsWatch(Callback):
    """The networks' weights after every step, and what the step reported."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic, self.metrics = [], [], []

    def on_step_end(self, episode_step, logs=None):
        self.metrics.append(list(logs["metrics"]))
        self.actor.append(np.concatenate([w.ravel() for w in self.agent.actor.get_weights()]))
        self.critic.append(np.concatenate([w.ravel() for w in self.agent.critic.get_weights()]))


def test_ddpg_warms_up_explores_and_stays_in_bounds():
    noise, watch, env = Noise(), WeightsWatch(), walk_line()
    agent = ddpg(
        random_process=noise, nb_steps_warmup_critic=5, nb_steps_warmup_actor=10,
        optimizer=(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01)),
        metrics=[first_value, keras.metrics.MeanAbsoluteError()],
    )  # fmt: skip
    fit(agent, env, 15, callbacks=[watch])
    changed = lambda rows: [bool((a != b).any()) for a, b in itertools.pairwise(rows)]  # noqa: E731
    assert changed(watch.critic) == [step > 5 for step in range(1, 15)]
    assert changed(watch.actor) == [step > 10 for step in range(1, 15)]
    assert np.isnan(watch.metrics).all(axis=1).tolist() == [step <= 5 for step in range(15)]
    assert np.isfinite(watch.metrics[6:]).all()
    assert agent.metrics_names == ["loss", "first_value", "mean_absolute_error", "mean_q"]
    # noise of 9 on actions of at most 1 hits the bounds of 2, on both sides
    assert {float(action[0]) for action in env.actions} == {-2.0, 2.0}
    np.testing.assert_array_equal(np.abs(agent.memory.actions[:7]), 2)  # and is stored as taken
    assert noise.samples == 15
    assert noise.resets >= 3  # made new at each episode's start
    # a test neither explores nor learns
    before, samples = agent.actor.get_weights(), noise.samples
    env = walk_line()
    agent.test(env, nb_episodes=2, verbose=0, visualize=False)
    assert noise.samples == samples
    assert all(abs(float(action[0])) <= 1 for action in env.actions)
    assert_same_weights(agent.actor.get_weights(), before)
    agent.training = False
    want = ops.convert_to_numpy(agent.actor(np.zeros((1, 1, 2), np.float32)))[0]
    np.testing.assert_allclose(agent.select_action([np.zeros(2, np.float32)]), want, rtol=1e-5)


def test_a_processor_that_handles_actions_handles_bounds():
    class Squashes(Processor):
        def process_action(self, action):
            seen.append(float(action[0]))
            return np.tanh(action)

    seen, env = [], walk_line()
    fit(ddpg(random_process=Noise(), processor=Squashes()), env, 4)
    assert all(abs(action) > 7 for action in seen)
    assert all(abs(float(action[0])) <= 1 for action in env.actions)


@pytest.fixture
def line_batch():
    random = np.random.default_rng(0)
    draw = lambda size: random.normal(size=size).astype(np.float32)  # noqa: E731
    return Batches(*(
        Experience([draw(2)], draw(1), float(draw(())), [draw(2)], row == 0) for row in range(4)
    ))  # fmt: skip


def test_the_action_may_be_any_input_of_the_critic(line_batch):
    # (the actor's optimizer has rate 0: a pair is the actor's, then the critic's)
    reported = []
    for first in (True, False):
        networks = ddpg_networks(action_first=first)
        before = [network.get_weights() for network in networks[:2]]
        agent = ddpg(
            networks=networks, memory=line_batch, nb_steps_warmup_critic=0, nb_steps_warmup_actor=0,
            optimizer=(keras.optimizers.SGD(0.0), keras.optimizers.SGD(0.1)),
        )  # fmt: skip
        agent.training, agent.recent_observation = True, np.zeros(2, np.float32)
        for agent.step in range(1, 4):
            metrics = list(agent.backward(0.0, terminal=False))
        reported.append((metrics, agent.critic.get_weights()))
        assert_same_weights(agent.actor.get_weights(), before[0])
        assert (agent.critic.get_weights()[0] != before[1][0]).any()
    assert reported[0][0] == pytest.approx(reported[1][0], rel=1e-6)
    assert_same_weights(reported[0][1], reported[1][1], rtol=1e-6)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_action_goes_between_several_observations(position):
    parts = [keras.Input((1, 3), name="a"), keras.Input((1, 2), name="b")]
    action = keras.Input((1,), name="action")
    parts.insert(position, action)
    flat = [keras.layers.Flatten()(part) for part in parts]
    critic = keras.Model(parts, dense(1)(keras.layers.Concatenate()(flat)))
    seen = {"a": np.zeros((4, 1, 3)), "b": np.zeros((4, 1, 2))}
    takes = Inputs(critic, seen, 1, position)(seen, np.zeros((4, 1)))
    want = [(4, 1, 3), (4, 1, 2)]
    want.insert(position, (4, 1))
    assert [np.shape(part) for part in takes] == want


class Parts(gymnasium.Env):
    """Three observations at once, as LIDAR, speed and goal might be; the reward is an array."""

    action_space = Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        self.n = 0
        return self.look(), {}

    def look(self):
        return np.zeros((3, 2), np.float32), np.float32([self.n, 1]), np.uint8([self.n])

    def step(self, action):
        self.n += 1
        return self.look(), np.array([-float(action[0] ** 2)]), self.n % 5 == 0, False, {}


def test_ddpg_learns_from_three_observations_at_once():
    def start():
        shapes = [(1, 3, 2), (1, 2), (1, 1)]
        inputs = [keras.Input(shape) for shape in shapes]
        return inputs, [keras.layers.Flatten()(one) for one in inputs]

    inputs, flat = start()
    actor = keras.Model(inputs, dense(2, activation="tanh")(keras.layers.Concatenate()(flat)))
    inputs, flat = start()
    action = keras.Input((2,))
    value = dense(1)(keras.layers.Concatenate()([*flat, action]))
    critic = keras.Model([*inputs[:2], action, inputs[2]], value)
    agent = ddpg(
        networks=(actor, critic, action), nb_actions=2, metrics=["mae"],
        nb_steps_warmup_critic=6, nb_steps_warmup_actor=6, optimizer="adam",
    )  # fmt: skip
    before, watch = critic.get_weights(), WeightsWatch()
    fit(agent, Parts(), 9, callbacks=[watch])
    assert np.isfinite(watch.metrics[-1]).all()
    assert (agent.critic.get_weights()[0] != before[0]).any()
    assert agent.memory.rewards.shape == (10,)


def test_one_optimizer_serves_both_networks_without_being_shared():
    one = keras.optimizers.Adam(0.003, clipnorm=1.0)
    agent = ddpg(optimizer=one)
    assert agent.actor_optimizer is one
    assert agent.critic_optimizer is not one
    assert agent.critic_optimizer.get_config() == one.get_config()
    agent = ddpg(optimizer=(one, one))
    assert agent.actor_optimizer is not agent.critic_optimizer
    agent = ddpg(optimizer=("sgd", keras.optimizers.Adam(0.5)))
    assert type(agent.actor_optimizer).__name__ == "SGD"
    assert float(agent.critic_optimizer.learning_rate) == 0.5


# What an agent says of itself ------------------------------------------------------------------


@pytest.mark.parametrize("make", [dqn, lambda: ddpg(random_process=None)], ids=["dqn", "ddpg"])
def test_every_argument_stands_in_the_config(make):
    agent = make()
    config = json.loads(json.dumps(agent.get_config()))
    objects = {"model", "actor", "critic", "critic_action_input", "processor"}
    deprecated = {"delta_range", "custom_model_objects"}
    arguments = set(inspect.signature(type(agent)).parameters) - objects - deprecated
    assert arguments <= set(config)
    assert config["memory"]["class_name"] == "DeviceMemory"
    assert config["memory"]["config"]["limit"] == 200


@pytest.mark.parametrize(
    "kind, first",
    [
        (
            DQNAgent,
            "model policy test_policy enable_double_dqn enable_dueling_network dueling_type "
            "nb_actions memory gamma batch_size nb_steps_warmup train_interval memory_interval "
            "target_model_update delta_range delta_clip custom_model_objects processor",
        ),
        (
            DDPGAgent,
            "nb_actions actor critic critic_action_input memory gamma batch_size "
            "nb_steps_warmup_critic nb_steps_warmup_actor train_interval memory_interval "
            "delta_range delta_clip random_process custom_model_objects target_model_update "
            "processor",
        ),
    ],
)
def test_keras_rls_arguments_come_first_and_ours_by_keyword_only(kind, first):
    parameters = inspect.signature(kind).parameters
    by_position = [n for n, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert by_position == first.split()
    ours = {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert {"seed", "updates", "truncation"} <= ours


@pytest.mark.parametrize("method", ["fit", "test"])
def test_fit_and_test_take_keras_rls_arguments_in_keras_rls_order(method):
    ours = dict(inspect.signature(getattr(DQNAgent, method)).parameters)
    theirs = dict(inspect.signature(getattr(keras_rl.Agent, method)).parameters)
    del ours["agent"], theirs["self"]
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default


def test_delta_range_still_means_delta_clip():
    with pytest.warns(UserWarning, match=r"deprecated.*delta_clip=2"):
        assert dqn(delta_range=(-2.0, 2.0)).delta_clip == 2.0


# Files -----------------------------------------------------------------------------------------


def test_weights_come_back_under_keras_rls_names(tmp_path):
    agent, other = dqn(), dqn(model=flat_model(seed=5))
    agent.save_weights(tmp_path / "dqn_weights.h5f")
    assert [path.name for path in tmp_path.iterdir()] == ["dqn_weights.h5f"]
    with pytest.raises(FileExistsError, match="overwrite=True"):
        agent.save_weights(tmp_path / "dqn_weights.h5f")
    agent.save_weights(tmp_path / "dqn_weights.h5f", overwrite=True)
    other.load_weights(tmp_path / "dqn_weights.h5f")
    want = agent.model.get_weights()
    assert_same_weights(other.model.get_weights(), want)
    assert_same_weights(other.target_model.get_weights(), want)


def test_ddpg_writes_keras_rls_two_names(tmp_path):
    agent = ddpg()
    agent.save_weights(str(tmp_path / "ddpg_weights.h5f"))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["ddpg_weights_actor.h5f", "ddpg_weights_critic.h5f"]
    want = [network.get_weights() for network in (agent.actor, agent.critic)]
    for network in (agent.actor, agent.critic):
        network.set_weights([0 * weight for weight in network.get_weights()])
    agent.take_weights()
    agent.update_target_models_hard()
    assert not any(weight.any() for weight in agent.target_critic.get_weights())
    agent.load_weights(str(tmp_path / "ddpg_weights.h5f"))
    for networks in ((agent.actor, agent.critic), (agent.target_actor, agent.target_critic)):
        for network, weights in zip(networks, want, strict=True):
            assert_same_weights(network.get_weights(), weights)


@pytest.mark.parametrize("window", [1, 2])
def test_a_memory_of_the_users_own_is_learned_from_through_its_sample(window):
    class Mine(SequentialMemory):
        sampled = 0

        def sample(self, batch_size, batch_idxs=None):
            self.sampled += 1
            return super().sample(batch_size, batch_idxs)

    inputs = keras.Input((window, 2))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(inputs)))
    memory = Mine(limit=200, window_length=window)
    agent = DQNAgent(model, nb_actions=2, memory=memory, nb_steps_warmup=19, batch_size=8, seed=1)
    agent.compile("sgd")
    before = model.get_weights()[0]
    history = agent.fit(Walk(), 60, verbose=0)
    assert history.completed
    assert memory.sampled == 40  # steps 20 .. 59
    # keras-rl's contract: a row for every step, and one for each episode's last observation
    assert memory.nb_entries == 60 + len(history.history["episode_reward"])
    assert not np.array_equal(before, model.get_weights()[0])

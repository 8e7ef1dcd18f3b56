"""Agents from a checkpoint alone, here and in a new process; what differs is refused by name."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import keras
import numpy as np
import pytest
import scenarios
from scenarios import everything

import kerasrl_gpu
from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, policy
from kerasrl_gpu.errors import CheckpointError
from kerasrl_gpu.keras_rl import rl_policy, rl_processors, rl_random
from kerasrl_gpu.processors import WhiteningNormalizerProcessor
from kerasrl_gpu.random import OrnsteinUhlenbeckProcess
from kerasrl_gpu.resume import parts

STEPS, GO_ON = 50, 30


def dqn(model=None, kind=DQNAgent, optimizer=None, metrics=(), memory=None, seed=3, **changes):
    """A small agent; its weights are the same each time."""
    keras.utils.set_random_seed(1)
    agent = kind(**{
        "model": model or scenarios.q_network((4,), 2),
        "nb_actions": 2,
        "memory": DeviceMemory(limit=90) if memory is None else memory,
        "nb_steps_warmup": 20,
        "batch_size": 8,
        "target_model_update": 17,
        "seed": seed,
        **changes,
    })  # fmt: skip
    agent.compile(optimizer or keras.optimizers.Adam(1e-3), metrics=metrics)
    return agent


def ddpg(noise=None, **changes):
    keras.utils.set_random_seed(1)
    networks = scenarios.actor_critic((3,), 1)
    agent = DDPGAgent(
        1, networks["actor"], networks["critic"], networks["input"], DeviceMemory(limit=90),
        batch_size=8, nb_steps_warmup_critic=10, nb_steps_warmup_actor=20, seed=6,
        random_process=noise or OrnsteinUhlenbeckProcess(theta=0.15, sigma=0.3), **changes,
    )  # fmt: skip
    agent.compile((keras.optimizers.Adam(1e-4, clipnorm=1.0), keras.optimizers.RMSprop(1e-3)))
    return agent


def duel():
    """CartPole: dueling, double, window 3, annealed exploration, a schedule, a metric."""
    explore = policy.LinearAnnealedPolicy(policy.EpsGreedyQPolicy(), "eps", 1.0, 0.1, 0.0, 80)
    rate = keras.optimizers.schedules.ExponentialDecay(2e-3, 20, 0.9)
    agent = dqn(
        scenarios.q_network((4,), 2, window=3), memory=DeviceMemory(limit=90, window_length=3),
        policy=explore, enable_double_dqn=True, enable_dueling_network=True, dueling_type="max",
        optimizer=keras.optimizers.Adam(rate), metrics=["mae"],
    )  # fmt: skip
    return "CartPole-v1", agent


def swing():
    """Pendulum: whitened, with noise, one optimizer each; the action is the critic's input 1."""
    return "Pendulum-v1", ddpg(processor=WhiteningNormalizerProcessor())


def digest_of_the_next_steps(agent, env):
    """Every action, reward, observation and metric of the steps that follow, as one number."""
    trace = scenarios.Trace()
    agent.fit(env, agent.step + GO_ON, callbacks=[trace], verbose=0, resume=True)
    return hashlib.sha256(b"".join(part for row in trace.rows for part in row)).hexdigest()


def digests_in(paths):
    """What the new process does: {environment's name: run directory} -> digests, in that order."""
    return [
        digest_of_the_next_steps(kerasrl_gpu.load(path), gymnasium.make(name))
        for name, path in paths.items()
    ]


def save_here(path):
    """What the other backend's process does: its digest of the weights."""
    agent = dqn()
    agent.save(path)
    return digest_of_the_weights(agent)


def digest_of_the_weights(agent):
    weights = agent.trainer.get_state()["online"]["model"]["trainable"]
    return hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest()


def in_a_new_process(expression, **environment):
    """What a fresh interpreter, with this file imported as `test`, prints for an expression."""
    program = f"import test_load as test, kerasrl_gpu; print(); print({expression})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, env=os.environ | environment,
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1]


# Whole agents ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """make -> (agent, environment, run directory, all it knew, what a new process went on with)."""
    found, paths = {}, {}
    for make in (duel, swing):
        name, agent = make()
        env, paths[name] = gymnasium.make(name), str(tmp_path_factory.mktemp(make.__name__))
        agent.fit(env, STEPS, verbose=0)
        agent.save(paths[name])
        found[make] = agent, env, paths[name], everything(agent)
    digests = in_a_new_process(f"*test.digests_in({paths})").split()
    return {make: (*found[make], digest) for make, digest in zip(found, digests, strict=True)}


@pytest.mark.filterwarnings("ignore:WhiteningNormalizerProcessor.process_state_batch stays")
@pytest.mark.parametrize("make", [duel, swing])
def test_an_agent_comes_back_and_goes_on_bit_for_bit(written, make):
    agent, env, path, expected, elsewhere = written[make]
    loaded = kerasrl_gpu.load(path)
    assert type(loaded) is type(agent)
    assert loaded.get_config() == agent.get_config()
    assert loaded.metrics_names == agent.metrics_names
    np.testing.assert_equal(everything(loaded), expected)
    for ours, theirs in zip(loaded.layers, agent.layers, strict=True):
        np.testing.assert_equal(ours.get_weights(), theirs.get_weights())

    here = digest_of_the_next_steps(loaded, gymnasium.make(env.spec.id))
    assert digest_of_the_next_steps(agent, env) == here == elsewhere
    np.testing.assert_equal(everything(loaded)["trainer"], everything(agent)["trainer"])


def test_an_agent_of_the_other_backend_comes_back(tmp_path, backend):
    other = {"jax": "tensorflow", "tensorflow": "jax"}[backend]
    wrote = in_a_new_process(f"test.save_here({str(tmp_path)!r})", KERAS_BACKEND=other)
    loaded = kerasrl_gpu.load(tmp_path)
    assert digest_of_the_weights(loaded) == wrote
    assert loaded.resumed.ignored == [
        f"backend {other}: this is {backend}; the run goes on, but not bit for bit"
    ]


Q_VALUES = np.float32([0.3, -0.2])
STOCK = [
    policy.EpsGreedyQPolicy(0.4),
    policy.GreedyQPolicy(),
    policy.BoltzmannQPolicy(2.0, (-9.0, 9.0)),
    policy.MaxBoltzmannQPolicy(0.5, 3.0),
    policy.BoltzmannGumbelQPolicy(C=2.0),
    policy.SoftmaxPolicy(),
    policy.LinearAnnealedPolicy(policy.BoltzmannQPolicy(), "tau", 9.0, 1.0, 0.5, 30),
    rl_policy.EpsGreedyQPolicy(0.4),
    rl_policy.GreedyQPolicy(),
    rl_policy.BoltzmannQPolicy(2.0),
    rl_policy.MaxBoltzmannQPolicy(0.5),
    rl_policy.BoltzmannGumbelQPolicy(2.0),
    rl_policy.LinearAnnealedPolicy(rl_policy.EpsGreedyQPolicy(), "eps", 0.9, 0.1, 0.0, 30),
]


@pytest.mark.parametrize("explore", STOCK, ids=lambda one: f"{one.__module__}.{type(one).__name__}")
def test_every_stock_policy_comes_back(tmp_path, explore):
    agent = dqn(policy=explore)
    agent.training = True

    def actions(agent):
        drawn = []
        for _ in range(20):
            drawn.append(int(agent.policy.select_action(q_values=Q_VALUES)))
            agent.step += 1
        return drawn

    actions(agent)
    agent.save(tmp_path)
    config, expected = explore.get_config(), actions(agent)
    loaded = kerasrl_gpu.load(tmp_path)
    loaded.training = True
    assert type(loaded.policy) is type(explore)
    assert loaded.policy.get_config() == config
    assert loaded.policy.agent is loaded
    assert actions(loaded) == expected


@pytest.mark.parametrize(
    "noise",
    [
        rl_random.OrnsteinUhlenbeckProcess(theta=0.3, size=1),
        rl_random.GaussianWhiteNoiseProcess(sigma=0.4, sigma_min=0.1, n_steps_annealing=9, size=1),
    ],
    ids=lambda noise: type(noise).__name__,
)
def test_keras_rls_own_noise_and_processor_come_back(tmp_path, noise):
    agent = ddpg(noise=noise, processor=rl_processors.WhiteningNormalizerProcessor())
    agent.processor.process_state_batch(np.random.default_rng(1).normal(size=(5, 1, 3)))
    noise.sample()
    agent.save(tmp_path)
    expected = [noise.sample() for _ in range(12)]
    loaded = kerasrl_gpu.load(tmp_path)
    assert type(loaded.random_process) is type(noise)
    np.testing.assert_array_equal([loaded.random_process.sample() for _ in range(12)], expected)
    assert type(loaded.processor) is type(agent.processor)
    np.testing.assert_array_equal(loaded.processor.normalizer.mean, agent.processor.normalizer.mean)


# What a checkpoint cannot bring back -------------------------------------------------------------


@keras.saving.register_keras_serializable("test_load")
class Known(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2


class Unknown(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2


def network(*layers):
    return keras.Sequential(
        [keras.Input((1, 4)), keras.layers.Flatten(), *layers, keras.layers.Dense(2)]
    )


def assert_same_weights(loaded, agent):
    np.testing.assert_equal(loaded.trainer.get_state(), agent.trainer.get_state())


def test_a_registered_layer_comes_back(tmp_path):
    agent = dqn(network(Known()))
    agent.save(tmp_path)
    loaded = kerasrl_gpu.load(tmp_path)
    assert type(loaded.model.layers[1]) is Known
    assert_same_weights(loaded, agent)


def test_a_layer_that_is_not_registered_is_named(tmp_path):
    agent = dqn(network(Unknown()))
    agent.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"(?s)network 'model' .*Unknown.*register.*model="):
        kerasrl_gpu.load(tmp_path)
    with keras.utils.custom_object_scope({"Unknown": Unknown}):
        assert_same_weights(kerasrl_gpu.load(tmp_path), agent)


@pytest.mark.parametrize("dueling", [False, True])
def test_a_lambda_is_not_run_but_may_be_passed_in(tmp_path, dueling):
    def model():
        return network(keras.layers.Lambda(lambda inputs: inputs * 2))

    agent = dqn(model(), enable_dueling_network=dueling)
    agent.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"has a Lambda layer.* pass it as model=\.\.\."):
        kerasrl_gpu.load(tmp_path)
    loaded = kerasrl_gpu.load(tmp_path, model=model())
    assert loaded.enable_dueling_network is dueling
    assert_same_weights(loaded, agent)
    loaded.save(tmp_path)  # and so on


def test_what_load_takes_is_listed(tmp_path):
    dqn().save(tmp_path)
    with pytest.raises(CheckpointError, match=r"no \['actor'\]; it takes \['memory', 'metrics', "):
        kerasrl_gpu.load(tmp_path, actor=None)


class Decaying(policy.EpsGreedyQPolicy):
    """A user's own: nothing in it says that eps changes."""

    def select_action(self, q_values):
        self.eps *= 0.5
        return super().select_action(q_values)


class Counting(kerasrl_gpu.keras_rl.Processor):
    """A user's own, with a say of its own."""

    seen = 0

    def process_observation(self, observation):
        self.seen += 1
        return observation

    def get_state(self):
        return {"n": self.seen}

    def set_state(self, state):
        self.seen = state["n"]


def test_objects_of_the_users_own_are_named_and_passed_in(tmp_path):
    agent = dqn(policy=Decaying(0.8), processor=Counting())
    for _ in range(3):
        agent.policy.select_action(Q_VALUES)
        agent.processor.process_observation(None)
    agent.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"of your own, test_load.Counting.*processor=\.\.\."):
        kerasrl_gpu.load(tmp_path)
    with pytest.raises(CheckpointError, match=r"of your own, test_load.Decaying.*policy=\.\.\."):
        kerasrl_gpu.load(tmp_path, processor=Counting())
    loaded = kerasrl_gpu.load(tmp_path, processor=Counting(), policy=Decaying(0.8), allow="policy")
    assert (loaded.policy.eps, loaded.processor.seen) == (0.8, 3)
    assert "policy: goes on as it is, allowed" in loaded.resumed.ignored
    loaded = kerasrl_gpu.load(tmp_path, processor=Counting(), policy=Decaying(0.8))
    assert (loaded.policy.eps, loaded.processor.seen) == (0.1, 3)


class Mine(DQNAgent):
    """A user's own agent, which holds a number more."""

    asked = 0

    def get_state(self):
        return {**super().get_state(), "asked": self.asked}

    def set_state(self, state):
        super().set_state(state)
        self.asked = state["asked"]


def test_an_agent_of_the_users_own_loads_itself(tmp_path):
    agent = dqn(kind=Mine)
    weights = [w + 1 for w in agent.model.get_weights()]
    agent.model.set_weights(weights)
    agent.asked = 5
    agent.save(tmp_path)  # with what was set
    with pytest.raises(CheckpointError, match=r"holds a test_load.Mine, .*agent.load\(path\)"):
        kerasrl_gpu.load(tmp_path)
    other = dqn(kind=Mine)
    other.load(tmp_path)
    np.testing.assert_equal(other.model.get_weights(), weights)
    assert other.asked == 5
    with pytest.raises(CheckpointError, match=r"was written by test_load.Mine, this agent is kera"):
        dqn().load(tmp_path)


def spread(y_true, y_pred):
    return keras.ops.std(y_pred)


class Full(kerasrl_gpu.keras_rl.Memory):
    """A user's own memory that is false in a condition."""

    def __len__(self):
        return 0

    def get_recent_state(self, current_observation):
        return [current_observation]


def test_metrics_and_memories_of_the_users_own_are_named_and_passed_in(tmp_path):
    dqn(metrics=["mse", spread], memory=Full(window_length=1)).save(tmp_path)
    with pytest.raises(CheckpointError, match=r"the memory is .* Full; pass one: load\(path, mem"):
        kerasrl_gpu.load(tmp_path)
    memory = Full(window_length=1)
    with pytest.raises(CheckpointError, match=r"the metric 'spread' is .*metrics=\[\.\.\.\]"):
        kerasrl_gpu.load(tmp_path, memory=memory)
    loaded = kerasrl_gpu.load(tmp_path, memory=memory, metrics=["mse", spread])
    assert loaded.memory is memory
    assert loaded.metrics_names[:4] == ["loss", "mse", "spread", "mean_q"]
    assert kerasrl_gpu.load(tmp_path, memory=memory, metrics=[]).metrics_names[1] == "mean_q"


# What differs ------------------------------------------------------------------------------------


def tanh():
    model = scenarios.q_network((4,), 2)
    model.layers[1].activation = keras.activations.tanh
    return model


DIFFERENT = [
    ("gamma", {"gamma": 0.9}, "gamma was 0.99 in the checkpoint and is 0.9 here", "gamma=0.99"),
    ("batch_size", {"batch_size": 9}, "batch_size was 8", "batch_size=8: 9 holds, as allowed"),
    (
        "seed",
        {"seed": 4},
        "seed was 3 in the checkpoint and is 4 here",
        "seed=3: 4 holds, as allowed",
    ),
    ("enable_double_dqn", {"enable_double_dqn": True}, "enable_double_dqn was False", "=False"),
    ("policy", {"policy": policy.EpsGreedyQPolicy(0.2)}, "policy.eps was 0.1", "policy.eps=0.1"),
    (
        "policy",
        {"policy": policy.GreedyQPolicy()},
        "policy.class_name was 'EpsGreedyQPolicy' .* is 'GreedyQPolicy'",
        "policy: goes on as it is",
    ),
    (
        "processor",
        {"processor": WhiteningNormalizerProcessor()},
        r"processor was none and is kerasrl_gpu.processors.WhiteningNormalizerProcessor here",
        "processor: goes on as it is",
    ),
    (
        "optimizer",
        {"optimizer": "sgd"},
        "optimizer 'model' .*'Adam'.*'SGD'",
        "optimizer slots: those of this optimizer begin afresh",
    ),
    (
        "optimizer",
        {"optimizer": keras.optimizers.Adam(0.5)},
        "optimizer 'model' .*learning_rate is 0.001",
        "optimizer model: config/learning_rate",
    ),
    (
        "network",
        {"model": tanh},
        r"network 'model' is another one: config/layers/2/config/activation is 'relu'",
        "network model: config/layers",
    ),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A checkpoint of `dqn()`, after no step."""
    return dqn().save(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize(
    "name, changes, sentence, ignored", DIFFERENT, ids=lambda one: str(one)[:30]
)
def test_what_differs_is_refused_by_name_or_allowed_by_name(
    plain, name, changes, sentence, ignored
):
    changes = {key: value() if value is tanh else value for key, value in changes.items()}
    agent = dqn(**changes)
    agent.policy.select_action(Q_VALUES)  # it stands elsewhere than the saved one
    before = agent.trainer.get_state(), parts.get_state(agent.policy)
    with pytest.raises(CheckpointError, match=rf"{sentence}(.|\n)*allow=\('{name}',\)"):
        agent.load(plain)
    np.testing.assert_equal((agent.trainer.get_state(), parts.get_state(agent.policy)), before)
    report = agent.load(plain, allow=(name,))
    assert any(ignored in line for line in report.ignored), report.ignored
    assert agent.seed == changes.get("seed", 3)


def test_another_number_of_actions_cannot_be_allowed(plain):
    agent = dqn(scenarios.q_network((4,), 3), nb_actions=3)
    with pytest.raises(CheckpointError, match="nb_actions was 2 in the checkpoint and is 3 here"):
        agent.load(plain)
    with pytest.raises(CheckpointError, match=r"networks do not fit .*\(24, 2\).*\(24, 3\)"):
        agent.load(plain, allow=("nb_actions", "network"))


def test_noise_with_other_arguments_is_refused_by_name(tmp_path):
    ddpg().save(tmp_path)
    other = ddpg(noise=OrnsteinUhlenbeckProcess(theta=0.5, sigma=0.3))
    with pytest.raises(CheckpointError, match=r"random_process.theta was 0.15 .* is 0.5 here"):
        other.load(tmp_path)
    report = other.load(tmp_path, allow="random_process")
    assert other.random_process.theta == 0.5
    assert "random_process: goes on as it is, allowed" in report.ignored


def test_a_run_without_a_seed_takes_the_one_of_the_checkpoint(plain):
    agent = dqn(seed=None)
    assert agent.load(plain).ignored == []
    assert (agent.seed, agent.trainer.seed) == (3, 3)


def test_weights_set_before_a_load_do_not_outlive_it(plain):
    agent, expected = dqn(), dqn().model.get_weights()
    for load in (agent.load, agent.load_weights):
        agent.model.set_weights([w + 1 for w in agent.model.get_weights()])
        load(plain)
        agent.take_weights()  # as every fit and test begins
        np.testing.assert_equal(agent.model.get_weights(), expected)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(agent, its checkpoint) after a run in episodes of at most 7 steps."""
    agent = dqn()
    env = gymnasium.make("CartPole-v1")
    agent.fit(env, STEPS, nb_max_episode_steps=7, verbose=0)
    return agent, agent.save(tmp_path_factory.mktemp("run"))


def test_another_optimizer_goes_on_with_the_old_moments_and_its_own_rate(trained):
    agent, path = trained
    other = dqn(optimizer=keras.optimizers.Adam(1e-3))
    other.optimizer.learning_rate = 0.25
    other.load(path, allow="optimizer")
    (theirs,) = agent.trainer.get_state()["slots"].values()
    (ours,) = other.trainer.get_state()["slots"].values()
    rate = [variable.name for variable in other.optimizer.variables].index("learning_rate")
    assert ours[rate] == float(other.optimizer.learning_rate) == 0.25
    assert theirs[rate] == np.float32(1e-3)
    np.testing.assert_equal(ours[:rate] + ours[rate + 1 :], theirs[:rate] + theirs[rate + 1 :])
    assert any(np.any(slot) for slot in ours[rate + 1 :])
    other.load(path)
    assert other.trainer.get_state()["slots"]["model"][rate] == np.float32(1e-3)


def test_other_options_of_fit_are_refused_by_name(trained):
    _, path = trained
    other, env = dqn(), gymnasium.make("CartPole-v1")
    options = {"resume": path, "nb_max_episode_steps": 9, "verbose": 0}
    with pytest.raises(CheckpointError, match=r"nb_max_episode_steps=7, this one has 9.*allow="):
        other.fit(env, STEPS + 2, **options)
    history = other.fit(env, STEPS + 2, **options, allow="nb_max_episode_steps")
    assert history.resumed.ignored == ["nb_max_episode_steps=7: 9 holds, as allowed"]
    assert other.step == STEPS + 2


def test_a_report_reads_well(trained, capsys):
    _, path = trained
    agent = dqn(memory=DeviceMemory(limit=30), gamma=0.5)
    agent.fit(
        gymnasium.make("CartPole-v1", max_episode_steps=100), STEPS + 1, resume=path,
        nb_max_episode_steps=7, verbose=1, allow=("gamma", "environment"),
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    start = lines.index(f"Resumed {path} at step {STEPS}")
    assert lines[start + 1].startswith("  restored: policy, test_policy, memory (30 rows), weights")
    assert lines[start + 2].startswith("  absent:   environment: ")
    assert lines[start + 3] == "  ignored:  gamma=0.99: 0.5 holds, as allowed"
    assert lines[start + 4] == "            memory: 27 oldest rows, more than limit allows"

"""keras-rl's two classic scripts, written as people have them, with their agent import changed.

Besides that only what Keras 3 and Gymnasium force is new: `gymnasium`, current environment names,
`learning_rate=`, `int` around Gymnasium's NumPy integer, no `env.seed`. The rest is on purpose what
one finds in old scripts, `rl.*` imports included.
"""

# ruff: noqa: NPY002, RUF005, UP032  (old scripts are written the old way)

import gymnasium as gym
import numpy as np
import pytest
from keras.layers import Activation, Concatenate, Dense, Flatten, Input
from keras.models import Model, Sequential
from keras.optimizers import Adam

from kerasrl_gpu import DDPGAgent, DQNAgent  # was: from rl.agents import DDPGAgent, DQNAgent

from rl.memory import SequentialMemory  # isort: skip  (after the agents: they make rl importable)
from rl.policy import BoltzmannQPolicy  # isort: skip
from rl.random import OrnsteinUhlenbeckProcess  # isort: skip


# fmt: off
def dqn_cartpole(nb_steps):
    ENV_NAME = 'CartPole-v1'

    env = gym.make(ENV_NAME)
    np.random.seed(123)
    nb_actions = int(env.action_space.n)

    model = Sequential()
    model.add(Flatten(input_shape=(1,) + env.observation_space.shape))
    model.add(Dense(16))
    model.add(Activation('relu'))
    model.add(Dense(16))
    model.add(Activation('relu'))
    model.add(Dense(nb_actions))
    model.add(Activation('linear'))
    print(model.summary())

    memory = SequentialMemory(limit=50000, window_length=1)
    policy = BoltzmannQPolicy()
    dqn = DQNAgent(model=model, nb_actions=nb_actions, memory=memory, nb_steps_warmup=10,
                   target_model_update=1e-2, policy=policy)
    dqn.compile(Adam(learning_rate=1e-3), metrics=['mae'])

    history = dqn.fit(env, nb_steps=nb_steps, visualize=True, verbose=2)
    dqn.save_weights('dqn_{}_weights.h5f'.format(ENV_NAME), overwrite=True)
    tested = dqn.test(env, nb_episodes=5, visualize=True)
    return dqn, memory, history, tested


def ddpg_pendulum(nb_steps):
    ENV_NAME = 'Pendulum-v1'

    env = gym.make(ENV_NAME)
    np.random.seed(123)
    assert len(env.action_space.shape) == 1
    nb_actions = env.action_space.shape[0]

    actor = Sequential()
    actor.add(Flatten(input_shape=(1,) + env.observation_space.shape))
    actor.add(Dense(16))
    actor.add(Activation('relu'))
    actor.add(Dense(nb_actions))
    actor.add(Activation('linear'))
    print(actor.summary())

    action_input = Input(shape=(nb_actions,), name='action_input')
    observation_input = Input(shape=(1,) + env.observation_space.shape, name='observation_input')
    flattened_observation = Flatten()(observation_input)
    x = Concatenate()([action_input, flattened_observation])
    x = Dense(32)(x)
    x = Activation('relu')(x)
    x = Dense(1)(x)
    x = Activation('linear')(x)
    critic = Model(inputs=[action_input, observation_input], outputs=x)
    print(critic.summary())

    memory = SequentialMemory(limit=100000, window_length=1)
    random_process = OrnsteinUhlenbeckProcess(size=nb_actions, theta=.15, mu=0., sigma=.3)
    agent = DDPGAgent(nb_actions=nb_actions, actor=actor, critic=critic,
                      critic_action_input=action_input, memory=memory,
                      nb_steps_warmup_critic=100, nb_steps_warmup_actor=100,
                      random_process=random_process, gamma=.99, target_model_update=1e-3)
    agent.compile(Adam(learning_rate=.001, clipnorm=1.), metrics=['mae'])

    history = agent.fit(env, nb_steps=nb_steps, visualize=True, verbose=1,
                        nb_max_episode_steps=200)
    agent.save_weights('ddpg_{}_weights.h5f'.format(ENV_NAME), overwrite=True)
    tested = agent.test(env, nb_episodes=2, visualize=True, nb_max_episode_steps=200)
    return agent, memory, history, tested
# fmt: on


def assert_finite(*networks):
    for network in networks:
        for weight in network.get_weights():
            assert np.isfinite(weight).all()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# what old scripts do is warned of, and goes on: visualize without a render_mode, input_shape=,
# a warm-up shorter than a batch
old_ways = pytest.mark.filterwarnings(
    "ignore:visualize=True", "ignore:Do not pass an `input_shape`", "ignore:.*fewer than batch_size"
)


@old_ways
def test_dqn_cartpole(folder, capsys):
    dqn, memory, history, tested = dqn_cartpole(nb_steps=300)
    printed = capsys.readouterr().out
    assert "mae" in printed
    assert "mean_q" in printed
    assert dqn.metrics_names == ["loss", "mae", "mean_q"]
    assert dqn.on_pool
    episodes = history.history["nb_episode_steps"]
    ends = len(episodes) + (sum(episodes) < 300)  # the test closed the one that was open
    assert memory.nb_entries == 300 + ends
    assert len(memory.observations) == memory.nb_entries
    assert int(dqn.optimizer.iterations) == 289  # every step after the 10 of the warm-up
    returns = tested.history["episode_reward"]
    assert len(returns) == 5
    assert np.isfinite([*history.history["episode_reward"], *returns]).all()
    assert_finite(dqn.model, dqn.target_model)
    assert [path.name for path in folder.iterdir()] == ["dqn_CartPole-v1_weights.h5f"]
    want = dqn.model.get_weights()
    dqn.model.set_weights([0 * weight for weight in want])
    dqn.load_weights("dqn_CartPole-v1_weights.h5f")
    for got, weight in zip(dqn.model.get_weights(), want, strict=True):
        np.testing.assert_array_equal(got, weight)


@old_ways
def test_ddpg_pendulum(folder, capsys):
    agent, memory, history, tested = ddpg_pendulum(nb_steps=250)
    assert "mae" in capsys.readouterr().out
    assert agent.metrics_names == ["loss", "mae", "mean_q"]
    assert agent.on_pool
    assert history.history["nb_episode_steps"] == [200]
    assert memory.nb_entries == 250 + 2
    assert int(agent.critic_optimizer.iterations) == 149
    assert int(agent.actor_optimizer.iterations) == 149
    returns = [*history.history["episode_reward"], *tested.history["episode_reward"]]
    assert len(returns) == 3
    assert all(-200 * 17 < total < 0 for total in returns)
    assert np.abs(memory.actions).max() <= 2
    assert_finite(agent.actor, agent.critic, agent.target_actor, agent.target_critic)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["ddpg_Pendulum-v1_weights_actor.h5f", "ddpg_Pendulum-v1_weights_critic.h5f"]

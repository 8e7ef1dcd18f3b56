"""Recorded updates of keras-rl2 1.0.5 (TensorFlow 2.12) replay here, number for number.

tests/data holds one recording an agent: 39 batches with what keras-rl2 reported for each, and the
weights before and after. The batches go in through a keras-rl Memory of our own that hands them
out, the updates are driven through `agent.backward`.
"""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasrl_gpu import DDPGAgent, DQNAgent
from kerasrl_gpu.keras_rl import Experience, Memory

DATA = Path(__file__).parent / "data"
DQN = ["dqn_hard_sgd", "dqn_soft_adam", "dqn_double_huber_window3", "dqn_dueling_avg"]


class Recording(Memory):
    """Hands out the recorded batches, one a call."""

    def __init__(self, data, window_length):
        super().__init__(window_length)
        self.data, self.next = data, 0

    def append(self, observation, action, reward, terminal, training=True):
        super().append(observation, action, reward, terminal, training=training)

    def sample(self, batch_size, batch_idxs=None):
        at, self.next = self.next, self.next + 1
        names = ("state0", "action", "reward", "state1", "terminal1")
        columns = [self.data[f"batch/{name}"][at] for name in names]
        return [
            Experience(list(state0), action, reward, list(state1), bool(terminal))
            for state0, action, reward, state1, terminal in zip(*columns, strict=True)
        ]


def load(name):
    data = np.load(DATA / f"{name}.npz")
    return data, json.loads(str(data["config"]))


def weights_of(data, network, moment):
    count = sum(key.startswith(f"{network}/{moment}/") for key in data.files)
    return [data[f"{network}/{moment}/{index}"] for index in range(count)]


def dense(inputs, units, activation=None):
    return keras.layers.Dense(units, activation=activation)(inputs)


def replay(agent, data, nb_actions):
    """Drive the recorded updates; what was reported for each."""
    agent.training, reported = True, []
    agent.recent_observation = np.zeros(4, np.float32)
    agent.recent_action = np.zeros(nb_actions, np.float32) if nb_actions else 0
    for step in data["batch/step"]:
        agent.step = int(step)
        reported.append(list(agent.backward(0.0, terminal=False)))
    return np.array(reported)


def assert_as_recorded(data, reported, networks):
    np.testing.assert_allclose(reported, data["metrics"], rtol=1e-4, atol=1e-6)
    for network, model in networks.items():
        for got, want in zip(model.get_weights(), weights_of(data, network, "after"), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def dqn(data, config):
    window = config["window_length"]
    inputs = keras.Input((window, 4))
    hidden = dense(keras.layers.Flatten()(inputs), 16, "relu")
    model = keras.Model(inputs, dense(hidden, 3))
    agent = DQNAgent(
        model=model,
        nb_actions=3,
        memory=Recording(data, window),
        gamma=config["gamma"],
        batch_size=config["batch_size"],
        nb_steps_warmup=20,
        target_model_update=config["target_model_update"],
        delta_clip=config.get("delta_clip", np.inf),
        enable_double_dqn=config.get("enable_double_dqn", False),
        enable_dueling_network=config.get("enable_dueling_network", False),
        dueling_type=config.get("dueling_type", "avg"),
    )
    agent.model.set_weights(weights_of(data, "model", "before"))
    sgd = "SGD" in config["optimizer"]
    agent.compile(
        keras.optimizers.SGD(5e-2) if sgd else keras.optimizers.Adam(1e-2, epsilon=1e-7),
        metrics=["mae"],
    )
    return agent


@pytest.mark.parametrize("name", DQN)
def test_dqn_updates_are_keras_rls(name):
    data, config = load(name)
    agent = dqn(data, config)
    reported = replay(agent, data, nb_actions=None)
    assert agent.metrics_names == list(data["metrics_names"])
    assert_as_recorded(data, reported, {"model": agent.model, "target_model": agent.target_model})


def test_ddpg_updates_are_keras_rls():
    data, config = load("ddpg_soft")
    inputs = keras.Input((1, 4))
    actor = keras.Model(inputs, dense(dense(keras.layers.Flatten()(inputs), 16, "relu"), 2, "tanh"))
    action, observation = keras.Input((2,)), keras.Input((1, 4))
    both = keras.layers.Concatenate()([action, keras.layers.Flatten()(observation)])
    critic = keras.Model([action, observation], dense(dense(both, 16, "relu"), 1))
    agent = DDPGAgent(
        nb_actions=2,
        actor=actor,
        critic=critic,
        critic_action_input=action,
        memory=Recording(data, 1),
        gamma=config["gamma"],
        batch_size=config["batch_size"],
        nb_steps_warmup_critic=20,
        nb_steps_warmup_actor=20,
        target_model_update=config["target_model_update"],
    )
    actor.set_weights(weights_of(data, "actor", "before"))
    critic.set_weights(weights_of(data, "critic", "before"))
    agent.compile((keras.optimizers.Adam(3e-3), keras.optimizers.Adam(1e-2)), metrics=["mae"])
    reported = replay(agent, data, nb_actions=2)
    assert agent.metrics_names == list(data["metrics_names"])
    names = ("actor", "critic", "target_actor", "target_critic")
    assert_as_recorded(data, reported, {name: getattr(agent, name) for name in names})

"""DDPG on Pendulum-v1 with the replay pool on the device; prints the mean test return."""

import argparse
import random

import gymnasium as gym
import keras
import numpy as np

from kerasrl_gpu import DDPGAgent, DeviceMemory
from kerasrl_gpu.random import GaussianWhiteNoiseProcess

SEED = 0


def networks(env):
    """(actor, critic, the critic's action input) for an environment of flat observations."""
    shape, nb_actions = (1, *env.observation_space.shape), env.action_space.shape[0]
    dense = keras.layers.Dense
    seen = keras.Input(shape)
    hidden = dense(256, activation="relu")(keras.layers.Flatten()(seen))
    hidden = dense(256, activation="relu")(hidden)
    scaled = dense(nb_actions, activation="tanh")(hidden) * float(env.action_space.high[0])
    actor = keras.Model(seen, scaled)

    action, seen = keras.Input((nb_actions,)), keras.Input(shape)
    both = keras.layers.Concatenate()([action, keras.layers.Flatten()(seen)])
    hidden = dense(256, activation="relu")(both)
    value = dense(1)(dense(256, activation="relu")(hidden))
    return actor, keras.Model([action, seen], value), action


def make_agent(env, seed=SEED):
    actor, critic, action_input = networks(env)
    agent = DDPGAgent(
        nb_actions=env.action_space.shape[0],
        actor=actor,
        critic=critic,
        critic_action_input=action_input,
        memory=DeviceMemory(limit=50_000, window_length=1),
        random_process=GaussianWhiteNoiseProcess(size=1, sigma=0.2),
        batch_size=256,
        nb_steps_warmup_actor=500,
        nb_steps_warmup_critic=500,
        target_model_update=5e-3,
        seed=seed,
    )
    agent.compile((keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)))
    return agent


def main(nb_steps, seed=SEED):
    random.seed(seed)  # Keras takes the seeds of its initial weights from here
    env = gym.make("Pendulum-v1")
    agent = make_agent(env, seed)
    agent.fit(env, nb_steps=nb_steps, verbose=1)
    history = agent.test(env, nb_episodes=20, visualize=False, verbose=0)
    print("mean return", np.mean(history.history["episode_reward"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    main(parser.parse_args().steps)

"""Double DQN on CartPole-v1 with the replay pool on the device; prints the mean test return."""

import argparse
import random

import gymnasium as gym
import keras
import numpy as np

from kerasrl_gpu import DeviceMemory, DQNAgent
from kerasrl_gpu.policy import EpsGreedyQPolicy, LinearAnnealedPolicy

SEED = 0


def make_agent(env, nb_steps, seed=SEED):
    nb_actions = int(env.action_space.n)
    model = keras.Sequential([
        keras.Input((1, *env.observation_space.shape)),  # 1 = window_length
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(nb_actions),
    ])  # fmt: skip
    agent = DQNAgent(
        model=model,
        nb_actions=nb_actions,
        memory=DeviceMemory(limit=100_000, window_length=1),
        policy=LinearAnnealedPolicy(EpsGreedyQPolicy(), "eps", 1.0, 0.04, 0.0, 8_000),
        batch_size=128,
        nb_steps_warmup=1_000,
        enable_double_dqn=True,
        train_interval=128,  # every 128 steps 32 updates in one call
        updates=32,
        target_model_update=256,
        seed=seed,
    )
    rate = keras.optimizers.schedules.PolynomialDecay(2e-3, nb_steps // 4, 0.0)
    agent.compile(keras.optimizers.Adam(rate))
    return agent


def main(nb_steps, seed=SEED):
    random.seed(seed)  # Keras takes the seeds of its initial weights from here
    env = gym.make("CartPole-v1")
    agent = make_agent(env, nb_steps, seed)
    agent.fit(env, nb_steps=nb_steps)
    history = agent.test(env, nb_episodes=20, visualize=False)
    print("mean return", np.mean(history.history["episode_reward"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    main(parser.parse_args().steps)

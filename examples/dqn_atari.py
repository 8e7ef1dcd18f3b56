"""DQN on an Atari game: frames stored once as uint8, four of them stacked when they are read."""

import argparse
from pathlib import Path

import gymnasium as gym
import keras
import numpy as np

from kerasrl_gpu import DeviceMemory, DQNAgent
from kerasrl_gpu.policy import EpsGreedyQPolicy, LinearAnnealedPolicy
from kerasrl_gpu.processors import Processor

try:
    import ale_py
    from PIL import Image
except ImportError as error:
    raise SystemExit(f"{error}: pip install -e '.[atari]'") from None

WINDOW = 4


class AtariProcessor(Processor):
    """keras-rl's usual one: small gray frames, scaled on the way in, rewards clipped."""

    def process_observation(self, observation):
        return np.asarray(Image.fromarray(observation).resize((84, 84)))  # u8[84, 84]

    def process_state_batch(self, batch):
        return batch.astype("float32") / 255.0

    def process_reward(self, reward):
        return np.clip(reward, -1.0, 1.0)


def network(nb_actions):
    conv = keras.layers.Conv2D
    return keras.Sequential([
        keras.Input((WINDOW, 84, 84)),
        keras.layers.Permute((2, 3, 1)),
        conv(32, 8, strides=4, activation="relu"),
        conv(64, 4, strides=2, activation="relu"),
        conv(64, 3, strides=1, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(512, activation="relu"),
        keras.layers.Dense(nb_actions),
    ])  # fmt: skip


def main(game, nb_steps, limit):
    gym.register_envs(ale_py)
    env = gym.make(game, obs_type="grayscale")
    nb_actions = int(env.action_space.n)
    agent = DQNAgent(
        model=network(nb_actions),
        nb_actions=nb_actions,
        memory=DeviceMemory(limit=limit, window_length=WINDOW),
        processor=AtariProcessor(),
        policy=LinearAnnealedPolicy(EpsGreedyQPolicy(), "eps", 1.0, 0.1, 0.05, 1_000_000),
        test_policy=EpsGreedyQPolicy(eps=0.05),
        nb_steps_warmup=min(50_000, nb_steps // 10),
        train_interval=4,
        delta_clip=1.0,
        target_model_update=10_000,
    )
    agent.compile(keras.optimizers.Adam(2.5e-4), metrics=["mae"])
    agent.fit(env, nb_steps=nb_steps)
    folder = Path("runs") / game.replace("/", "_")
    folder.mkdir(parents=True, exist_ok=True)
    agent.save_weights(folder / "dqn.weights.h5", overwrite=True)
    agent.test(env, nb_episodes=2, visualize=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--game", default="ALE/Breakout-v5")
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--limit", type=int, default=200_000, help="frames kept, 7,062 B each")
    arguments = parser.parse_args()
    main(arguments.game, arguments.steps, arguments.limit)

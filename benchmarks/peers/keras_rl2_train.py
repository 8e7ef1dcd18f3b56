"""keras-rl2 on its own old stack, trained by its own `fit`: environment steps per second."""

import gymnasium as gym
import numpy as np
import side
import tensorflow as tf
from rl.agents.dqn import DQNAgent
from rl.callbacks import Callback
from rl.memory import SequentialMemory
from rl.policy import EpsGreedyQPolicy


class OldApi:
    """A Gymnasium environment behind the API that keras-rl2 speaks: four values from `step`."""

    def __init__(self, env):
        self.env = env
        self.action_space, self.observation_space = env.action_space, env.observation_space

    def reset(self):
        observation, _ = self.env.reset()
        return observation

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, info


class Stamps(Callback):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def on_step_end(self, step, logs=None):
        self.clock.step()


def dqn_cartpole():
    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(1, 4)),
            dense(64, activation="relu"),
            dense(64, activation="relu"),
            dense(2),
        ]
    )
    agent = DQNAgent(
        model=model,
        nb_actions=2,
        memory=SequentialMemory(limit=50_000, window_length=1),
        policy=EpsGreedyQPolicy(eps=0.1),
        nb_steps_warmup=100,
        batch_size=32,
        target_model_update=1e-2,
        delta_clip=1.0,
    )
    agent.compile(tf.keras.optimizers.legacy.Adam(1e-3))
    return agent


def main():
    args = side.parse(__doc__)
    np.random.seed(args.seed)  # noqa: NPY002 - keras-rl2 draws from the global generator
    tf.random.set_seed(args.seed)
    env = gym.make("CartPole-v1")
    env.reset(seed=args.seed)
    agent = dqn_cartpole()
    clock = side.StepClock(args.warmup, args.window, args.windows)
    agent.fit(
        OldApi(env),
        nb_steps=clock.total_steps,
        callbacks=[Stamps(clock)],
        verbose=0,
        visualize=False,
    )
    device = "gpu" if tf.config.list_physical_devices("GPU") else "cpu"
    versions = {"keras_rl2": "1.0.5", "tensorflow": tf.__version__, "numpy": np.__version__}
    side.report(clock.steps_per_s(), device, versions, clock.compile_s())


if __name__ == "__main__":
    main()

"""kerasrl_gpu, trained by its own `fit`: environment steps per second.

`nature_dqn` gives milliseconds per update on frames that cost nothing to make: pool read, target
pass, gradient step and blend. Four updates make one call; the row that is written and the next
action, once a call, are in the figure too, while the peer's leaves them out.
"""

import gymnasium as gym
import keras
import numpy as np
import ours_adapters
from networks import mlp
from peers import side

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent
from kerasrl_gpu.networks import nature_cnn
from kerasrl_gpu.policy import EpsGreedyQPolicy
from kerasrl_gpu.random import GaussianWhiteNoiseProcess

NATURE_FRAMES, NATURE_UPDATES = 2_000, 4


class Stamps(keras.callbacks.Callback):
    """Counts steps and nothing else: reading the metrics here would wait for the device."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def on_step_end(self, step, logs=None):
        self.clock.step()


class Frames(gym.Env):
    """Atari-sized observations at no cost, and episodes of 1,000 steps."""

    observation_space = gym.spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def __init__(self, seed):
        self.frames = np.random.default_rng(seed).integers(0, 256, (100, 84, 84), np.uint8)
        self.t = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.frames[0], {}

    def step(self, action):
        self.t += 1
        return self.frames[self.t % 100], float(self.t % 3), self.t >= 1_000, False, {}


def dqn_cartpole(seed):
    observation = keras.Input((1, 4))
    q_values = mlp(keras.layers.Flatten()(observation), (64, 64), 2)
    agent = DQNAgent(
        model=keras.Model(observation, q_values),
        nb_actions=2,
        memory=DeviceMemory(limit=50_000, window_length=1),
        policy=EpsGreedyQPolicy(eps=0.1),
        nb_steps_warmup=100,
        batch_size=32,
        target_model_update=1e-2,
        delta_clip=1.0,
        seed=seed,
    )
    agent.compile(keras.optimizers.Adam(1e-3))
    return agent, gym.make("CartPole-v1")


def ddpg_pendulum(seed):
    observation = keras.Input((1, 3))
    flat = keras.layers.Flatten()(observation)
    torque = keras.layers.Rescaling(2.0)(mlp(flat, (256, 256), 1, activation="tanh"))
    action = keras.Input((1,), name="action")
    value = mlp(keras.layers.Concatenate()([action, flat]), (256, 256), 1)
    agent = DDPGAgent(
        nb_actions=1,
        actor=keras.Model(observation, torque),
        critic=keras.Model([action, observation], value),
        critic_action_input=action,
        memory=DeviceMemory(limit=50_000, window_length=1),
        batch_size=256,
        nb_steps_warmup_critic=256,
        nb_steps_warmup_actor=256,
        random_process=GaussianWhiteNoiseProcess(sigma=0.2, size=1),
        target_model_update=5e-3,
        seed=seed,
    )
    agent.compile([keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)])
    return agent, gym.make("Pendulum-v1")


def nature_dqn(seed):
    memory = DeviceMemory(limit=NATURE_FRAMES, window_length=4)
    agent = DQNAgent(
        model=nature_cnn((84, 84), nb_actions=4),
        nb_actions=4,
        memory=memory,
        policy=EpsGreedyQPolicy(eps=0.1),
        nb_steps_warmup=64,
        batch_size=32,
        target_model_update=1e-2,
        delta_clip=1.0,
        updates=NATURE_UPDATES,
        seed=seed,
    )
    agent.compile(keras.optimizers.Adam(1e-4))
    env = Frames(seed)
    for i in range(NATURE_FRAMES):
        memory.append(env.frames[i % 100], i % 4, float(i % 3), i % 1_000 == 998)
    return agent, env


WORKS = {"dqn_cartpole": dqn_cartpole, "ddpg_pendulum": ddpg_pendulum, "nature_dqn": nature_dqn}
FIGURES = ("pace", "bytes_to_device")


def add_arguments(parser):
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--figure", choices=FIGURES, default="pace")


def main():
    args = side.parse(__doc__, add_arguments)
    agent, env = WORKS[args.work](args.seed)
    env.reset(seed=args.seed)
    clock = side.StepClock(args.warmup, args.window, args.windows)
    agent.fit(
        env, nb_steps=clock.total_steps, callbacks=[Stamps(clock)], verbose=0, visualize=False
    )
    versions, device = ours_adapters.versions()
    if args.figure == "bytes_to_device":
        values = [ours_adapters.bytes_to_device_per_step(agent)]
    else:
        values = clock.steps_per_s()
        if args.work == "nature_dqn":
            values = [ms / NATURE_UPDATES for ms in clock.ms_per_step()]
    side.report(values, device, versions, clock.compile_s())


if __name__ == "__main__":
    main()

"""Stable-Baselines3's Nature-CNN DQN: milliseconds per update from a full buffer.

One update is what its learning loop does for one: a batch out of the buffer, the target pass, the
gradient step and the blend of the target. Acting and the environment are left out.
"""

import os
import time

import gymnasium as gym
import numpy as np
import side
import stable_baselines3
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.logger import configure
from stable_baselines3.common.utils import polyak_update

FRAMES = 2_000  # transitions in the buffer; each holds two stacks of 28 kB
TAU = 1e-2
SHAPE = (4, 84, 84)


class Frames(gym.Env):
    """Only the spaces are used: the buffer is filled by hand."""

    observation_space = gym.spaces.Box(0, 255, SHAPE, np.uint8)
    action_space = gym.spaces.Discrete(4)


def filled_agent(seed):
    agent = DQN(
        "CnnPolicy",
        Frames(),
        learning_rate=1e-4,
        buffer_size=FRAMES,
        batch_size=32,
        tau=TAU,
        target_update_interval=1,
        train_freq=1,
        seed=seed,
    )
    agent.set_logger(configure(None, []))
    rng, buffer = np.random.default_rng(seed), agent.replay_buffer
    buffer.observations[:] = rng.integers(0, 256, buffer.observations.shape, np.uint8)
    buffer.next_observations[:] = rng.integers(0, 256, buffer.next_observations.shape, np.uint8)
    buffer.actions[:] = rng.integers(0, 4, buffer.actions.shape)
    buffer.rewards[:] = rng.normal(size=buffer.rewards.shape)
    buffer.dones[:] = rng.random(buffer.dones.shape) < 1e-3
    buffer.pos, buffer.full = 0, True
    return agent


def update(agent, count):
    """`count` updates and as many blends; the loss is read as a number, so the device is idle."""
    agent.train(gradient_steps=count, batch_size=32)
    for _ in range(count):
        polyak_update(agent.q_net.parameters(), agent.q_net_target.parameters(), TAU)


def seconds(agent, count):
    start = time.perf_counter()
    update(agent, count)
    return time.perf_counter() - start


def best_thread_count(agent, count):
    """The fastest of 1, 2, 4, ... threads up to the cores of this machine."""
    counts = [2**i for i in range((os.cpu_count() or 1).bit_length())]
    taken = {}
    for threads in counts:
        torch.set_num_threads(threads)
        update(agent, 2)
        taken[threads] = seconds(agent, count)
    return min(taken, key=taken.get)


def main():
    args = side.parse(__doc__)
    agent = filled_agent(args.seed)
    threads = best_thread_count(agent, max(2, args.window // 2))
    torch.set_num_threads(threads)
    update(agent, args.warmup)
    values = [1e3 * seconds(agent, args.window) / args.window for _ in range(args.windows)]
    versions = {"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__}
    side.report(values, str(agent.device), versions, threads=threads)


if __name__ == "__main__":
    main()

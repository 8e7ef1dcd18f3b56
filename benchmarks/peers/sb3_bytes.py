"""Bytes that Stable-Baselines3's replay buffer holds per transition."""

import gymnasium as gym
import numpy as np
import side
import stable_baselines3
from stable_baselines3.common.buffers import ReplayBuffer

ROWS = 1_000
SPACES = {
    "atari": (gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), gym.spaces.Discrete(4)),
    "float17": (
        gym.spaces.Box(-1, 1, (17,), np.float32),
        gym.spaces.Box(-1, 1, (6,), np.float32),
    ),
}


def main():
    args = side.parse(__doc__, lambda parser: parser.add_argument("work", choices=sorted(SPACES)))
    buffer = ReplayBuffer(ROWS, *SPACES[args.work], device="cpu")
    arrays = [value for value in vars(buffer).values() if isinstance(value, np.ndarray)]
    held_bytes = sum(array.nbytes for array in arrays)
    versions = {"stable_baselines3": stable_baselines3.__version__}
    side.report([held_bytes / ROWS], "host memory", versions)


if __name__ == "__main__":
    main()

"""Stable-Baselines3 or SBX, trained by its own `learn`: environment steps per second."""

import gymnasium as gym
import numpy as np
import side
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise


class Stamps(BaseCallback):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def _on_step(self):
        self.clock.step()
        return True


def library(name):
    """The module that has the agents. SBX is imported only where it is asked for."""
    if name == "sb3":
        return stable_baselines3
    import sbx

    return sbx


def dqn_cartpole(agents, activation, seed):
    return agents.DQN(
        "MlpPolicy",
        gym.make("CartPole-v1"),
        learning_rate=1e-3,
        buffer_size=50_000,
        learning_starts=100,
        batch_size=32,
        tau=1e-2,
        target_update_interval=1,
        train_freq=1,
        gradient_steps=1,
        exploration_initial_eps=0.1,
        exploration_final_eps=0.1,
        policy_kwargs={"net_arch": [64, 64], "activation_fn": activation},
        seed=seed,
    )


def ddpg_pendulum(agents, activation, seed):
    return agents.DDPG(
        "MlpPolicy",
        gym.make("Pendulum-v1"),
        learning_rate=1e-3,
        buffer_size=50_000,
        learning_starts=256,
        batch_size=256,
        tau=5e-3,
        train_freq=1,
        gradient_steps=1,
        action_noise=NormalActionNoise(np.zeros(1), np.full(1, 0.1)),
        policy_kwargs={"net_arch": [256, 256], "activation_fn": activation},
        seed=seed,
    )


WORKS = {"dqn_cartpole": dqn_cartpole, "ddpg_pendulum": ddpg_pendulum}


def add_arguments(parser):
    parser.add_argument("library", choices=["sb3", "sbx"])
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--threads", type=int, help="PyTorch's; its own choice if not given")


def main():
    args = side.parse(__doc__, add_arguments)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    agents = library(args.library)
    versions = {"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__}
    activation = torch.nn.ReLU
    if args.library == "sbx":
        import flax
        import jax

        activation = flax.linen.relu
        versions = {"sbx": agents.__version__, "jax": jax.__version__, **versions}
    agent = WORKS[args.work](agents, activation, args.seed)
    clock = side.StepClock(args.warmup, args.window, args.windows)
    # No log lines for it to put together: ours and keras-rl2 run with verbose=0.
    agent.learn(clock.total_steps, callback=Stamps(clock), log_interval=None)
    device = jax.devices()[0].platform if args.library == "sbx" else str(agent.device)
    side.report(
        clock.steps_per_s(), device, versions, clock.compile_s(), threads=torch.get_num_threads()
    )


if __name__ == "__main__":
    main()

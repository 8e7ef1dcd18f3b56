"""Runs that a resume has to continue bit for bit; `test_exact_resume` compares, this file is also
the program that is killed: python scenarios.py NAME RUN_DIRECTORY [NB_STEPS]
"""

import os
import random
import signal
import sys

import gymnasium
import keras
import numpy as np

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, checkpoint, engine
from kerasrl_gpu.callbacks import Callback, RunCheckpoint
from kerasrl_gpu.policy import BoltzmannGumbelQPolicy, EpsGreedyQPolicy, LinearAnnealedPolicy
from kerasrl_gpu.processors import Processor, WhiteningNormalizerProcessor
from kerasrl_gpu.random import GaussianWhiteNoiseProcess, OrnsteinUhlenbeckProcess
from kerasrl_gpu.resume import memory, parts

LIVED_ON = 23  # steps between the checkpoint and the kill


def begin(seed=5):
    """What a script's top does: weights and keras-rl's own objects draw from these."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def q_network(observed, nb_actions, window=1, rate=0.0):
    return keras.Sequential([
        keras.Input((window, *observed)),
        keras.layers.Flatten(),
        keras.layers.Dense(24, activation="relu"),
        keras.layers.Dropout(rate, seed=1),
        keras.layers.Dense(nb_actions),
    ])  # fmt: skip


def actor_critic(observed, nb_actions):
    seen = keras.Input((1, *observed))
    action = keras.Input((nb_actions,), name="action")
    hidden = keras.layers.Dense(24, activation="relu")(keras.layers.Flatten()(seen))
    actor = keras.Model(seen, keras.layers.Dense(nb_actions, activation="tanh")(hidden))
    seen = keras.Input((1, *observed))
    both = keras.layers.Concatenate()([keras.layers.Flatten()(seen), action])
    value = keras.layers.Dense(1)(keras.layers.Dense(24, activation="relu")(both))
    return {"actor": actor, "critic": keras.Model([seen, action], value), "input": action}


def cartpole_soft():
    """Double, dueling, soft target, Adam with a schedule, annealed exploration."""
    agent = DQNAgent(
        q_network((4,), 2), nb_actions=2, memory=DeviceMemory(limit=700), nb_steps_warmup=60,
        policy=LinearAnnealedPolicy(EpsGreedyQPolicy(), "eps", 1.0, 0.1, 0.0, 900),
        enable_double_dqn=True, enable_dueling_network=True, target_model_update=1e-2, seed=3,
    )  # fmt: skip
    agent.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(2e-3, 200, 0.9))
    )
    return gymnasium.make("CartPole-v1"), agent


def cartpole_hard():
    """Window 3, dropout, hard copies, RMSprop, counted exploration, K updates, statistics."""
    agent = DQNAgent(
        q_network((4,), 2, window=3, rate=0.2), nb_actions=2,
        memory=DeviceMemory(limit=5_000, window_length=3), nb_steps_warmup=60,
        policy=BoltzmannGumbelQPolicy(C=5.0), enable_dueling_network=True, dueling_type="max",
        target_model_update=70, train_interval=4, updates=3, delta_clip=1.0, seed=4,
        processor=WhiteningNormalizerProcessor(),
    )  # fmt: skip
    agent.compile(keras.optimizers.RMSprop(1e-3), metrics=["mae"])
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1"))
    return env, agent


def _ddpg(name, noise, optimizer, **arguments):
    env = gymnasium.make(name)
    nb_actions = env.action_space.shape[0]
    networks = actor_critic(env.observation_space.shape, nb_actions)
    agent = DDPGAgent(
        nb_actions, networks["actor"], networks["critic"], networks["input"],
        memory=DeviceMemory(limit=900), nb_steps_warmup_critic=40, nb_steps_warmup_actor=80,
        random_process=noise, seed=6, **arguments,
    )  # fmt: skip
    agent.compile(optimizer)
    return env, agent


def pendulum():
    """Soft targets, Ornstein-Uhlenbeck noise, one optimizer each."""
    noise = OrnsteinUhlenbeckProcess(theta=0.15, size=1, sigma=0.3)
    pair = (keras.optimizers.Adam(1e-4, clipnorm=1.0), keras.optimizers.Adam(1e-3))
    return _ddpg("Pendulum-v1", noise, pair, target_model_update=1e-3)


def cheetah():
    """MuJoCo; hard copies, annealed noise, RMSprop."""
    noise = GaussianWhiteNoiseProcess(sigma=0.5, sigma_min=0.1, n_steps_annealing=2_000, size=6)
    return _ddpg("HalfCheetah-v5", noise, keras.optimizers.RMSprop(1e-3), target_model_update=60)


class Screen(Processor):
    def process_observation(self, observation):
        return observation[30:194:4, ::4, 0].copy()  # u8[41, 40]

    def process_reward(self, reward):
        return np.clip(reward, -1.0, 1.0)


def pong():
    """ALE with sticky actions, frames in the pool, a convolution."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5")
    model = keras.Sequential([
        keras.Input((4, 41, 40)),
        keras.layers.Permute((2, 3, 1)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(4, 8, strides=8, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(6),
    ])  # fmt: skip
    agent = DQNAgent(
        model, nb_actions=6, memory=DeviceMemory(limit=1_500, window_length=4), batch_size=8,
        nb_steps_warmup=100, train_interval=4, target_model_update=200, processor=Screen(),
        policy=EpsGreedyQPolicy(0.2), enable_double_dqn=True, seed=8,
    )  # fmt: skip
    agent.compile(keras.optimizers.Adam(1e-3))
    return env, agent


def everything(agent) -> dict:
    """All that decides what comes next, on the host."""
    agent.flush()
    return {
        "trainer": agent.trainer.get_state(),
        "pool": engine.to_host(
            engine.take_rows(agent.memory.pool, np.arange(len(agent.memory.ring)))
        ),
        "memory": memory.get_state(agent.memory),
        "agent": {**agent.get_state(), "run": None},  # a name, other in every run
        "parts": {name: parts.get_state(part) for name, part in agent.parts().items()},
        "numpy": np.random.get_state(legacy=False),  # noqa: NPY002
        "python": random.getstate(),
    }


# name -> steps up to the checkpoint, in the middle of an episode
SCENARIOS = {cartpole_soft: 900, cartpole_hard: 505, pendulum: 650, cheetah: 730, pong: 610}


class Trace(Callback):
    """Every step's action, reward, observation and metrics, as bytes."""

    def on_train_begin(self, logs=None):
        self.rows = []

    def on_step_end(self, episode_step, logs=None):
        parts = (logs["action"], logs["reward"], logs["observation"], list(logs["metrics"]))
        self.rows.append([np.asarray(part).tobytes() for part in parts])


class Kill(Callback):
    """Ends the process as a power cut would, so many steps into the run."""

    def __init__(self, steps):
        super().__init__()
        self.left = steps

    def on_step_end(self, episode_step, logs=None):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)


def main(name, path):
    begin()
    scenario = globals()[name]
    env, agent = scenario()
    steps = SCENARIOS[scenario]
    watch = [RunCheckpoint(path, every_steps=steps), Kill(steps + LIVED_ON)]
    agent.fit(env, 10 * steps, callbacks=watch, verbose=0)


def go_on(name, path, nb_steps):
    """Train up to nb_steps from wherever an earlier process got to, saving often."""
    begin()
    env, agent = globals()[name]()
    saves = RunCheckpoint(path, every_steps=20)
    resume = path if checkpoint.find(path) else None
    agent.fit(env, int(nb_steps), callbacks=[saves], verbose=0, resume=resume)


if __name__ == "__main__":
    {3: main, 4: go_on}[len(sys.argv)](*sys.argv[1:])

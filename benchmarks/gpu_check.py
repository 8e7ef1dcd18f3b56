"""Does it work, and how fast, on whatever accelerator is here? One JSON line a finding.

Needs JAX, Keras, Gymnasium, keras-rl2's files and this package; no TensorFlow:

    KERAS_BACKEND=jax python benchmarks/gpu_check.py [--small]

Exit status 0 when every check holds. `--small` is the default on a CPU.
"""

import argparse
import importlib.metadata
import json
import statistics
import sys
import time

import gymnasium as gym
import keras
import numpy as np
from networks import mlp

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, engine
from kerasrl_gpu.callbacks import Callback
from kerasrl_gpu.networks import nature_cnn
from kerasrl_gpu.pool.layout import Field
from kerasrl_gpu.pool.transitions import Rule

WINDOW = 4


def say(name, **findings):
    """One finding, with where it was found."""
    backend = keras.backend.backend()
    where = {
        "device": engine.device(),
        "backend": backend,
        "version": importlib.metadata.version(backend),
        "keras": keras.__version__,
    }
    print(json.dumps({"name": name, **findings, **where}), flush=True)


def median_us(call, repeats):
    """Median and 90th percentile of a call that waits for the device, after warm-up; us."""
    for _ in range(5):
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return {"median_us": statistics.median(times), "p90_us": float(np.percentile(times, 90))}


# The pool ----------------------------------------------------------------------------------------


def check_pool(dtype):
    """Every valid row of a wrapped pool reads as arithmetic says.

    The observation of step s of every episode is s + 1, episodes have 1 to 9 steps, so a stack is
    a run of consecutive numbers with zeros before the episode.
    """
    memory = DeviceMemory(limit=61, window_length=WINDOW)
    memory.bind(Field("uint8", ()))
    shown = lambda step: np.full((3,), step + 1, dtype)  # noqa: E731
    for length in (1, 2, 3, 9, 5, 4, 1, 1, 7, 8, 9, 6, 3, 2, 9, 9):
        for step in range(length):
            memory.append(shown(step), step % 4, float(step), step == length - 1)
        memory.append(shown(length), 0, 0.0, False)
    batch = memory.read_batch(4_000, rule=Rule(gamma=0.5))
    now = batch["observation"]["observation"][..., 0].astype(int)
    later = batch["next_observation"]["observation"][..., 0].astype(int)
    newest = now[:, -1:]
    ages = np.arange(WINDOW - 1, -1, -1)
    holds = (
        np.array_equal(now, np.maximum(newest - ages, 0))
        and np.array_equal(later, np.maximum(newest + 1 - ages, 0))
        and np.array_equal(batch["reward"], newest[:, 0] - 1.0)
        and np.array_equal(batch["action"], (newest[:, 0] - 1) % 4)
        and np.array_equal(batch["discount"] == 0, batch["terminated"])
    )
    say("pool_reads_as_arithmetic_says", dtype=dtype, rows=4_000, holds=bool(holds))
    return holds


def filled(limit, observation, action):
    """A memory of `limit` rows without an episode's end; what it holds is zeros but one row."""
    memory = DeviceMemory(limit=limit, window_length=WINDOW if observation.ndim == 2 else 1)
    memory.bind(action)
    for _ in range(8):
        memory.append(observation, 0, 0.0, False)
    memory.ring.heads[0] = limit  # as if it were full: every other row is an ordinary zero row
    return memory


def time_sampling(limit):
    memory = filled(limit, np.zeros((84, 84), np.uint8), Field("uint8", ()))
    for batch_size in (32, 512):

        def draw(batch_size=batch_size):
            engine.to_host(memory.draw_batch(batch_size)["reward"])

        say(f"sample_{batch_size}", frames=limit, nbytes=memory.nbytes, **median_us(draw, 50))


# Updates -----------------------------------------------------------------------------------------


def dqn(batch_size, limit, updates):
    return DQNAgent(
        model=nature_cnn((84, 84), nb_actions=4, window_length=WINDOW),
        nb_actions=4,
        memory=filled(limit, np.zeros((84, 84), np.uint8), Field("uint8", ())),
        batch_size=batch_size,
        nb_steps_warmup=0,
        target_model_update=1e-3,
        updates=updates,
        seed=0,
    ), np.zeros((84, 84), np.uint8)


def ddpg(batch_size, limit, updates):
    seen, action = keras.Input((1, 17)), keras.Input((6,))
    flat = keras.layers.Flatten()(seen)
    policy = mlp(flat, (256, 256), 6, activation="tanh")
    value = mlp(keras.layers.Concatenate()([action, flat]), (256, 256), 1)
    return DDPGAgent(
        nb_actions=6,
        actor=keras.Model(seen, policy),
        critic=keras.Model([action, seen], value),
        critic_action_input=action,
        memory=filled(limit, np.zeros(17, np.float32), Field("float32", (6,))),
        batch_size=batch_size,
        nb_steps_warmup_actor=0,
        nb_steps_warmup_critic=0,
        updates=updates,
        seed=0,
    ), np.zeros(17, np.float32)


def time_updates(name, make, batch_size, limit, updates):
    """A step outside `fit`: a call that writes a row and learns `updates` times, one that acts."""
    agent, observation = make(batch_size, limit, updates)
    agent.compile("adam")
    agent.training, agent.step = True, 1
    start = time.perf_counter()

    def step():
        agent.forward(observation)
        agent.backward(0.0, terminal=False)

    step()
    compile_s = time.perf_counter() - start
    timing = median_us(step, 30)
    say(
        name,
        batch_size=batch_size,
        updates=updates,
        rows=limit,
        us_an_update=timing["median_us"] / updates,
        compile_s=compile_s,
        **timing,
    )


class Pace(Callback):
    """Steps a second over the second half of a run."""

    def on_step_end(self, episode_step, logs=None):
        if self.agent.step == self.params["nb_steps"] // 2:
            self._start_s = time.perf_counter()

    def on_train_end(self, logs=None):
        half = self.params["nb_steps"] - self.params["nb_steps"] // 2
        self.steps_per_s = half / (time.perf_counter() - self._start_s)


def train_cartpole(nb_steps):
    env, pace = gym.make("CartPole-v1"), Pace()
    observation = keras.Input((4,))
    agent = DQNAgent(
        model=keras.Model(observation, mlp(observation, (64, 64), 2)),
        nb_actions=2,
        memory=DeviceMemory(limit=50_000),
        nb_steps_warmup=500,
        target_model_update=1e-2,
        seed=0,
    )
    agent.compile(keras.optimizers.Adam(1e-3))
    history = agent.fit(env, nb_steps=nb_steps, callbacks=[pace], verbose=0)
    rewards = history.history["episode_reward"]
    last = float(np.mean(rewards[-5:]))
    say("cartpole", steps=nb_steps, steps_per_s=pace.steps_per_s, last_episodes=last)
    return last > 50  # a random policy stays near 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", default="cpu" in engine.device().lower())
    small = parser.parse_args().small
    frames, rows = (20_000, 50_000) if small else (1_000_000, 1_000_000)
    holds = [check_pool(dtype) for dtype in ("uint8", "int16", "int32", "float16", "float32")]
    time_sampling(frames)
    for updates in (1, 8):
        time_updates("ddpg_256_256", ddpg, 256, rows, updates)
        time_updates("ddpg_256_256", ddpg, 8192, rows, updates)
        time_updates("dqn_nature_cnn", dqn, 32, frames, updates)
        if not small:
            time_updates("dqn_nature_cnn", dqn, 512, frames, updates)
    holds.append(train_cartpole(5_000))
    say("all_checks", hold=all(holds), tensorflow_loaded="tensorflow" in sys.modules)
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())

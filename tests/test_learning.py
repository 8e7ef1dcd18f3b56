"""What it is for: the examples learn, on every seed; and a long run grows nowhere."""

import random
import subprocess
import sys

import ddpg_pendulum
import dqn_cartpole
import gymnasium as gym
import numpy as np
import pause_and_resume
import psutil
import pytest
import stop_and_resume

from kerasrl_gpu.callbacks import Callback

# one seed always, the others in `make test-slow`
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]


def mean_return(agent, env):
    history = agent.test(env, nb_episodes=20, visualize=False, verbose=0)
    return np.mean(history.history["episode_reward"])


@pytest.mark.parametrize("seed", SEEDS)
def test_dqn_solves_cartpole(seed):
    random.seed(seed)
    env = gym.make("CartPole-v1")
    agent = dqn_cartpole.make_agent(env, 100_000, seed)
    agent.fit(env, nb_steps=100_000, verbose=0)
    assert mean_return(agent, env) >= 475
    assert set(agent.traces.values()) == {1}


@pytest.mark.parametrize("seed", SEEDS)
def test_ddpg_swings_the_pendulum_up(seed):
    random.seed(seed)
    env = gym.make("Pendulum-v1")
    agent = ddpg_pendulum.make_agent(env, seed)
    agent.fit(env, nb_steps=10_000, verbose=0)
    assert mean_return(agent, env) >= -250
    assert set(agent.traces.values()) == {1}


@pytest.mark.slow
def test_the_example_of_a_stopped_run_ends_with_the_curve_of_an_unbroken_one(tmp_path):
    program = [sys.executable, stop_and_resume.__file__, "--steps", "6000"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "exit status 0" in done.stdout
    assert "Resumed" in done.stdout
    assert "the curves are equal: True" in done.stdout


@pytest.mark.slow
def test_the_example_of_a_paused_run_pauses_goes_on_and_draws_it(tmp_path):
    program = [sys.executable, pause_and_resume.__file__, "--steps", "16000"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.index(": pause.") < done.stderr.index(": resume.")
    [picture] = tmp_path.glob("runs/*/trace.png")
    assert picture.stat().st_size > 10_000


class Footprint(Callback):
    """Resident bytes after warm-up and at the end."""

    def on_step_end(self, episode_step, logs=None):
        if self.agent.step in (5_000, 25_000):
            self.rss = [*getattr(self, "rss", []), psutil.Process().memory_info().rss]


@pytest.mark.slow
def test_20_000_updates_leave_memory_and_traces_alone():
    env, footprint = gym.make("CartPole-v1"), Footprint()
    agent = dqn_cartpole.make_agent(env, 100_000)
    agent.train_interval, agent.updates, agent.batch_size = 1, 1, 32
    agent.target_model_update = 1_000
    agent.compile("adam")
    agent.fit(env, nb_steps=25_002, callbacks=[footprint], verbose=0)
    before, after = footprint.rss
    assert (after - before) / 2**20 < 5
    assert set(agent.traces.values()) == {1}

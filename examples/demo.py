"""The main job, start to end: a double DQN learns CartPole-v1 and leaves its run in runs/demo.

Writes history.json, model.weights.h5 and learning_curve.png. Exit status 0 if the greedy policy's
mean return over 20 episodes is at least 475, what CartPole-v1 counts as solved.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import dqn_cartpole
import gymnasium as gym
import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SOLVED = 475


def draw_curve(history, tested, path):
    """Episode returns over environment steps, their running mean, and what was needed."""
    steps, rewards = history["nb_steps"], history["episode_reward"]
    width = min(20, len(rewards))
    mean = np.convolve(rewards, np.ones(width) / width, mode="valid")
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(steps, rewards, color="tab:blue", alpha=0.25, label="episode")
    axes.plot(steps[width - 1 :], mean, color="tab:blue", label=f"mean of {width} episodes")
    axes.axhline(SOLVED, color="tab:gray", linestyle=":", label=f"solved: {SOLVED}")
    axes.plot(steps[-1], tested, "o", color="tab:orange", label=f"greedy test: {tested:.0f}")
    axes.set(xlabel="environment steps", ylabel="return", title="Double DQN on CartPole-v1")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(nb_steps, folder):
    folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    random.seed(dqn_cartpole.SEED)
    env = gym.make("CartPole-v1")
    agent = dqn_cartpole.make_agent(env, nb_steps)
    history = agent.fit(env, nb_steps=nb_steps).history
    trained_s = time.perf_counter() - start
    rewards = agent.test(env, nb_episodes=20, visualize=False, verbose=0).history["episode_reward"]
    tested = float(np.mean(rewards))
    agent.save_weights(folder / "model.weights.h5", overwrite=True)
    (folder / "history.json").write_text(json.dumps({**history, "test_reward": rewards}))
    draw_curve(history, tested, folder / "learning_curve.png")
    print(f"mean test return over {len(rewards)} episodes: {tested:.1f} (solved: {SOLVED})")
    print(f"{nb_steps:,} steps in {trained_s:.0f} s; the run is in {folder}/")
    return 0 if tested >= SOLVED else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/demo"))
    arguments = parser.parse_args()
    sys.exit(main(arguments.steps, arguments.folder))

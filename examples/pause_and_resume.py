"""A run that is paused because a neighbour takes its memory, and goes on when that is free again.

The neighbour is a second process; the budget stands for the limit of a container.
Writes runs/pause_and_resume-*/ with a checkpoint, memory.jsonl, trace.jsonl and trace.png.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
from dqn_cartpole import make_agent

from kerasrl_gpu import probes
from kerasrl_gpu.callbacks import Callback, MemoryGuard, MemoryTrace

HOG = "import sys, time; taken = []"
HOG += "\nfor size in sys.argv[1:]: taken.append(b'1' * int(size)); time.sleep(4)"


class Neighbour(Callback):
    """Another process, which brings the guard to 90 % of its budget, then to 94, 4 s each."""

    def __init__(self, guard, at_step):
        super().__init__()
        self.guard, self.at_step, self.process = guard, at_step, None

    def on_step_end(self, episode_step, logs=None):
        if self.process is None and self.agent.step >= self.at_step:
            now = next(each for each in self.guard.readings if each.name == "process")
            takes = [int(0.9 * now.limit_bytes) - now.used_bytes, int(0.04 * now.limit_bytes)]
            print(f"-- a neighbour takes {takes[0] >> 20} MiB, then {takes[1] >> 20}", flush=True)
            self.process = subprocess.Popen([sys.executable, "-c", HOG, *map(str, takes)])

    def on_train_end(self, logs=None):
        if self.process is not None:
            self.process.wait()


def main(nb_steps):
    folder = Path("runs", f"pause_and_resume-{time.strftime('%H%M%S')}")
    folder.mkdir(parents=True)
    env = gym.make("CartPole-v1")
    agent = make_agent(env, nb_steps)
    watched = probes.auto(folder, budget_bytes=probes.process_rss() + 2**30)
    times = {"every_s": 0.25, "cooldown_s": 1, "pause_dwell_s": 2, "spill_dwell_s": 3}
    guard = MemoryGuard(folder, probes=watched, shrink=None, watch_dwell_s=1, **times)
    trace = MemoryTrace(
        folder / "trace.jsonl", 0.1, watched, events=guard.events_path, levels=guard.levels
    )
    neighbour = Neighbour(guard, at_step=nb_steps // 4)
    history = agent.fit(env, nb_steps, callbacks=[guard, trace, neighbour], verbose=0)
    print(f"-- {len(history.history['episode_reward'])} episodes; see {folder / 'trace.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    main(parser.parse_args().steps)

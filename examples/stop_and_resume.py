"""A run that is stopped by a signal and resumed in a new process, beside one that is not.

python examples/stop_and_resume.py              both, and whether their curves are equal
python examples/stop_and_resume.py --train DIR  one run: Ctrl-C saves it, the same line goes on
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
from dqn_cartpole import SEED, make_agent

from kerasrl_gpu import checkpoint
from kerasrl_gpu.callbacks import RunCheckpoint


def train(folder, nb_steps):
    random.seed(SEED)
    env = gym.make("CartPole-v1")
    agent = make_agent(env, nb_steps)
    saves = RunCheckpoint(folder, every_steps=nb_steps // 10, signals=True)
    history = agent.fit(env, nb_steps, callbacks=[saves], resume=saves.newest)
    (folder / "curve.json").write_text(json.dumps(history.history["episode_reward"]))


def start(folder, nb_steps):
    command = [sys.executable, __file__, "--train", folder, "--steps", str(nb_steps)]
    return subprocess.Popen(command)


def compare(folder, nb_steps):
    unbroken, stopped = folder / "unbroken", folder / "stopped"
    print("-- a run in one piece", flush=True)
    start(unbroken, nb_steps).wait()
    print("-- the same, stopped by a signal", flush=True)
    first = start(stopped, nb_steps)
    while first.poll() is None and len(checkpoint.find(stopped)) < 2:
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    print("-- exit status", first.wait(), "and resumed in a new process", flush=True)
    start(stopped, nb_steps).wait()
    one, other = (json.loads((run / "curve.json").read_text()) for run in (unbroken, stopped))
    print(f"-- {len(one)} and {len(other)} episodes; the curves are equal: {one == other}")
    return 0 if one == other else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=Path, metavar="DIR")
    parser.add_argument("--steps", type=int, default=20_000)
    given = parser.parse_args()
    if given.train is not None:
        sys.exit(train(given.train, given.steps))
    folder = Path("runs", f"stop_and_resume-{time.strftime('%H%M%S')}")
    sys.exit(compare(folder, given.steps))

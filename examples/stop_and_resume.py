"""A run that is stopped by a signal and resumed in a new process, beside one that is not.

python examples/stop_and_resume.py            all three; says whether the curves are equal
python examples/stop_and_resume.py train DIR  one run: Ctrl-C saves it, the same line goes on
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
    """Train up to `nb_steps`, from the newest checkpoint in the folder where there is one."""
    random.seed(SEED)
    env = gym.make("CartPole-v1")
    agent = make_agent(env, nb_steps)
    saves = RunCheckpoint(folder, every_steps=nb_steps // 10, signals=True)
    resume = folder if checkpoint.find(folder) else None
    history = agent.fit(env, nb_steps, callbacks=[saves], resume=resume, verbose=2)
    (folder / "curve.json").write_text(json.dumps(history.history["episode_reward"]))
    print(f"ended at step {agent.step} of {nb_steps}: {history.reason or 'done'}")


def start(folder, nb_steps):
    command = [sys.executable, __file__, "train", folder, "--steps", str(nb_steps)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def compare(folder, nb_steps):
    unbroken, stopped = folder / "unbroken", folder / "stopped"
    if checkpoint.find(unbroken) or checkpoint.find(stopped):
        sys.exit(f"{folder} has such runs already: remove them, or pass another folder")
    start(unbroken, nb_steps).wait()
    first = start(stopped, nb_steps)
    while first.poll() is None and len(checkpoint.find(stopped)) < 2:
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    print("stopped with exit status", first.wait(), "at", checkpoint.find(stopped)[0].name)
    start(stopped, nb_steps).wait()
    one, other = (json.loads((run / "curve.json").read_text()) for run in (unbroken, stopped))
    print(f"{len(one)} and {len(other)} episodes; the curves are equal: {one == other}")
    return 0 if one == other else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", nargs="?", choices=["compare", "train"], default="compare")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/stop_and_resume"))
    parser.add_argument("--steps", type=int, default=20_000)
    given = parser.parse_args()
    sys.exit({"compare": compare, "train": train}[given.work](given.folder, given.steps))

"""Checkpoints of kerasrl_gpu: what a save costs in time, in memory, on disk, and in steps."""

import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

import keras
import numpy as np
import ours_adapters
import psutil
from ours_pool import append_episodes, frame_maker
from ours_train import dqn_cartpole
from peers import side

from kerasrl_gpu import DeviceMemory, DQNAgent

EVERY = 10_000  # steps between two checkpoints of "steps"


def atari_agent(limit, filled, seed):
    """A small network over a large pool of frames, `filled` rows of it."""
    memory = DeviceMemory(limit=limit, window_length=4)
    frames = keras.Input((4, 84, 84), dtype="uint8")
    q_values = keras.layers.Dense(4)(keras.layers.Flatten()(frames))
    agent = DQNAgent(model=keras.Model(frames, q_values), nb_actions=4, memory=memory, seed=seed)
    agent.compile(keras.optimizers.SGD(1e-3))
    append_episodes(memory, frame_maker(seed), lambda i: i % 4, filled)
    return agent


def incremental(args, folder):
    """Seconds of a save of which 90 % of the pool did not change, over those of a full save."""
    agent = atari_agent(args.frames, args.frames, args.seed)
    fresh = agent.memory.nb_entries // 10
    agent.save(folder / "warm", keep=1)
    ratios = []
    for window in range(args.windows):
        run = folder / str(window)
        agent.memory.saved = None  # as if no checkpoint had been written yet
        full_s = seconds(lambda run=run: agent.save(run))
        append_episodes(agent.memory, frame_maker(args.seed), lambda i: i % 4, fresh)
        ratios.append(seconds(lambda run=run: agent.save(run)) / full_s)
        shutil.rmtree(run)  # what frees 500 MB at once is no save
    return ratios


def memory(args, folder):
    """MiB by which the process grows at most while it saves."""
    agent = atari_agent(args.frames, args.frames, args.seed)
    process = psutil.Process()
    before, peak, done = process.memory_info().rss, [0], threading.Event()

    def watch():
        while not done.wait(0.0005):
            peak[0] = max(peak[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    agent.save(folder / "run", keep=1)
    done.set()
    watcher.join()
    return [max(0, peak[0] - before) / 2**20]


def size(args, folder):
    """Bytes of a checkpoint at 20 % fill over those at 100 %."""
    nbytes = []
    for filled in (args.frames // 5, args.frames):
        path = atari_agent(args.frames, filled, args.seed).save(folder / str(filled), keep=1)
        nbytes.append(sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
    return [nbytes[0] / nbytes[1]]


class SaveEveryOther(keras.callbacks.Callback):
    """Times stretches of steps, and has a checkpoint written in the middle of every second one."""

    def __init__(self, agent, path, warmup):
        super().__init__()
        self.agent, self.path, self.warmup = agent, path, warmup
        self.steps, self.times_s = 0, []

    def on_step_end(self, step, logs=None):
        self.steps += 1
        place, since = divmod(self.steps - self.warmup, EVERY)
        if since == 0:
            self.times_s.append(time.perf_counter())
        elif since == EVERY // 2 and place % 2:
            self.agent.save(self.path, keep=2)


def steps(args, folder):
    """Share of the step rate that a checkpoint every 10,000 steps of CartPole costs."""
    agent, env = dqn_cartpole(args.seed)
    stretches = 2 * args.windows
    watch = SaveEveryOther(agent, folder / "run", args.warmup)
    env.reset(seed=args.seed)
    agent.fit(env, args.warmup + stretches * EVERY, callbacks=[watch], verbose=0, visualize=False)
    taken_s = np.diff(watch.times_s)
    without_s, with_s = taken_s[0::2], taken_s[1::2]
    return [1 - statistics.median(without_s / with_s)]


def seconds(call) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


WORKS = {"incremental": incremental, "memory": memory, "size": size, "steps": steps}


def add_arguments(parser):
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--frames", type=int, default=70_000, help="rows in the pool: 500 MB")


def main():
    args = side.parse(__doc__, add_arguments)
    with tempfile.TemporaryDirectory() as folder:
        values = WORKS[args.work](args, Path(folder))
    versions, device = ours_adapters.versions()
    side.report(values, device, versions, None)


if __name__ == "__main__":
    main()

"""keras-rl2's SequentialMemory: milliseconds per `sample(32)`, or bytes per transition.

`sample` returns Python lists of frames. Stacking them into one array, which an update needs too,
is not counted.
"""

import tracemalloc

import numpy as np
import side
from rl.memory import SequentialMemory

EPISODE = 1_000


def sample_ms(args):
    block = np.random.default_rng(args.seed).integers(0, 256, (100, 84, 84), np.uint8)
    memory = SequentialMemory(limit=args.frames, window_length=4)
    for i in range(args.frames):
        # Its own allocation for each row, as `fit` makes one by deepcopy: that spreads the blocks
        # of the deques between the frames, and walking them is what `sample` spends its time on.
        frame = block[i % 100].copy()
        memory.append(frame, i % 4, float(i), i % EPISODE == EPISODE - 1)
    clock = side.StepClock(args.warmup, args.window, args.windows)
    for _ in range(clock.total_steps):
        memory.sample(32)
        clock.step()
    return clock.ms_per_step()


def transition_bytes(make_observation, make_action, window_length, rows=10 * EPISODE):
    """What the memory keeps alive per stored row, by Python's own allocation trace.

    Observations and actions are made anew for each row, as an environment and `deepcopy` make them.
    """
    memory = SequentialMemory(limit=rows, window_length=window_length)
    tracemalloc.start()
    before_bytes, _ = tracemalloc.get_traced_memory()
    for i in range(rows):
        terminal = i % EPISODE == EPISODE - 1
        memory.append(make_observation(), make_action(), float(i), terminal)
    after_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return [(after_bytes - before_bytes) / rows]


WORKS = {
    "sample": sample_ms,
    "atari": lambda args: transition_bytes(
        lambda: np.zeros((84, 84), np.uint8), lambda: np.int64(1), window_length=4
    ),
    "float17": lambda args: transition_bytes(
        lambda: np.zeros(17, np.float32), lambda: np.zeros(6, np.float32), window_length=1
    ),
}


def add_arguments(parser):
    parser.add_argument("work", choices=sorted(WORKS))
    parser.add_argument("--frames", type=int, default=1_000_000, help="rows in the memory")


def main():
    args = side.parse(__doc__, add_arguments)
    values = WORKS[args.work](args)
    versions = {"keras_rl2": "1.0.5", "numpy": np.__version__}
    notes = {"frames": args.frames} if args.work == "sample" else {}
    side.report(values, "host memory", versions, **notes)


if __name__ == "__main__":
    main()

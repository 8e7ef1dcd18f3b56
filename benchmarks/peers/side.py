"""How a side times itself and what it prints. Standard library only, Python 3.8 or newer:
every script of this folder runs in the environment of its own library.
"""

import argparse
import json
import platform
import statistics
import sys
import time


def gaps(stamps):
    """From each stamp to the next."""
    return [stamps[i + 1] - stamps[i] for i in range(len(stamps) - 1)]


class StepClock:
    """Stamps the clock at the end of the warm-up and after each of `windows` windows of steps.

    Args:
        warmup: steps before the first stamp; compilation and first allocations happen here.
        window: steps in one timed window.
        windows: how many windows are timed.
    """

    def __init__(self, warmup, window, windows):
        self.warmup, self.window, self.windows = warmup, window, windows
        self.steps = 0
        self.next_stamp = warmup
        self.stamps_s = []
        self.warmup_stamps_s = [time.perf_counter()]

    @property
    def total_steps(self):
        return self.warmup + self.window * self.windows

    def restart(self):
        """Count the compile time from now on, not from the making of the clock."""
        self.warmup_stamps_s = [time.perf_counter()]

    def step(self):
        """Count one step; in a timed window that is two comparisons of integers."""
        self.steps += 1
        if self.steps <= self.warmup:
            self.warmup_stamps_s.append(time.perf_counter())
        if self.steps == self.next_stamp:
            self.stamps_s.append(time.perf_counter())
            self.next_stamp += self.window

    def steps_per_s(self):
        """One figure a window, in the order in which they were timed."""
        return [self.window / seconds for seconds in gaps(self.stamps_s)][: self.windows]

    def ms_per_step(self):
        return [1e3 / rate for rate in self.steps_per_s()]

    def compile_s(self):
        """Seconds of the warm-up that went into tracing, compiling and first allocations.

        Each warm-up step that took more than three times as long as a timed one counts, with what
        it took beyond that one.
        """
        pace_s = 1 / statistics.median(self.steps_per_s())
        taken_s = gaps(self.warmup_stamps_s)
        return sum(seconds - pace_s for seconds in taken_s if seconds > 3 * pace_s)


def parse(description, add_arguments=None):
    """The options that every side takes, and those that `add_arguments(parser)` adds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--warmup", type=int, default=1000, help="steps that are not timed")
    parser.add_argument("--window", type=int, default=1000, help="steps in one timed window")
    parser.add_argument("--windows", type=int, default=5, help="timed windows")
    parser.add_argument("--seed", type=int, default=0)
    if add_arguments is not None:
        add_arguments(parser)
    return parser.parse_args()


def report(values, device, versions, compile_s=None, **notes):
    """Print the one line that the runner reads: the last line of standard output.

    Args:
        values: figures in the row's unit, one a timed window.
        device: what computed, in words.
        versions: {library: version}; the first one is the side's backend.
        compile_s: seconds spent on compilation, or None where nothing is compiled.
        notes: anything else that a reader of the figures should know.
    """
    line = {
        "values": list(values),
        "compile_s": compile_s,
        "device": device,
        "versions": dict(versions, python=platform.python_version()),
    }
    line.update(notes)
    sys.stdout.flush()
    print(json.dumps(line), flush=True)

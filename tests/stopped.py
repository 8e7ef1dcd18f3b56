"""Runs that signals stop, and runs on a disk that refuses; `test_run_checkpoint` starts this file:
python stopped.py signals FOLDER, python stopped.py disk FOLDER

It prints JSON lines. {"send": name} asks for a signal, all others are results.
"""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from counting import Counting, new_agent, newest_state, steps_in

from kerasrl_gpu import checkpoint
from kerasrl_gpu.callbacks import Callback, RunCheckpoint

SIGNALS = ("TERM", "INT", "USR1")
STOPPED_AT, LONG = 8, 10_000
PATIENCE_S = 20


def say(**what):
    print(json.dumps(what), flush=True)


def ask_for(name, until=lambda: False):
    """Have the parent send a signal, and stay in this call until it has acted."""
    say(send=name)
    last_s = time.monotonic() + PATIENCE_S
    while not until() and time.monotonic() < last_s:
        time.sleep(0.002)


class Ended(Callback):
    """The logs that training ended with."""

    logs = None

    def on_train_end(self, logs=None):
        self.logs = dict(logs)


class Signalled:
    """The cases, on one agent; each goes on from the checkpoint `base`."""

    def __init__(self, folder):
        self.folder, self.agent = folder, new_agent()

    def noted(self):
        return self.agent.stop_training

    def run(self, case, env, **arguments):
        ended = [Ended(), Ended()]
        saves = RunCheckpoint(self.folder / case, signals=True, **arguments)
        before = self.handlers()
        history = self.agent.fit(
            env, LONG, callbacks=[ended[0], saves, ended[1]], verbose=0, resume=self.folder / "base"
        )
        say(
            case=case,
            completed=history.completed,
            reason=history.reason,
            step=self.agent.step,
            ended=[callback.logs for callback in ended],
            handlers_are_back=self.handlers() == before,
        )

    def handlers(self):
        return [signal.getsignal(getattr(signal, f"SIG{name}")) for name in SIGNALS]

    def in_a_step(self, name):
        self.run(name, Counting(lambda n: n == STOPPED_AT and ask_for(name, self.noted)))

    def in_a_save(self, case, then=lambda: None):
        """The signal comes while the second checkpoint's files are written."""
        write, calls = os.fsync, []

        def slow(handle):
            if self.agent.step == 12 and not calls:
                calls.append(handle)
                ask_for("TERM", self.noted)
                then()
            return write(handle)

        os.fsync = slow
        try:
            self.run(case, Counting(), every_steps=4)
        finally:
            os.fsync = write

    def twice_in_a_step(self):
        def wait(n):
            if n == 10:
                ask_for("INT", self.noted)
                ask_for("INT")

        self.run("INT INT", Counting(wait), every_steps=4)


def signals(folder):
    cases = Signalled(folder)
    for name in SIGNALS:
        cases.in_a_step(name)
    cases.in_a_save("TERM in a save")
    cases.twice_in_a_step()
    cases.in_a_save("TERM TERM", then=lambda: ask_for("TERM"))  # the end of this process


def mount(*arguments):
    subprocess.run(["mount", *map(str, arguments)], check=True)


def disk(folder):
    """A file system of its own that is full from step 6 to 9 and read-only from 14 to 17."""
    small = folder / "small"
    small.mkdir()
    mount("-t", "tmpfs", "-o", "size=4m", "none", small)
    ballast = small / "ballast"

    def change(n):
        if n == 6:
            fill(ballast)
        elif n == 10:
            ballast.unlink()
        elif n in (14, 18):
            mount("-o", "remount,ro" if n == 14 else "remount,rw", small)

    agent, run = new_agent(), small / "run"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saves = RunCheckpoint(run, every_steps=2, keep=100)
        agent.fit(Counting(change), 20, callbacks=[saves], verbose=0)
    straight, steps, before = newest_state(run), steps_in(run), checkpoint.find(run)[-2]
    again = RunCheckpoint(small / "again")
    agent.fit(Counting(), 20, callbacks=[again], verbose=0, resume=before)
    say(
        steps=steps,
        warnings=[str(one.message) for one in caught if "checkpoint" in str(one.message)],
        resumed_from=before.name,
        same=same(straight, newest_state(small / "again")),
        names=sorted(path.name.partition("-")[0] for path in run.iterdir()),
    )


def fill(path):
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def same(one, other) -> bool:
    try:
        np.testing.assert_equal(one, other)
    except AssertionError as error:
        print(error, file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    {"signals": signals, "disk": disk}[sys.argv[1]](Path(sys.argv[2]))

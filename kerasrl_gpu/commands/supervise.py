"""`kerasrl-gpu supervise`: start a run again when it asks for that, once memory allows."""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import NamedTuple

from kerasrl_gpu import probes
from kerasrl_gpu.commands.running import Ended, Inbox, Stopped, Watcher, run, say
from kerasrl_gpu.errors import RESTART_STATUS, ArgumentError, check_count, check_number
from kerasrl_gpu.units import human_bytes

RESTARTS = "KERASRL_GPU_RESTARTS"  # in a run's environment: how often it was started again
LONGEST_DELAY_S = 300.0
LONG_RUN_S = 600.0  # after a run as long as this, what went wrong before counts no more
LOOK_EVERY_S = 5.0
A_DAY_S = 86_400.0


class Rules(NamedTuple):
    """When a run is started again, and how it is ended.

    Attributes:
        max_restarts: after so many, status 75 is passed through, too; None: no bound.
        memory_below: a restart waits until less than this share is in use of the smallest limit
            on host memory, and of the card.
        wait_at_most_s: for memory; then status 75 is passed through.
        delay_s: before the first restart; see `back_off_s`.
        grace_s: what a run gets to end after SIGTERM, SIGINT or SIGHUP, which are passed on to it.
            Then it is killed with all processes in its group.
    """

    max_restarts: int | None = None
    memory_below: str = "80%"
    wait_at_most_s: float = 3600.0
    delay_s: float = 1.0
    grace_s: float = 30.0

    def check(self) -> None:
        """Raise ArgumentError unless all of them can be honoured."""
        self.below()
        if self.max_restarts is not None:
            check_count("--max-restarts", self.max_restarts)
        check_number("--wait-at-most", self.wait_at_most_s, lambda s: s >= 0, "seconds from 0 on")
        for name, value in (("--delay", self.delay_s), ("--grace", self.grace_s)):
            check_number(name, value, lambda s: 0 <= s <= A_DAY_S, f"seconds, 0 to {A_DAY_S:.0f}")

    def below(self) -> float:
        """`memory_below` as a number."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", self.memory_below.strip(), re.ASCII)
        if found is None or not 0 < float(found[1]) <= 100:
            raise ArgumentError(
                f"--memory-below={self.memory_below!r}; pass a share above 0% up to 100%, such as "
                "'80%'."
            )
        return float(found[1]) / 100


def supervise(command: list, rules: Rules, read=None) -> int:
    """Run a command, and again each time it ends with status 75; any other end is passed through.

    It goes on where it stopped by itself, as a script does whose `fit` has `resume=saves.newest`
    (see `RunCheckpoint`), and finds KERASRL_GPU_RESTARTS in its environment, 0 at first.

    Args:
        command: the program and its arguments.
        read: returns `probes.Reading`s; None takes the host's and the card's.

    Returns:
        what to exit with: the status of the last run, or 128 + N where signal N ended it, or ended
        the wait for the next one.

    Raises:
        ArgumentError: no command, one that is not there, or rules that cannot be honoured.
    """
    rules.check()
    check_command(command)
    read, restarts, wait_s = read or _readings(), 0, None
    with Inbox() as inbox, Watcher() as watcher:
        while True:
            variables = {RESTARTS: str(restarts)}
            ended = run(command, variables, grace_s=rules.grace_s, inbox=inbox, watcher=watcher)
            why_not = over(ended, restarts, rules.max_restarts)
            if why_not:
                say(why_not)
                return ended.status
            restarts, wait_s = restarts + 1, back_off_s(wait_s, ended.lasted_s, rules.delay_s)
            say(f"status 75 after {ended.lasted_s:.0f} s; restart {restarts} in {wait_s:g} s")
            try:
                inbox.pause(wait_s)
                if not wait_for_memory(read, rules.below(), rules.wait_at_most_s, inbox.pause):
                    return ended.status
            except Stopped as stopped:
                say(f"{stopped} between two runs; no further one")
                return 128 + stopped.number


def over(ended: Ended, restarts: int, max_restarts: int | None) -> str | None:
    """Why the run is not started again; None: it is."""
    if ended.status != RESTART_STATUS:
        return f"status {ended.status} is passed through"
    if ended.asked:
        return "status 75 is passed through: the run was asked to end"
    if max_restarts is not None and restarts >= max_restarts:
        return f"status 75 is passed through: --max-restarts {max_restarts} is reached"
    return None


def check_command(command: list) -> None:
    """Raise ArgumentError unless there is such a command, and a system to supervise it on."""
    if not hasattr(os, "killpg"):
        raise ArgumentError("supervise needs process groups, which Windows lacks; take WSL.")
    if not command:
        raise ArgumentError("no command; write it behind --: supervise -- python train.py")
    if shutil.which(command[0]) is None:
        hint = f"; pass: -- python {command[0]}" if command[0].endswith(".py") else ""
        raise ArgumentError(f"{command[0]!r} is no command that can be run{hint}.")


def back_off_s(before_s: float | None, lasted_s: float, first_s: float) -> float:
    """Seconds from a run's end to its restart: each twice the one before, 300 at most.

    Args:
        before_s: what the last one was; None: there was none.
        lasted_s: how long the run lasted; from 600 on the waits begin anew.
        first_s: the first wait.
    """
    if before_s is None or lasted_s >= LONG_RUN_S:
        return first_s
    return min(2 * before_s, max(first_s, LONGEST_DELAY_S))


def short_of(readings: list, below: float):
    """The fullest reading that is not below that share of its limit; None: there is none.

    What cannot be read holds nothing up.
    """
    full = [one for one in readings if one.fraction is not None and one.fraction >= below]
    return max(full, key=lambda one: one.fraction, default=None)


def wait_for_memory(read, below: float, at_most_s: float, pause, clock=time.monotonic) -> bool:
    """Wait while memory is short; False where it stayed so for `at_most_s`.

    Args:
        read: returns the readings.
        pause: lets so many seconds pass; what it raises goes through.
        clock: seconds.
    """
    began_s, waited_s = clock(), None
    while (short := short_of(read(), below)) is not None:
        if waited_s is None:
            say(f"{_in_words(short)}; waiting until it is below {100 * below:g}%")
        waited_s = clock() - began_s
        if waited_s >= at_most_s:
            say(f"{_in_words(short)}, after {waited_s:.0f} s still; status 75 is passed through")
            return False
        pause(min(LOOK_EVERY_S, at_most_s - waited_s))
    if waited_s is not None:
        say(f"memory allows a restart after {clock() - began_s:.0f} s")
    return True


def _readings():
    # Not probes.auto: what the framework holds is asked through a backend, which takes memory.
    wanted = [probes.host.process, probes.host.host, probes.nvml.Card()]
    return lambda: probes.read(wanted)


def _in_words(reading) -> str:
    used, limit = human_bytes(reading.used_bytes), human_bytes(reading.limit_bytes)
    return f"{reading.name}: {used} of {limit} in use, {reading.fraction:.0%} ({reading.source})"

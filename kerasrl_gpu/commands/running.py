"""A command as a child of this process: signals to it, and its end with all that it started."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from kerasrl_gpu.commands import child, watcher

_PR_SET_CHILD_SUBREAPER = 36
_BARE = (sys.executable, "-I", "-S")  # neither site-packages nor the environment: starts at once
_ALONE_S, _ASKED_S, _KILLED_S = 0.5, 5.0, 5.0
_LOOK_EVERY_S = 0.02


def _numbers(*names) -> frozenset:
    """Signals by name; those that the system lacks are left out."""
    found = (getattr(signal, f"SIG{name}", None) for name in names)
    return frozenset(number for number in found if number is not None)


STOPS = _numbers("INT", "TERM", "HUP")
PASSED = _numbers("USR1", "USR2")  # a batch system's warning, which would end us otherwise
ENDED = _numbers("CHLD")


def say(text: str) -> None:
    """One line on stderr; a terminal that is gone must not end the supervision."""
    with contextlib.suppress(OSError):
        print(f"kerasrl-gpu supervise: {text}", file=sys.stderr, flush=True)


class Stopped(Exception):
    """A signal asked this process to end while no command ran."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


class Inbox:
    """While entered, signals are values that `wait` returns: none comes between two lines.

    Main thread only. A signal that this process ignores (`nohup`) stays ignored, but for SIGCHLD,
    without which no exit status arrives.
    """

    def __enter__(self):
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._fd_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._before = {}
        for number in STOPS | PASSED | ENDED:
            if number in ENDED or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, _take)
        return self

    def __exit__(self, *error):
        for number, handler in self._before.items():
            # None: set from outside Python, which cannot put it back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._reader)
        os.close(self._writer)

    def wait(self, at_most_s: float | None = None) -> int | None:
        """The next signal's number, in the order they came; None after `at_most_s` seconds."""
        ready, _, _ = select.select([self._reader], [], [], at_most_s)
        return os.read(self._reader, 1)[0] if ready else None

    def pause(self, seconds: float) -> None:
        """Let the time pass; raises Stopped where a signal asks for the end."""
        until_s = time.monotonic() + seconds
        while (number := self.wait(max(0.0, until_s - time.monotonic()))) is not None:
            if number in STOPS:
                raise Stopped(number)


def _take(number, frame):
    """A handler has to be there for the number to reach the inbox."""


class Watcher:
    """While entered, a process of its own ends the guarded group should we be killed."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [*_BARE, watcher.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # out of reach of the terminal's signals
            cwd=Path(watcher.__file__).anchor,  # in nobody's way
        )
        return self

    def __exit__(self, *error):
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def guard(self, group: int) -> None:
        """`group` is the one from now on; 0: none."""
        with contextlib.suppress(BrokenPipeError):  # somebody killed it: the command goes on
            self._process.stdin.write(b"%d\n" % group)
            self._process.stdin.flush()


class Ended(NamedTuple):
    """How a command ended.

    Attributes:
        status: its exit status; 128 + N where signal N killed it.
        lasted_s: how long it ran.
        asked: whether we had passed it a signal to end.
    """

    status: int
    lasted_s: float
    asked: bool


def run(command: list, variables: dict, *, grace_s: float, inbox: Inbox, watcher: Watcher) -> Ended:
    """Run a command to its end, and end what it leaves behind.

    Its session, and so its process group, is its own: the terminal's Ctrl-C reaches us alone, and
    it gets the signal once, from us. Its children do not: they are its to end, in its own order.

    Args:
        variables: added to its environment.
        grace_s: from the first signal to end that it was passed to the kill of its group.
    """
    began_s = time.monotonic()
    # Orphans come to us then: process 1 of a container may leave dead ones lying about.
    child.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    process = subprocess.Popen(
        [*_BARE, child.__file__, str(os.getpid()), *command],
        env={**os.environ, **variables},
        start_new_session=True,
    )
    try:
        watcher.guard(process.pid)
        asked = _attend(process, grace_s, inbox)
        lasted_s = time.monotonic() - began_s
        _sweep(process.pid)
    finally:
        if process.poll() is None:  # an error of ours; nothing may outlive us
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        watcher.guard(0)
        child.prctl(_PR_SET_CHILD_SUBREAPER, 0)
    code = process.returncode
    return Ended(code if code >= 0 else 128 - code, lasted_s, asked)


def _attend(process, grace_s, inbox) -> bool:
    """Pass signals on until the process has ended; whether one of them asked it to."""
    asked, kill_at_s = False, None
    while process.poll() is None:
        left_s = None if kill_at_s is None else max(0.0, kill_at_s - time.monotonic())
        number = inbox.wait(left_s)
        if number is None:
            say(f"it did not end within {grace_s:g} s; killed")
            _signal_group(process.pid, signal.SIGKILL)
            kill_at_s = None
            continue
        if number in STOPS | PASSED:
            process.send_signal(number)
        if number in STOPS:
            say(f"{signal.Signals(number).name} passed on; at most {grace_s:g} s to end")
            if not asked:
                asked, kill_at_s = True, time.monotonic() + grace_s
    return asked


def _sweep(group: int) -> None:
    """End what is left of the group of a command that has ended, with growing emphasis."""
    if _is_empty(group, _ALONE_S):
        return
    say("it left processes behind; SIGTERM to them")
    _signal_group(group, signal.SIGTERM)
    if _is_empty(group, _ASKED_S):
        return
    say("they stayed; killed")
    _signal_group(group, signal.SIGKILL)
    _is_empty(group, _KILLED_S)  # their memory is free when they are gone, not before


def _is_empty(group, at_most_s) -> bool:
    """Whether the group is empty, or becomes so within that time."""
    until_s = time.monotonic() + at_most_s
    while _has_members(group):
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def _has_members(group) -> bool:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:  # a dead one counts until somebody took note
            pass
    return _signal_group(group, 0)


def _signal_group(group, number) -> bool:
    """Whether there is somebody in the group who may get signals of ours."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True

"""Stands between a supervisor and its command: `python child.py SUPERVISOR COMMAND...`.

A program of its own, because code between fork and exec (`preexec_fn`) may find a lock held by a
thread that the fork did not copy. It becomes the command, so it takes no memory.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NOT_RUNNABLE, _NOT_FOUND = 126, 127  # a shell's


def main(supervisor: int, command: list) -> None:
    """Become the command, which the kernel kills (Linux) when the supervisor dies."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C by now: no traceback of this file
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        sys.exit(1)  # it died before the kernel was asked
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores both, and exec would hand that on
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        text = f"kerasrl-gpu supervise: {command[0]} does not start: {error.strerror}"
        print(text, file=sys.stderr)
        sys.exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE)


def prctl(option: int, value: int) -> None:
    """Linux' call of that name, which Python has none for; nothing happens where there is none."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes
    except ImportError:  # a Python built without it
        return
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

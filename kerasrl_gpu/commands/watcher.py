"""Ends what a supervisor leaves behind when it is killed itself: `python watcher.py`.

Each line of its input is the process group that is to end with the supervisor, 0 for none. The
input ends with the supervisor, however that dies. The kernel would do the same for the command
alone; processes that the command started are not told of the supervisor's death.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Read until the input ends, then kill the last group named."""
    group = 0
    for line in sys.stdin:
        group = int(line)
    if group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()

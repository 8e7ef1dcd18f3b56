"""Ctrl-C between two steps: inside one it could lose what a device call has just returned."""

from __future__ import annotations

import signal
import sys
import threading


class Interrupts:
    """While entered, the first Ctrl-C only notes itself; a second one acts at once.

    Nothing changes where somebody has a handler of his own for SIGINT, and outside the main thread.
    """

    def __init__(self):
        self._asked = self._installed = False

    def __enter__(self):
        mine = threading.current_thread() is threading.main_thread()
        if mine and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(self, *error):
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False

    def check(self) -> None:
        """Raise the KeyboardInterrupt that waits, if one does."""
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt

    def _note(self, number, frame):
        self._asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)

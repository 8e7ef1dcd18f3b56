"""Signals between two steps: inside one they could lose what a device call has just returned."""

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

    @property
    def waits(self) -> bool:
        """Whether one was noted that `check` will raise."""
        return self._asked

    def check(self) -> None:
        """Raise the KeyboardInterrupt that waits, if one does."""
        if self._asked:
            self._asked = False
            raise KeyboardInterrupt

    def _note(self, number, frame):
        self._asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)


class StopSignals:
    """While installed, the first of some signals asks for a stop; the next one acts as before.

    Nothing changes outside the main thread, where Python cannot set handlers, nor for a signal
    that another one of these waits for: it ends the run for both.

    Args:
        names: "TERM", "INT", "USR1"; those that the system lacks are left out.
        stop: called with the signal's name.
    """

    def __init__(self, names, stop):
        self._names, self._stop, self._before = names, stop, {}

    def install(self) -> bool:
        """Set the handlers; False where that cannot be done, outside the main thread."""
        if not self._names:
            return True
        if threading.current_thread() is not threading.main_thread():
            return False
        for name in self._names:
            number = getattr(signal, f"SIG{name}", None)
            if number is not None and not _stops(signal.getsignal(number)):
                self._before[number] = signal.signal(number, self._note)
        return True

    def restore(self) -> None:
        """Put back the handlers that were there before, unless somebody set others since."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._note:
                # None: set from outside Python, which cannot put it back
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _note(self, number, frame):
        self.restore()
        self._stop(signal.Signals(number).name)


def _stops(handler) -> bool:
    return isinstance(getattr(handler, "__self__", None), StopSignals)

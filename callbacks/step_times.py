"""Where the time of a step goes."""

import time

from kerasrl_gpu.callbacks.base import Callback

_PARTS = ("network", "environment", "update", "callbacks")


class StepTimes(Callback):
    """Splits the wall time of `fit` into four parts, and prints them when it ends.

        network      waiting for the device's answer, and choosing the action
        environment  the environment's steps, rendering and the processor included
        update       storing the row and starting the next update; the first one compiles
        callbacks    everything between two steps, resets included

    The device works while callbacks run, so "network" is what is left to wait for. Where it is
    small beside "environment", a faster device changes nothing.

    Args:
        verbose: 0 prints nothing.
        clock: seconds, ever growing.

    Attributes:
        seconds: part -> seconds in all.
        steps: steps that were timed.
    """

    def __init__(self, verbose=1, clock=time.perf_counter):
        super().__init__()
        self.verbose, self._clock = verbose, clock
        self.seconds, self.steps = dict.fromkeys(_PARTS, 0.0), 0

    def on_train_begin(self, logs=None):
        self.seconds, self.steps = dict.fromkeys(_PARTS, 0.0), 0
        self._since = self._clock()

    def on_step_begin(self, episode_step, logs=None):
        self._spent("callbacks")

    def on_action_begin(self, action, logs=None):
        self._spent("network")

    def on_action_end(self, action, logs=None):
        self._spent("environment")

    def on_step_end(self, episode_step, logs=None):
        self._spent("update")
        self.steps += 1

    def on_train_end(self, logs=None):
        if self.verbose and self.steps:
            print(self.summary())

    def summary(self) -> str:
        """One line: microseconds a step of every part, and its share."""
        if not self.steps:
            return "no step was timed"
        total = sum(self.seconds.values()) or 1.0
        parts = (
            f"{part} {1e6 * spent / self.steps:.0f} us ({spent / total:.0%})"
            for part, spent in self.seconds.items()
        )
        return f"a step takes {1e6 * total / self.steps:.0f} us: " + ", ".join(parts)

    def _spent(self, part):
        now = self._clock()
        self.seconds[part] += now - self._since
        self._since = now

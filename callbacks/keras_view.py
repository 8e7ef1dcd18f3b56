"""What Keras' own callbacks see of a run: an episode is an epoch, a step is a batch."""

import math
from collections.abc import Mapping

from kerasrl_gpu import probes
from kerasrl_gpu.callbacks.readings import memory_bytes
from kerasrl_gpu.callbacks.running import LateMetrics, as_number


class KerasView:
    """Logs of plain Python numbers for callbacks that were written for `keras.Model.fit`.

    At an epoch's end they hold the episode's numbers, the mean of each metric over the episode's
    steps (NaN where no update ran), `memory_bytes` of the replay memory and `process_bytes`, the
    resident memory, where they are known. At a batch's end they hold the step's numbers and the
    newest metrics that are free to read, those of the step before, leaving out NaN: a step without
    an update has no loss.
    """

    def __init__(self):
        self.begin(None)

    def begin(self, agent) -> None:
        """A run of `agent` starts."""
        self._agent = agent
        self._metrics = LateMetrics(getattr(agent, "metrics_names", ()))
        self._means = {}
        self._batch_logs = self._epoch_logs = None

    def get_state(self) -> dict:
        """The means of the open episode."""
        return self._metrics.get_state()

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called."""
        self._metrics.set_state(state)

    def on_step_end(self, episode_step, logs: Mapping) -> None:
        self._metrics.push(logs.get("metrics"))
        self._batch_logs = None

    def on_episode_end(self, episode, logs: Mapping) -> None:
        self._metrics.flush()
        self._means = self._metrics.means() if self._metrics.seen else {}
        self._metrics.reset()
        self._epoch_logs = None

    def as_batch_end(self, method):
        """`method(batch, logs)` as something to call at a step's end."""

        def call(episode_step, logs):
            if self._batch_logs is None:  # one dict for all that listen, made once they are reached
                self._batch_logs = self._batch(logs)
            method(episode_step, self._batch_logs)

        return call

    def as_epoch_end(self, method, callback):
        """`method(epoch, logs)` as something to call at an episode's end.

        A callback with a `monitor` is left alone while that metric is NaN: Keras would take the
        first NaN, of an episode inside the warm-up, for the best value ever.
        """

        def call(episode, logs):
            if self._epoch_logs is None:
                self._epoch_logs = self._epoch(logs)
            monitored = self._epoch_logs.get(getattr(callback, "monitor", None))
            if monitored is None or not math.isnan(monitored):
                method(episode, self._epoch_logs)

        return call

    def _batch(self, logs: Mapping) -> dict:
        plain = _numbers(logs)
        if self._metrics.newest is not None:
            for name, value in zip(self._metrics.names, self._metrics.newest, strict=True):
                if value == value:
                    plain.setdefault(name, float(value))
        return plain

    def _epoch(self, logs: Mapping) -> dict:
        plain = {**self._means, **_numbers(logs)}
        sizes = {"memory_bytes": memory_bytes(self._agent), "process_bytes": probes.process_rss()}
        return plain | {name: size for name, size in sizes.items() if size is not None}


def _numbers(logs: Mapping) -> dict:
    numbers = ((name, as_number(value)) for name, value in logs.items())
    return {name: number for name, number in numbers if number is not None}

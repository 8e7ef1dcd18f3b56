"""The object that `fit` and `test` return."""

import keras

from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.callbacks.running import as_number


class History(Callback, keras.callbacks.History):
    """What happened, an entry an episode.

    Attributes:
        history: lists by name, in plain numbers: `episode_reward` (reward units),
            `nb_episode_steps` and `nb_steps` (environment steps; the latter counts over the run)
            after `fit`; `episode_reward` and `nb_steps` after `test`. Empty until an episode ends.
        epoch: the numbers of the episodes in these lists, from 0.
        completed: whether the run went on to its end; False until it is over.
        reason: why it did not, where somebody gave a reason, else None.
        resumed: what was restored, absent and ignored, where the run went on from an earlier one,
            whose episodes then stand before its own; else None.
    """

    def __init__(self):
        super().__init__()
        self.resumed = None
        self._clear()

    def on_train_begin(self, logs=None):
        self._clear()

    def on_episode_end(self, episode, logs=None):
        self.epoch.append(int(episode))
        for name, value in (logs or {}).items():
            number = as_number(value)
            self.history.setdefault(name, []).append(value if number is None else number)

    def on_train_end(self, logs=None):
        logs = logs or {}
        self.completed = bool(logs.get("completed", not logs.get("did_abort", False)))
        self.reason = logs.get("reason")

    def get_state(self) -> dict:
        """The lists so far."""
        return {"history": {k: list(v) for k, v in self.history.items()}, "epoch": list(self.epoch)}

    def set_state(self, state: dict) -> None:
        """Go on with the lists that `get_state` returned."""
        self.history = {name: list(values) for name, values in state["history"].items()}
        self.epoch = list(state["epoch"])

    def _clear(self):
        self.history, self.epoch, self.completed, self.reason = {}, [], False, None

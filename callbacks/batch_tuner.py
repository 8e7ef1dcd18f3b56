"""Chooses how updates are executed while a run goes on."""

import sys
import warnings

from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.errors import KerasRLError, TuningStopped, check_number
from kerasrl_gpu.planning import budgets
from kerasrl_gpu.tuning.cache import opened


class BatchTuner(Callback):
    """Tunes when the warm-up is over and the first update was made, and again when asked to.

    What is learned stays: micro-batches and fused updates are chosen, not the batch, unless
    `free`. A run that goes on from a checkpoint is executed as it was, and not tuned again. While
    a MemoryGuard sees little memory, or rows of the pool are spilled, it waits.

    Args:
        free: the batch itself may become another power of two; the replay ratio stays.
        budget, seconds, cache: see `agent.tune`.
        verbose: 0 says nothing, 1 the choice and its reason.

    Attributes:
        choice: the last `tuning.Choice`, None before the first.

    Raises:
        ArgumentError: an argument that cannot be honoured; at the first tuning also what
            `agent.tune` raises.
    """

    def __init__(self, free=False, *, budget=None, seconds=12.0, cache=True, verbose=1):
        super().__init__()
        check_number("seconds", seconds, lambda number: number > 0, "seconds above 0")
        budgets.parse(budget)
        opened(cache)
        self.free, self.budget, self.seconds = free, budget, seconds
        self.cache, self.verbose = cache, verbose
        self.choice, self._due, self._tuned = None, True, False

    def request(self) -> None:
        """Tune again when the next step with an update has ended."""
        self._due = True

    def get_state(self) -> dict:
        """Whether the run was tuned; see `Callback`."""
        return {"tuned": self._tuned, "due": self._due}

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called."""
        self._tuned, self._due = state["tuned"], state["due"]

    def set_model(self, agent):
        super().set_model(agent)
        agent.expect_tuning(free=self.free)

    def on_train_begin(self, logs=None):
        self._updates_before = self._nb_updates()

    def on_step_end(self, episode_step, logs=None):
        if not self._due or not self.agent.training or self._nb_updates() == self._updates_before:
            return
        if self.agent.trainer.careful or getattr(self.agent.memory, "tiers", None) is not None:
            return  # what is tried takes memory, and there is little
        self._due = False
        if self.verbose:
            print(f"tuning: {self.seconds:g} s, and compiling", file=sys.stderr)
        try:
            self.choice = self.agent.tune(
                free=self.free, budget=self.budget, seconds=self.seconds, cache=self.cache
            )
        except TuningStopped:
            self._due = True  # for the run that goes on from here
            return
        except KerasRLError as error:
            if not self._tuned:
                raise
            warnings.warn(f"the run goes on as it was, not tuned again: {error}", stacklevel=2)
            return
        self._tuned = True
        if self.verbose:
            print(self.choice.reason, file=sys.stderr)

    def _nb_updates(self) -> int:
        trainer = self.agent.trainer  # none yet where the model waits for its first observation
        return 0 if trainer is None else trainer.nb_updates

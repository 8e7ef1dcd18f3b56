"""The state of Atari games: how the episode began, and every action since.

ALE's own state in mid-episode is not the whole of it: it lacks the action that a sticky step would
repeat, and what the television chip is about to draw (Arcade-Learning-Environment #417, #739). A
game restored from it alone goes on otherwise, now in the picture, now in what happens. A reset
clears all of that, so restoring plays the episode again (some 16,000 frames/s).
"""

from __future__ import annotations

from array import array

import ale_py
import numpy as np

from kerasrl_gpu.errors import SnapshotError

# After these the game is not where its actions led it; only the next reset starts a new journal.
_BREAKS = ("loadROM", "restoreState", "restoreSystemState", "setRAM")


class Journal:
    """ALE's interface, writing down what `take` needs. Everything else is passed on.

    Attributes:
        start: ALE's state before the episode's reset, or None before the first one.
    """

    def __init__(self, ale):
        self._ale = ale
        self.begin(None)

    def __getattr__(self, name):
        if name in _BREAKS:
            self.begin(None)
        return getattr(self._ale, name)

    def begin(self, start: bytes | None) -> None:
        """Forget the episode and note how the next one starts."""
        self.start, self.actions, self.strengths = start, array("B"), array("f")

    def reset_game(self) -> None:
        """Begin an episode; ALE's generator and frame count go on from where they are."""
        self.begin(self._ale.cloneState(include_rng=True).serialize())
        self._ale.reset_game()

    def act(self, action, strength: float = 1.0) -> int:
        """One frame."""
        self.actions.append(action.value)
        self.strengths.append(strength)
        return self._ale.act(action, strength)


def prepare(env) -> None:
    """Let a journal be kept from the next reset on."""
    if not isinstance(env.ale, Journal):
        env.ale = Journal(env.ale)


def skip(env) -> frozenset:
    """Names of what is saved here or belongs to the constructor."""
    return frozenset({"ale", "_action_set", "render_mode", "_ezpickle_args", "_ezpickle_kwargs"})


def take(env) -> dict:
    """The journal: bytes, u8[T] actions and f32[T] strengths of the episode's T frames so far.

    Raises:
        SnapshotError: none was kept from the start of the episode.
    """
    journal = env.ale
    if not isinstance(journal, Journal) or journal.start is None:
        raise SnapshotError(
            f"{env} cannot be saved: an Atari game goes on exactly only if its episode is recorded "
            "from the start. Call kerasrl_gpu.snapshots.prepare(env) before the episode's reset."
        )
    return {
        "start": journal.start,
        "actions": np.array(journal.actions, np.uint8),
        "strengths": np.array(journal.strengths, np.float32),
    }


def put(env, taken: dict) -> None:
    """Play the episode again."""
    prepare(env)
    env.ale.restoreState(ale_py.ALEState(taken["start"]))
    env.ale.reset_game()
    for action, strength in zip(taken["actions"], taken["strengths"], strict=True):
        env.ale.act(ale_py.Action(action), strength)

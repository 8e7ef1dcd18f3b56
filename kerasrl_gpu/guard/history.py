"""What the guard remembers from one verdict to the next."""

from __future__ import annotations

import math
from typing import NamedTuple

from kerasrl_gpu.guard import trend
from kerasrl_gpu.guard.levels import EXIT, NORMAL, PAUSE, SHRINK, SPILL, STATES, WATCH

_FREED = 0.01  # of the limit; by less an action has freed nothing
_STATE_OF = {"shrink": SHRINK, "grow": SHRINK, "spill": SPILL, "pull": SPILL}
_STEPS = {"shrink": (1, 0), "grow": (-1, 0), "spill": (0, 1), "pull": (0, -1)}


class Acted(NamedTuple):
    """The last action.

    Attributes:
        action: which.
        at_s: when.
        name: of the reading that led to it; None where another cause did.
        fraction: of that reading then.
        least: the least fraction of that reading since.
    """

    action: str
    at_s: float
    name: str | None = None
    fraction: float | None = None
    least: float | None = None


class History(NamedTuple):
    """Plain values only. Times are seconds of whatever clock `judge` is given.

    Attributes:
        state: one of `levels.STATES`.
        since_s: when it was entered; None: at the beginning.
        calm_s: since when use has been below the state's leave level; None: it is not.
        shrunk: steps by which the micro-batch was made smaller and not larger again.
        spilled: steps by which the pool was moved and not moved back.
        spent: actions that are not taken again before their state is left.
        acted: the last action.
        trends: of each name of a reading, (time, fraction) of its newest ones.
    """

    state: str = NORMAL
    since_s: float | None = None
    calm_s: float | None = None
    shrunk: int = 0
    spilled: int = 0
    spent: tuple[str, ...] = ()
    acted: Acted | None = None
    trends: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = ()

    def to_plain(self) -> dict:
        """What of it outlasts the process, as JSON holds it: clocks and readings do not."""
        return {"state": self.state, "shrunk": self.shrunk, "spilled": self.spilled}

    @classmethod
    def from_plain(cls, plain: dict) -> History:
        """Where a run that goes on in another process begins; it is neither paused nor ended."""
        history = cls(shrunk=plain["shrunk"], spilled=plain["spilled"])
        over = plain["state"] in (PAUSE, EXIT)
        return history._replace(state=history.rest(PAUSE) if over else plain["state"])

    def rest(self, left: str) -> str:
        """The state below `left` that remains, since something is still to be undone there."""
        below = STATES[: STATES.index(left)]
        for state, steps in ((SPILL, self.spilled), (SHRINK, self.shrunk)):
            if steps and state in below:
                return state
        return WATCH if WATCH in below else NORMAL

    def entered(self, state: str, now_s: float) -> History:
        """In `state`; what was spent in states above it may be taken again."""
        if state == self.state:
            return self
        reached = STATES[: STATES.index(state) + 1]
        spent = tuple(action for action in self.spent if _STATE_OF[action] in reached)
        return self._replace(state=state, since_s=now_s, calm_s=None, spent=spent)

    def noted(self, fractions: dict[str, float], now_s: float, growing_s: float) -> History:
        """With the fractions that are read now, by name."""
        trends = dict(self.trends)
        for name, fraction in fractions.items():
            trends[name] = trend.added(trends.get(name, ()), now_s, fraction, growing_s)
        acted = self.acted
        if acted is not None and acted.name in fractions:
            acted = acted._replace(least=min(acted.least, fractions[acted.name]))
        return self._replace(trends=tuple(trends.items()), acted=acted)

    def left_s(self, name: str, fraction: float, growing_s: float) -> float:
        """Seconds until a reading meets its limit, as it grows now; inf where it does not."""
        growth = trend.growth(dict(self.trends).get(name, ()), growing_s)
        return (1 - fraction) / growth if growth > 0 else math.inf

    def cools_s(self, now_s: float, cooldown_s: float) -> float:
        """Seconds of the cooldown that are left, 0 where none are."""
        return 0.0 if self.acted is None else max(0.0, self.acted.at_s + cooldown_s - now_s)

    def last_was(self, *actions: str) -> bool:
        """Whether the last action was one of these."""
        return self.acted is not None and self.acted.action in actions

    def taken(self, action: str, now_s: float, reading=None) -> History:
        """With `action` as the last one, and `reading` as what it is to lower."""
        shrunk, spilled = _STEPS.get(action, (0, 0))
        acted = Acted(action, now_s)
        if reading is not None:
            acted = Acted(action, now_s, reading.name, reading.fraction, reading.fraction)
        return self._replace(
            acted=acted, shrunk=self.shrunk + shrunk, spilled=self.spilled + spilled
        )

    def spending(self, action: str) -> History:
        """With `action` among those that are not taken again."""
        return self if action in self.spent else self._replace(spent=(*self.spent, action))

    def weighed(self) -> History:
        """With the last action spent, if it was to free something and did not."""
        acted = self.acted
        if not self.last_was("shrink", "spill") or acted.fraction is None:
            return self
        freed = acted.fraction - acted.least
        return self if freed >= _FREED - 1e-9 else self.spending(acted.action)

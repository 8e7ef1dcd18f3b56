"""At which share of a limit the guard enters a state, and below which it leaves it again."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from kerasrl_gpu.errors import ArgumentError, check_number

# From the weakest to the strongest.
STATES = NORMAL, WATCH, SHRINK, SPILL, PAUSE, EXIT = (
    "NORMAL",
    "WATCH",
    "SHRINK",
    "SPILL",
    "PAUSE",
    "EXIT",
)


def stronger(one: str, other: str) -> str:
    """The stronger of two states."""
    return max(one, other, key=STATES.index)


class Level(NamedTuple):
    """Where a state begins and ends.

    Attributes:
        enter: fraction of a limit; use at it or above enters the state.
        leave: fraction of a limit, less than `enter`; use has to be below it to leave the state.
        dwell_s: seconds that it has to be below in a row.
    """

    enter: float
    leave: float
    dwell_s: float


class Levels(NamedTuple):
    """What the guard goes by; `make` makes them, and has the defaults.

    Attributes:
        watch: of the state that only measures more often.
        shrink: smaller micro-batches; None switches it off, as with the next two.
        spill: the oldest of the pool to the host, then to a file.
        pause: a checkpoint, then no more steps for the time being.
        exit: fraction at or above which the run ends; None never ends it for that.
        cooldown_s: seconds between two actions.
        max_pause_s: seconds after which a pause becomes the run's end; None waits for ever.
        growing_s: seconds of readings from which it is foretold when a limit will be met.
    """

    watch: Level
    shrink: Level | None
    spill: Level | None
    pause: Level | None
    exit: float | None
    cooldown_s: float
    max_pause_s: float | None
    growing_s: float

    def of(self, state: str) -> Level | None:
        """The level of a state between NORMAL and EXIT; None where it is switched off."""
        return {WATCH: self.watch, SHRINK: self.shrink, SPILL: self.spill, PAUSE: self.pause}[state]


def make(
    *,
    watch: float = 0.75,
    watch_leave: float = 0.70,
    watch_dwell_s: float = 10.0,
    shrink: float | None = 0.82,
    shrink_leave: float = 0.70,
    shrink_dwell_s: float = 60.0,
    spill: float | None = 0.88,
    spill_leave: float = 0.65,
    spill_dwell_s: float = 60.0,
    pause: float | None = 0.92,
    pause_leave: float = 0.80,
    pause_dwell_s: float = 30.0,
    exit: float | None = 0.96,
    cooldown_s: float = 10.0,
    max_pause_s: float | None = None,
    growing_s: float = 30.0,
) -> Levels:
    """Levels from a user's arguments: see `Level` and `Levels`.

    Raises:
        ArgumentError: see `checked`.
    """

    def level(enter, leave, dwell_s):
        return None if enter is None else Level(enter, leave, dwell_s)

    return checked(
        Levels(
            watch=Level(watch, watch_leave, watch_dwell_s),
            shrink=level(shrink, shrink_leave, shrink_dwell_s),
            spill=level(spill, spill_leave, spill_dwell_s),
            pause=level(pause, pause_leave, pause_dwell_s),
            exit=exit,
            cooldown_s=cooldown_s,
            max_pause_s=max_pause_s,
            growing_s=growing_s,
        )
    )


def checked(levels: Levels) -> Levels:
    """`levels`, if they can be honoured.

    Raises:
        ArgumentError: a fraction lies outside 0..1, a state would be left at or above the level
            that enters it, a stronger state would not come above a weaker one, or a time is
            negative.
    """
    enters = {}
    for state in (WATCH, SHRINK, SPILL, PAUSE):
        level, name = levels.of(state), state.lower()
        if level is not None:
            enters[name] = _fraction(name, level.enter)
            _fraction(f"{name}_leave", level.leave)
            if level.leave >= level.enter:
                raise ArgumentError(
                    f"{name}_leave={level.leave!r} is not below {name}={level.enter!r}, so use "
                    f"between them would enter and leave by turns; pass a {name}_leave below it."
                )
            _seconds(f"{name}_dwell_s", level.dwell_s)
    if levels.exit is not None:
        enters["exit"] = _fraction("exit", levels.exit)
    _check_order(enters)
    _seconds("cooldown_s", levels.cooldown_s)
    if levels.max_pause_s is not None:
        _seconds("max_pause_s", levels.max_pause_s)
    check_number("growing_s", levels.growing_s, lambda s: s > 0, "a number of seconds above 0")
    return levels


def _check_order(enters: dict) -> None:
    for weaker, higher in itertools.pairwise(enters):
        if enters[weaker] >= enters[higher]:
            raise ArgumentError(
                f"{weaker}={enters[weaker]!r} is not below {higher}={enters[higher]!r}; levels "
                f"rise in the order {', '.join(enters)}. Lower {weaker}, or raise {higher}."
            )


def _fraction(name: str, value) -> float:
    return check_number(name, value, lambda x: 0 <= x <= 1, "a fraction of the limit, from 0 to 1")


def _seconds(name: str, value) -> float:
    return check_number(name, value, lambda s: s >= 0, "a number of seconds, 0 or more")

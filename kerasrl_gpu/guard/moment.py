"""A moment's readings, looked through, and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from typing import NamedTuple

from kerasrl_gpu.guard.history import History
from kerasrl_gpu.guard.levels import NORMAL, SHRINK, SPILL, WATCH, Levels
from kerasrl_gpu.probes.readings import Reading
from kerasrl_gpu.units import human_bytes

STALLED = 0.10  # of the time; something waits for memory then


class Moment(NamedTuple):
    """What a verdict goes by, but for the history.

    Attributes:
        levels: what the readings are held against.
        now_s: seconds.
        failed: whether an allocation failed.
        can: the actions that are possible.
        worst: the reading with the largest fraction of its limit; None: nothing could be read.
        stalls: how much of the time something waited; None: it could not be read.
        hurried: the reading that meets its limit first, where that is too soon; None: none does.
        left_s: seconds until then.
        notes: what else there is to say.
    """

    levels: Levels
    now_s: float
    failed: bool
    can: Set[str]
    worst: Reading | None
    stalls: Reading | None
    hurried: Reading | None
    left_s: float | None
    notes: tuple[str, ...]

    def reached(self) -> str:
        """The strongest state below PAUSE that the readings, as they are now, ask for."""
        for state in (SPILL, SHRINK, WATCH):
            level = self.levels.of(state)
            if level is not None and self.worst is not None and self.worst.fraction >= level.enter:
                return state
        return WATCH if self._stalled() else NORMAL

    def is_calm(self, state: str, leave: float) -> bool:
        """Whether `state` may be left, if it stays like this."""
        if self.failed or self.hurried is not None or (state == WATCH and self._stalled()):
            return False
        if self.worst is None:  # stalls alone bring no other state about, and end no other one
            return state == WATCH and self.stalls is not None
        return self.worst.fraction < leave

    def decisive(self, state: str) -> Reading | None:
        """The reading that `state` is held by; None where nothing could be read."""
        lesser = self.worst is None or self.worst.fraction < self.levels.watch.enter
        if lesser and state in (NORMAL, WATCH) and self._stalled():
            return self.stalls
        return self.worst or self.stalls

    def words(self, state: str) -> str:
        """`decisive`, in words."""
        reading = self.decisive(state)
        return "nothing could be read" if reading is None else in_words(reading)

    def _stalled(self) -> bool:
        return self.stalls is not None and self.stalls.fraction >= STALLED


def look(
    readings: Iterable[Reading],
    history: History,
    levels: Levels,
    now_s: float,
    *,
    checkpoint_s: float,
    checkpoint_bytes: int,
    failed: bool,
    can: Set[str],
) -> tuple[Moment, History]:
    """The moment, and the history with its readings; arguments as in `judge`."""
    readings = list(readings)
    # Of several with one name, such as two devices, the worst.
    rising = sorted(filter(_is_known, readings), key=lambda each: each.fraction)
    known = {each.name: each for each in rising}
    disk, stalls = known.pop("disk", None), known.pop("stalls", None)
    known = _without_reserve(known)
    history = history.noted(
        {name: each.fraction for name, each in known.items()}, now_s, levels.growing_s
    )
    left = {
        name: history.left_s(name, each.fraction, levels.growing_s) for name, each in known.items()
    }
    first = min(left, key=left.get, default=None)
    hurried = first is not None and left[first] < 2 * checkpoint_s
    moment = Moment(
        levels=levels,
        now_s=now_s,
        failed=failed,
        can=can,
        worst=max(known.values(), key=lambda each: each.fraction, default=None),
        stalls=stalls,
        hurried=known[first] if hurried else None,
        left_s=left[first] if hurried else None,
        notes=tuple(_notes(readings, known or stalls, disk, checkpoint_bytes)),
    )
    return moment, history


def in_words(reading: Reading) -> str:
    """A reading that is not missing, with its numbers and its source."""
    if reading.share is not None:
        return f"{reading.name} {100 * reading.share:.1f} % of the time ({reading.source})"
    used, limit = human_bytes(reading.used_bytes), human_bytes(reading.limit_bytes)
    share = f"{100 * reading.fraction:.1f} %"
    return f"{reading.name} {used} of {limit}, {share} ({reading.source})"


def _is_known(reading: Reading) -> bool:
    fraction = reading.fraction
    return reading.missing is None and fraction is not None and math.isfinite(fraction)


def _without_reserve(known: dict[str, Reading]) -> dict[str, Reading]:
    """The card by what is in use: the driver counts all that our allocator keeps in reserve.

    Where it cannot be told what of the card is ours, or nothing is, the card does not count.
    """
    card, device = known.get("card"), known.get("device")
    if card is None:
        return known
    rest = {name: each for name, each in known.items() if name != "card"}
    if card.others_bytes is None or card.others_bytes >= card.used_bytes:
        return rest
    if device is None:  # its allocator keeps no figures: what it took is all there is to go by
        return known
    used_bytes = card.others_bytes + device.used_bytes
    source = f"{card.source}; ours: {device.source}"
    return {**rest, "card": card._replace(used_bytes=used_bytes, source=source)}


def _notes(readings, known, disk, checkpoint_bytes):
    if not known:
        yield from (f"{each.name}: {each.missing.rstrip('.')}" for each in readings if each.missing)
    if disk is not None:
        free_bytes = disk.limit_bytes - disk.used_bytes
        if free_bytes < checkpoint_bytes:
            yield (
                f"a checkpoint takes {human_bytes(checkpoint_bytes)}, and the disk has "
                f"{human_bytes(free_bytes)} left ({disk.source})"
            )

"""What the guard makes of a moment's readings: a state, a reason, and at most one action.

Nothing here measures or acts. `judge` is given all that it goes by, the time included.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from kerasrl_gpu.guard import moment as moments
from kerasrl_gpu.guard.history import History
from kerasrl_gpu.guard.levels import (
    EXIT,
    NORMAL,
    PAUSE,
    SHRINK,
    SPILL,
    WATCH,
    Levels,
    stronger,
)
from kerasrl_gpu.guard.moment import STALLED, Moment, in_words
from kerasrl_gpu.probes.readings import Reading

ALL_ACTIONS = frozenset(("shrink", "grow", "spill", "pull", "pause", "resume", "exit"))
_FREES = {"shrink": SHRINK, "spill": SPILL}  # action -> the state that it belongs to
_UNDOES = {"grow": SHRINK, "pull": SPILL, "resume": PAUSE}


class Verdict(NamedTuple):
    """What is to be thought, and to be done.

    Attributes:
        state: one of `levels.STATES`.
        action: one of ALL_ACTIONS, or None.
        reason: a sentence, with the reading that decided.
        reading: that reading; None where there was none.
        left_s: seconds until it meets its limit, where that decided.
    """

    state: str
    action: str | None
    reason: str
    reading: Reading | None = None
    left_s: float | None = None


def judge(
    readings: Iterable[Reading],
    levels: Levels,
    history: History,
    now_s: float,
    *,
    checkpoint_s: float = 0.0,
    checkpoint_bytes: int = 0,
    failed: bool = False,
    can: Set[str] = ALL_ACTIONS,
) -> tuple[Verdict, History]:
    """The verdict on the readings of one moment; the worst decides, and at a level is over it.

    A state is entered at once and left after its dwell, one step back at a time; a gap in the
    readings begins the dwell anew. Shrinking and spilling stand in for each other where one is
    not possible, or freed less than 1 % of the limit: it is then not repeated before its state
    was left. They never become a pause: a run that holds steady below that level is safe.

    Actions are a cooldown apart, but for three, for which waiting is worse. A pause waits for
    nothing: it can be taken back. An exit waits for an earlier pause alone, which needs time to
    show what it freed, and nothing steps meanwhile. After a failed allocation the same batch is
    run again, and something has to be done first: smaller parts, or spilling, or a pause, or, if
    it failed within a cooldown of being resumed, the end.

    What was given back, and had to be taken again within its dwell, is not given back again before
    its state was left.

    Args:
        readings: missing ones are ignored. "stalls" gives WATCH at most, "disk" a sentence, and of
            "card" what an allocator merely keeps in reserve does not count.
        levels: see `levels.make`.
        history: what the last call returned; `History()` at first.
        now_s: seconds of a clock that never goes back.
        checkpoint_s: what a checkpoint takes; use that would meet its limit within twice that
            pauses the run. 0 foretells nothing.
        checkpoint_bytes: what a checkpoint takes on the disk.
        failed: whether an allocation failed since the last call.
        can: the actions that are possible now.

    Returns:
        (verdict, history to hand in next time).
    """
    moment, history = moments.look(
        readings,
        history,
        levels,
        now_s,
        checkpoint_s=checkpoint_s,
        checkpoint_bytes=checkpoint_bytes,
        failed=failed,
        can=can,
    )
    verdict, history = _decide(moment, history)
    sentence = "; ".join((verdict.reason, *moment.notes))
    return verdict._replace(reason=f"{sentence}."), history


def _decide(moment: Moment, history: History) -> tuple[Verdict, History]:
    if history.state == EXIT:
        return _stay(moment, history, "the run was told to end")
    urgent = _exit(moment, history) or (_pause(moment) if history.state != PAUSE else None)
    if urgent is not None:
        return _take(moment, history, urgent)
    if history.state == PAUSE:
        return _ease(moment, history)
    reached = moment.reached()
    if moment.failed or reached in (SHRINK, SPILL):
        return _free(moment, history, reached)
    if history.state == NORMAL and reached == WATCH:
        history = history.entered(WATCH, moment.now_s)
        return _stay(moment, history, _over(moment, WATCH))
    return _ease(moment, history)


def _exit(moment: Moment, history: History) -> Verdict | None:
    """The verdict that ends the run, if that is due."""
    levels, worst = moment.levels, moment.worst
    if "exit" not in moment.can:
        return None
    if history.state == PAUSE and levels.max_pause_s is not None:
        paused_s = moment.now_s - history.since_s
        if paused_s >= levels.max_pause_s:
            why = f"paused for {paused_s:.0f} s, max_pause_s={levels.max_pause_s:g}"
            return Verdict(EXIT, "exit", f"{moment.words(PAUSE)}; {why}", moment.decisive(PAUSE))
    if levels.exit is None or worst is None or worst.fraction < levels.exit:
        return None
    if history.last_was("pause") and history.cools_s(moment.now_s, levels.cooldown_s):
        return None
    why = f"{in_words(worst)} is at or above exit={levels.exit:g}"
    return Verdict(EXIT, "exit", why, worst)


def _pause(moment: Moment) -> Verdict | None:
    """The verdict that pauses the run, if that is due."""
    level, worst, hurried = moment.levels.pause, moment.worst, moment.hurried
    if level is None or "pause" not in moment.can:
        return None
    if worst is not None and worst.fraction >= level.enter:
        why = f"{in_words(worst)} is at or above pause={level.enter:g}"
        return Verdict(PAUSE, "pause", why, worst)
    if hurried is None:
        return None
    why = (
        f"{in_words(hurried)} grows, and meets its limit in {moment.left_s:.1f} s, "
        f"in less than two checkpoints take"
    )
    return Verdict(PAUSE, "pause", why, hurried, moment.left_s)


def _free(moment: Moment, history: History, reached: str) -> tuple[Verdict, History]:
    """Shrink or spill; after a failed allocation more than that, if it has to be."""
    state = stronger(history.state, stronger(WATCH, reached))
    history = history.entered(state, moment.now_s)._replace(calm_s=None)
    why = "an allocation failed" if moment.failed else _over(moment, reached)
    if not moment.failed:
        if cools_s := history.cools_s(moment.now_s, moment.levels.cooldown_s):
            return _stay(moment, history, f"{why}; the cooldown lasts {cools_s:.1f} s more")
        history = history.weighed()
    for action in ("spill", "shrink") if reached == SPILL else ("shrink", "spill"):
        is_on = moment.levels.of(_FREES[action]) is not None and action in moment.can
        if is_on and (moment.failed or action not in history.spent):
            verdict = Verdict(_FREES[action], action, why, moment.worst)
            return _take(moment, history, verdict)
    why = f"{why}, and nothing more can be freed"
    return _give_up(moment, history, why) if moment.failed else _stay(moment, history, why)


def _give_up(moment: Moment, history: History, why: str) -> tuple[Verdict, History]:
    """After a failed allocation that neither shrinking nor spilling can help."""
    cools = history.cools_s(moment.now_s, moment.levels.cooldown_s)
    if history.last_was("resume") and cools and "exit" in moment.can:
        why = f"{why}; it was paused for that already"
        return _take(moment, history, Verdict(EXIT, "exit", why, moment.worst))
    if moment.levels.pause is not None and "pause" in moment.can:
        return _take(moment, history, Verdict(PAUSE, "pause", why, moment.worst))
    return _stay(moment, history, why)


def _take(moment: Moment, history: History, verdict: Verdict) -> tuple[Verdict, History]:
    """A verdict that frees, pauses or ends; what was given back just before it was too much."""
    if history.last_was("grow", "pull"):
        level = moment.levels.of(_UNDOES[history.acted.action])
        if level is not None and moment.now_s - history.acted.at_s < level.dwell_s:
            history = history.spending(history.acted.action)
    state = stronger(history.state, verdict.state)
    # What failed says nothing of what the readings should fall to.
    lowers = None if moment.failed else verdict.reading
    history = history.taken(verdict.action, moment.now_s, lowers).entered(state, moment.now_s)
    return verdict._replace(state=state, reason=f"{verdict.reason}: {verdict.action}"), history


def _ease(moment: Moment, history: History) -> tuple[Verdict, History]:
    """One step back, where use has been low for long enough."""
    state, levels, now_s = history.state, moment.levels, moment.now_s
    if state == NORMAL:
        return _stay(moment, history, moment.words(state))
    level = levels.of(state) or levels.watch  # switched off since: it was on before a checkpoint
    if not moment.is_calm(state, level.leave):
        return _stay(moment, history._replace(calm_s=None), f"{moment.words(state)} is not low")
    if history.calm_s is None:
        history = history._replace(calm_s=now_s)
    lasted_s = now_s - history.calm_s
    why = f"{moment.words(state)} is low for {lasted_s:.0f} of {level.dwell_s:g} s"
    if lasted_s < level.dwell_s:
        return _stay(moment, history, why)
    steps = {PAUSE: 1, SPILL: history.spilled, SHRINK: history.shrunk}.get(state, 0)
    action = next((name for name, of in _UNDOES.items() if of == state), None)
    if not steps or action in history.spent or action not in moment.can:
        if state == PAUSE:
            return _stay(moment, history, f"{why}, but the run cannot be resumed yet")
        return _stay(moment, history.entered(_lower(moment, history), now_s), why)
    if cools_s := history.cools_s(now_s, levels.cooldown_s):
        return _stay(moment, history, f"{why}; the cooldown lasts {cools_s:.1f} s more")
    history = history.taken(action, now_s)._replace(calm_s=now_s)
    if steps == 1:
        history = history.entered(_lower(moment, history), now_s)
    return Verdict(history.state, action, f"{why}: {action}", moment.worst), history


def _lower(moment: Moment, history: History) -> str:
    """Where a state leads that is left."""
    return stronger(history.rest(history.state), moment.reached())


def _over(moment: Moment, state: str) -> str:
    if moment.decisive(state) is moment.stalls:
        return f"{moment.words(state)} is {STALLED:.0%} or more"
    level = moment.levels.of(state)
    return f"{moment.words(state)} is at or above {state.lower()}={level.enter:g}"


def _stay(moment: Moment, history: History, why: str) -> tuple[Verdict, History]:
    return Verdict(history.state, None, why, moment.decisive(history.state)), history

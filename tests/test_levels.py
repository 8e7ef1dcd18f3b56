"""Levels: the defaults, and what cannot be honoured."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.guard import levels
from kerasrl_gpu.guard.levels import Level


def test_the_defaults():
    made = levels.make()
    assert made.watch == Level(enter=0.75, leave=0.70, dwell_s=10)
    assert made.shrink == Level(enter=0.82, leave=0.70, dwell_s=60)
    assert made.spill == Level(enter=0.88, leave=0.65, dwell_s=60)
    assert made.pause == Level(enter=0.92, leave=0.80, dwell_s=30)
    assert (made.exit, made.cooldown_s, made.max_pause_s) == (0.96, 10, None)


def test_none_switches_a_state_off():
    made = levels.make(shrink=None, spill=None, pause=None, exit=None)
    assert [made.of(state) for state in ("SHRINK", "SPILL", "PAUSE")] == [None] * 3
    assert made.exit is None
    assert made.of("WATCH") == made.watch
    # what is switched off is not compared: 0.95 would be above the default pause
    assert levels.make(watch=0.95, shrink=None, spill=None, pause=None).watch.enter == 0.95


BAD = {
    "a leave level above its enter level": (
        {"watch_leave": 0.8},
        r"watch_leave=0\.8 is not below watch=0\.75.*pass a watch_leave below it",
    ),
    "a leave level at its enter level": (
        {"pause_leave": 0.92},
        r"pause_leave=0\.92 is not below pause=0\.92",
    ),
    "a weaker level above a stronger one": (
        {"shrink": 0.9},
        r"shrink=0\.9 is not below spill=0\.88.*rise in the order watch, shrink, spill, pause, exit"
        r"\. Lower shrink, or raise spill\.",
    ),
    "equal levels": ({"exit": 0.92}, r"pause=0\.92 is not below exit=0\.92"),
    "order across one that is off": (
        {"spill": None, "shrink": 0.93},
        r"shrink=0\.93 is not below pause=0\.92.*order watch, shrink, pause, exit",
    ),
    "percent": ({"pause": 92}, r"pause=92; pass a fraction of the limit, from 0 to 1"),
    "below nothing": ({"shrink_leave": -0.1}, r"shrink_leave=-0\.1; pass a fraction"),
    "no number": ({"exit": "0.96"}, r"exit='0\.96'; pass a fraction"),
    "not a number": ({"exit": math.nan}, r"exit=nan; pass a fraction"),
    "watch cannot be switched off": ({"watch": None}, r"watch=None; pass a fraction"),
    "a negative dwell": ({"spill_dwell_s": -1}, r"spill_dwell_s=-1; pass a number of seconds"),
    "a negative cooldown": ({"cooldown_s": -1}, r"cooldown_s=-1; pass a number of seconds"),
    "a negative pause": ({"max_pause_s": -1}, r"max_pause_s=-1; pass a number of seconds"),
    "no window": ({"growing_s": 0}, r"growing_s=0; pass a number of seconds above 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_honoured_is_said(name):
    arguments, match = BAD[name]
    with pytest.raises(ArgumentError, match=match):
        levels.make(**arguments)


@given(enters=st.lists(st.floats(0.1, 1.0), min_size=5, max_size=5))
def test_levels_hold_exactly_where_they_rise(enters):
    names = ("watch", "shrink", "spill", "pause", "exit")
    arguments = dict(zip(names, enters))
    leaves = {f"{name}_leave": 0.05 for name in names[:-1]}
    if sorted(set(enters)) == enters:
        made = levels.make(**arguments, **leaves)
        assert [made.watch.enter, made.shrink.enter, made.spill.enter] == enters[:3]
        assert [made.pause.enter, made.exit] == enters[3:]
    else:
        with pytest.raises(ArgumentError, match="levels rise in the order"):
            levels.make(**arguments, **leaves)


def test_the_stronger_state():
    for index, state in enumerate(levels.STATES):
        for other_index, other in enumerate(levels.STATES):
            assert levels.stronger(state, other) == levels.STATES[max(index, other_index)]

"""Verdicts on traces of readings: states, actions, and when."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu.guard import levels, trend
from kerasrl_gpu.guard.history import History
from kerasrl_gpu.guard.judging import ALL_ACTIONS, judge
from kerasrl_gpu.guard.levels import STATES
from kerasrl_gpu.probes.readings import Reading

LIMIT = 10**10
rank = STATES.index


def device(fraction):
    return Reading("device", round(fraction * LIMIT), LIMIT, "memory_stats")


def play(trace, made=None, history=None, every_s=1.0, **options):
    """Verdicts on a fraction each `every_s`; None: nothing can be read. Times start at 0."""
    history, made, verdicts = history or History(), made or levels.make(), []
    for index, fraction in enumerate(trace):
        readings = [] if fraction is None else [device(fraction)]
        verdict, history = judge(readings, made, history, index * every_s, **options)
        verdicts.append(verdict)
    return verdicts, history


def actions(verdicts, every_s=1.0):
    """(seconds, action) of each that was taken."""
    return [(i * every_s, each.action) for i, each in enumerate(verdicts) if each.action]


def states(verdicts):
    return [verdict.state for verdict in verdicts]


# Traces -------------------------------------------------------------------------------------------


def test_one_pause_for_one_time_of_need():
    # pause at 90, resume below 80: 92 pauses; 95 and 91 are the same time of need, 89 is not yet
    # low; 70 is. Naively each of 92, 95, 91 would pause.
    made = levels.make(pause=0.90, pause_leave=0.80, pause_dwell_s=0)
    verdicts, _ = play([0.50, 0.92, 0.95, 0.91, 0.89, 0.70], made, every_s=10)
    assert states(verdicts) == ["NORMAL", "PAUSE", "PAUSE", "PAUSE", "PAUSE", "WATCH"]
    assert actions(verdicts, 10) == [(10, "pause"), (50, "resume")]


def test_a_ramp_meets_the_states_one_after_the_other():
    # 50, 51, ... 91 %, then 93: one action a cooldown (10 s), but the pause does not wait for it
    verdicts, _ = play([0.50 + 0.01 * i for i in range(42)] + [0.93])
    rises = {each.state: i for i, each in reversed(list(enumerate(verdicts)))}
    assert rises == {"NORMAL": 0, "WATCH": 25, "SHRINK": 32, "SPILL": 38, "PAUSE": 42}
    assert actions(verdicts) == [(32, "shrink"), (42, "pause")]


def test_a_level_is_over_itself():
    for fraction, state in [(0.75, "WATCH"), (0.82, "SHRINK"), (0.88, "SPILL"), (0.92, "PAUSE")]:
        assert play([fraction])[0][0].state == state
        assert play([fraction - 1e-6])[0][0].state == STATES[rank(state) - 1]
    assert play([0.96])[0][0].action == "exit"


def test_a_step_goes_straight_to_its_state():
    verdicts, _ = play([0.3] * 5 + [0.93] * 5)
    assert states(verdicts) == ["NORMAL"] * 5 + ["PAUSE"] * 5
    assert actions(verdicts) == [(5, "pause")]


def test_a_saw_tooth_does_not_flap():
    # 71 .. 81 % and back: above WATCH's leave level all the time, so the state stays what it is
    tooth = [0.71, 0.74, 0.77, 0.81, 0.77, 0.74]
    verdicts, _ = play(tooth * 40)
    assert states(verdicts) == ["NORMAL"] * 2 + ["WATCH"] * 238
    assert not actions(verdicts)
    # and 69 % now and then is not 10 s in a row
    verdicts, _ = play([0.76, *[0.69] * 9, 0.705] * 5)
    assert set(states(verdicts)) == {"WATCH"}


def test_the_dwell_counts_from_the_first_low_reading():
    verdicts, _ = play([0.76] + [0.69] * 12)  # low since second 1, so left in second 11
    assert states(verdicts) == ["WATCH"] * 11 + ["NORMAL"] * 2
    # exactly at the level to leave is not below it
    verdicts, _ = play([0.76] + [0.70] * 30)
    assert set(states(verdicts)) == {"WATCH"}


def test_steps_are_taken_back_one_by_one():
    # two shrinks, 10 s apart; each frees 2 %; then low from second 12 on
    trace = [0.84, *[0.82] * 11, *[0.60] * 160]
    verdicts, history = play(trace)
    assert actions(verdicts) == [(0, "shrink"), (10, "shrink"), (72, "grow"), (132, "grow")]
    # the second step back leaves SHRINK; then WATCH takes its own 10 s from the next reading on
    assert states(verdicts)[:132] == ["SHRINK"] * 132
    assert states(verdicts)[132:144] == ["WATCH"] * 11 + ["NORMAL"]
    assert (history.shrunk, history.state) == (0, "NORMAL")


def test_what_was_spilled_comes_back_before_what_was_shrunk():
    # 0 s shrink at 83; 10 s spill at 89; low from 11 s on: pull after 60 s, and grow 60 s later
    trace = [0.83, *[0.80] * 9, 0.89, *[0.60] * 140]
    verdicts, _ = play(trace)
    assert actions(verdicts) == [(0, "shrink"), (10, "spill"), (71, "pull"), (132, "grow")]
    assert states(verdicts)[71:73] == ["SHRINK"] * 2
    # 66 % is low for SHRINK and not for SPILL: nothing comes back
    verdicts, _ = play([0.83, *[0.80] * 9, 0.89, *[0.66] * 140])
    assert actions(verdicts) == [(0, "shrink"), (10, "spill")]


def test_after_a_pause_the_rest_is_taken_back_step_by_step():
    trace = [0.89, *[0.93] * 5, *[0.60] * 200]
    verdicts, _ = play(trace)
    assert actions(verdicts) == [(0, "spill"), (1, "pause"), (36, "resume"), (97, "pull")]
    assert states(verdicts)[36] == "SPILL"


def test_a_state_is_left_for_one_that_the_use_still_asks_for():
    made = levels.make(pause_leave=0.90, pause_dwell_s=0, cooldown_s=0)
    verdicts, _ = play([0.93, 0.89], made)
    assert (verdicts[1].action, verdicts[1].state) == ("resume", "SPILL")  # not WATCH, and back up


# What freed nothing -------------------------------------------------------------------------------


def test_an_action_that_freed_nothing_gives_way_to_the_next_one():
    # 83 % all along: one shrink, then one spill, then nothing, and no pause: the run is safe
    verdicts, history = play([0.83] * 100)
    assert actions(verdicts) == [(0, "shrink"), (10, "spill")]
    assert states(verdicts) == ["SHRINK"] * 10 + ["SPILL"] * 90
    assert "nothing more can be freed" in verdicts[-1].reason
    assert set(history.spent) == {"shrink", "spill"}


@pytest.mark.parametrize("freed, again", [(0.009, "spill"), (0.010, "shrink")])
def test_one_percent_is_what_counts_as_freed(freed, again):
    trace = [
        0.84,
        0.84 - freed,
        *[0.84] * 9,
    ]  # grown since, but freed all the same
    assert actions(play(trace)[0]) == [(0, "shrink"), (10, again)]


def test_it_is_taken_again_when_its_state_was_left():
    # 0 s shrink, 10 s spill, both for nothing; low: pull and grow; then need again
    trace = [0.83] * 11 + [0.60] * 150 + [0.83]
    verdicts, _ = play(trace)
    assert [action for _, action in actions(verdicts)] == [
        "shrink", "spill", "pull", "grow", "shrink",
    ]  # fmt: skip


def test_what_cannot_be_done_is_skipped():
    assert actions(play([0.83] * 30, can=ALL_ACTIONS - {"shrink"})[0]) == [(0, "spill")]
    assert actions(play([0.89] * 30, can=ALL_ACTIONS - {"spill"})[0]) == [(0, "shrink")]
    assert not actions(play([0.89] * 30, can=ALL_ACTIONS - {"spill", "shrink"})[0])
    # below the weaker level nothing is done, whatever else is possible
    assert not actions(play([0.81] * 30, can=ALL_ACTIONS - {"shrink"})[0])


def test_a_state_that_is_off_is_not_entered():
    off = levels.make(shrink=None, spill=None)
    verdicts, _ = play([0.89] * 20, off)
    assert set(states(verdicts)) == {"WATCH"}
    assert not actions(verdicts)
    no_pause = levels.make(pause=None)
    assert play([0.93], no_pause)[0][0].state == "SPILL"
    assert play([0.97], levels.make(pause=None, exit=None))[0][0].state == "SPILL"
    assert play([0.93], can=ALL_ACTIONS - {"pause"})[0][0].state == "SPILL"


def test_what_had_to_be_taken_again_is_not_given_back_again():
    """Growing back brings the need back; without the rule that would go on for ever."""
    made, history = levels.make(), History()
    used, taken = 0.85, []
    for second in range(1000):
        verdict, history = judge([device(used)], made, history, second)
        used = {"shrink": 0.68, "grow": 0.85}.get(verdict.action, used)
        if verdict.action:
            taken.append(verdict.action)
    assert taken == ["shrink", "grow", "shrink"]
    assert history.state == "NORMAL"
    assert history.shrunk == 1


# Time to the limit --------------------------------------------------------------------------------


def test_a_pause_comes_while_there_is_time_for_a_checkpoint():
    # 1 % a second from 40 %: at second t, 60 - t seconds are left. 2 x 12 s: less than 24 s are
    # left at t = 37, at 77 % and far from the level, 92 %.
    verdicts, _ = play([0.40 + 0.01 * i for i in range(60)], checkpoint_s=12)
    [(at_s, action)] = actions(verdicts[:45])
    assert (at_s, action) == (37, "pause")
    assert verdicts[37].left_s == pytest.approx(23)
    assert "meets its limit in 23.0 s" in verdicts[37].reason


def test_nothing_is_foretold_from_too_little():
    # 40, 45, ... 55: 4 readings within 3 s; and 3 readings within 20 s
    assert not actions(play([0.40, 0.45, 0.50, 0.55], checkpoint_s=100)[0])
    assert not actions(play([0.40, 0.50, 0.60], every_s=10, checkpoint_s=100)[0])
    enough, _ = play([0.40, 0.46, 0.52, 0.58], every_s=10, checkpoint_s=100)
    assert actions(enough, 10) == [(30, "pause")]


@pytest.mark.parametrize("seed", range(5))
def test_noise_foretells_nothing(seed):
    draw = random.Random(seed)
    trace = [0.65 + draw.gauss(0, 0.02) for _ in range(2000)]
    verdicts, _ = play(trace, checkpoint_s=30)
    assert not actions(verdicts)


@pytest.mark.parametrize("at", range(2, 40))
def test_a_single_step_foretells_nothing(at):
    """What is allocated once does not go on growing; a fitted line would say so for a while."""
    verdicts, _ = play([0.10] * at + [0.60] * 40, checkpoint_s=60)
    assert not actions(verdicts)


def test_growth_of_a_ramp_is_its_slope():
    # every pair has the slope 0.02, whichever of them is picked
    assert trend.growth(tuple((t, 0.3 + 0.02 * t) for t in range(11)), 30) == pytest.approx(0.02)
    assert trend.growth(tuple((t, 0.5 - 0.02 * t) for t in range(11)), 30) == pytest.approx(-0.02)
    # 0, 1, 3, 6 at 0, 5, 10, 15 s: slopes .2 .4 .6 of neighbours, .3 .5, .4; with 4 readings the
    # score's deviation is sqrt(4 * 3 * 13 / 18) = 2.94 and 3 of it exceed the 6 pairs: the least
    assert trend.growth(((0, 0), (5, 1), (10, 3), (15, 6)), 30) == pytest.approx(0.2)


def test_only_recent_readings_are_kept():
    points = ()
    for second in range(100):
        points = trend.added(points, float(second), 0.5, growing_s=30)
    assert [points[0][0], points[-1][0], len(points)] == [69, 99, 31]
    for tenth in range(1000):
        points = trend.added(points, 100 + tenth / 10, 0.5, growing_s=30)
    assert len(points) <= 33
    slow = ()
    for hour in range(10):
        slow = trend.added(slow, 3600.0 * hour, 0.5, growing_s=30)
    assert [at_s for at_s, _ in slow] == [3600 * hour for hour in (6, 7, 8, 9)]


def test_a_run_that_would_be_paused_again_at_once_is_not_resumed():
    # paused at 93, then 30, 31, ... 60 %: low from second 1 on, but full in about a minute
    trace = [0.93] + [0.30 + 0.01 * i for i in range(31)]
    made = levels.make(pause_dwell_s=20)
    assert actions(play(trace, made)[0]) == [(0, "pause"), (21, "resume")]
    assert actions(play(trace, made, checkpoint_s=60)[0]) == [(0, "pause")]


# Exit ---------------------------------------------------------------------------------------------


def test_it_never_recovers():
    for_ever, _ = play([0.93] * 1000)
    assert actions(for_ever) == [(0, "pause")]
    ended, history = play([0.93] * 1000, levels.make(max_pause_s=600))
    assert actions(ended) == [(0, "pause"), (600, "exit")]
    assert states(ended)[600:] == ["EXIT"] * 400
    assert "paused for 600 s, max_pause_s=600" in ended[600].reason
    assert history.state == "EXIT"


def test_a_pause_ends_by_time_even_if_nothing_can_be_read():
    verdicts, _ = play([0.93] + [None] * 20, levels.make(max_pause_s=15))
    assert actions(verdicts) == [(0, "pause"), (15, "exit")]


def test_an_exit_waits_for_a_pause_to_show_what_it_freed():
    assert actions(play([0.93] + [0.97] * 20)[0]) == [(0, "pause"), (10, "exit")]
    assert actions(play([0.93] + [0.97] * 8 + [0.50] * 12)[0]) == [(0, "pause")]
    # and for nothing else
    assert actions(play([0.83] + [0.97] * 20)[0]) == [(0, "shrink"), (1, "exit")]


# Failures -----------------------------------------------------------------------------------------


def fail(times, readings=(), can=ALL_ACTIONS, history=None, made=None, start_s=0.0):
    """What is done about failures that follow each other by a tenth of a second."""
    history, taken = history or History(), []
    for index in range(times):
        verdict, history = judge(
            readings, made or levels.make(), history, start_s + index / 10, failed=True, can=can
        )
        taken.append(verdict.action)
    return taken, verdict, history


def test_a_failure_shrinks_at_once():
    taken, verdict, _ = fail(1, [device(0.40)])
    assert taken == ["shrink"]
    assert verdict.state == "SHRINK"
    assert "an allocation failed" in verdict.reason
    assert fail(1)[0] == ["shrink"]  # also where nothing can be read


def test_failures_do_not_wait_for_the_cooldown():
    """The same batch is run again: without an action the run would stand still."""
    assert fail(3, [device(0.40)])[0] == ["shrink"] * 3
    no_shrink = ALL_ACTIONS - {"shrink"}
    assert fail(2, [device(0.40)], no_shrink)[0] == ["spill"] * 2
    nothing = no_shrink - {"spill"}
    taken, verdict, _ = fail(1, [device(0.40)], nothing)
    assert (taken, verdict.state) == (["pause"], "PAUSE")
    assert "nothing more can be freed" in verdict.reason


def test_a_failure_right_after_a_pause_ends_the_run():
    nothing = ALL_ACTIONS - {"shrink", "spill"}
    _, _, history = fail(1, [device(0.40)], nothing)
    for second in range(1, 40):
        verdict, history = judge([device(0.40)], levels.make(), history, second, can=nothing)
        if verdict.action == "resume":
            break
    assert second == 31  # low since second 1
    ended, verdict, _ = fail(1, [device(0.40)], nothing, history, start_s=32)
    assert (ended, verdict.state) == (["exit"], "EXIT")
    later, _, _ = fail(1, [device(0.40)], nothing, history, start_s=45)
    assert later == ["pause"]


def test_a_failure_says_nothing_about_what_shrinking_frees():
    # at 40 % it frees little, and at 83 % it is tried again all the same
    _, _, history = fail(1, [device(0.40)])
    verdict, _ = judge([device(0.83)], levels.make(), history, 20.0)
    assert verdict.action == "shrink"


# Readings -----------------------------------------------------------------------------------------


def missing(name="device"):
    return Reading(name, None, None, "memory_stats", missing="The driver cannot be asked.")


@pytest.mark.parametrize("readings", [[], [missing()], [Reading("host", 1, None, "")]])
@pytest.mark.parametrize("state", STATES[:-1])
def test_nothing_that_can_be_read_changes_nothing(readings, state):
    before = History(state, since_s=0.0, calm_s=1.0)
    for second in range(2, 200):
        verdict, before = judge(readings, levels.make(), before, float(second))
        assert (verdict.state, verdict.action) == (state, None)
        assert "nothing could be read" in verdict.reason
    if readings and readings[0].missing:
        assert "device: The driver cannot be asked." in verdict.reason


def test_a_gap_begins_the_dwell_anew():
    verdicts, _ = play([0.76, *[0.60] * 9, None, *[0.60] * 12])  # low since second 11
    assert states(verdicts) == ["WATCH"] * 21 + ["NORMAL"] * 2


def test_the_worst_reading_decides_and_is_told():
    readings = [
        Reading("process", 6_000, 10_000, "control group v2 /memory.max"),
        Reading("device", 15 * 2**30, 16 * 2**30, "memory_stats"),
        missing("card"),
        Reading("host", 2, 10, "/proc/meminfo"),
    ]
    verdict, _ = judge(readings, levels.make(), History(), 0.0)
    assert verdict.state == "PAUSE"
    assert verdict.reading == readings[1]
    assert verdict.reason == (
        "device 15.00 GiB of 16.00 GiB, 93.8 % (memory_stats) is at or above pause=0.92: pause."
    )


def test_of_two_devices_the_fuller_one_counts_in_any_order():
    for pair in ([device(0.93), device(0.10)], [device(0.10), device(0.93)]):
        assert judge(pair, levels.make(), History(), 0.0)[0].state == "PAUSE"


CARD = Reading("card", 95, 100, "NVML", others_bytes=5)


@pytest.mark.parametrize(
    "card, beside, state",
    [
        (CARD, [Reading("device", 20, 80, "stats")], "NORMAL"),  # 5 + 20 of 100, not 95
        (CARD._replace(others_bytes=60), [Reading("device", 20, 80, "stats")], "WATCH"),  # 80
        (CARD._replace(others_bytes=75), [Reading("device", 20, 80, "stats")], "PAUSE"),  # 95
        (CARD._replace(others_bytes=None), [Reading("device", 20, 80, "stats")], "NORMAL"),
        (CARD, [], "PAUSE"),  # an allocator that keeps no figures keeps no reserve either
        (CARD._replace(others_bytes=95), [], "NORMAL"),  # a run on the CPU, beside a full card
    ],
)
def test_what_an_allocator_keeps_in_reserve_does_not_count(card, beside, state):
    assert judge([card, *beside], levels.make(), History(), 0.0)[0].state == state


def stalls(share):
    return Reading("stalls", None, None, "/proc/pressure/memory", share=share)


def test_stalls_mean_watch_and_never_more():
    made = levels.make()
    for share, state in [(0.0999, "NORMAL"), (0.10, "WATCH"), (1.0, "WATCH")]:
        verdict, _ = judge([stalls(share), device(0.5)], made, History(), 0.0)
        assert (verdict.state, verdict.action) == (state, None)
    assert verdict.reading == stalls(1.0)
    assert "stalls 100.0 % of the time (/proc/pressure/memory) is 10% or more" in verdict.reason
    history = History("WATCH")
    for second in range(100):  # use is low, stalls are not
        verdict, history = judge([stalls(0.2), device(0.1)], made, history, float(second))
    assert verdict.state == "WATCH"
    for second in range(100, 111):  # and WATCH's 10 s begin when they end
        assert verdict.state == "WATCH"
        verdict, history = judge([stalls(0.0), device(0.1)], made, history, float(second))
    assert verdict.state == "NORMAL"
    verdict, _ = judge([stalls(1.0), device(0.83)], made, History(), 0.0)
    assert (verdict.state, verdict.reading) == ("SHRINK", device(0.83))


def test_a_full_disk_is_said_and_changes_nothing():
    disk = Reading("disk", 98 * 2**30, 100 * 2**30, "the file system of /runs")
    verdict, _ = judge([disk, device(0.5)], levels.make(), History(), 0.0, checkpoint_bytes=2**31)
    assert verdict.state == "NORMAL"
    assert "disk" not in verdict.reason
    verdict, _ = judge(
        [disk, device(0.5)], levels.make(), History(), 0.0, checkpoint_bytes=2**31 + 1
    )
    assert verdict.state == "NORMAL"
    assert verdict.reason.endswith(
        "; a checkpoint takes 2.00 GiB, and the disk has 2.00 GiB left (the file system of /runs)."
    )


# History ------------------------------------------------------------------------------------------


def test_a_history_is_plain():
    _, history = play([0.83, *[0.84] * 20, 0.93])
    assert isinstance(json.dumps(history), str)


@pytest.mark.parametrize(
    "before, after",
    [
        (History("WATCH"), "WATCH"),
        (History("SHRINK", shrunk=2), "SHRINK"),
        (History("PAUSE", shrunk=2), "SHRINK"),
        (History("EXIT", shrunk=2, spilled=1), "SPILL"),
        (History("EXIT"), "WATCH"),
    ],
)
def test_a_run_that_goes_on_is_neither_paused_nor_ended(before, after):
    plain = json.loads(json.dumps(before.to_plain()))
    history = History.from_plain(plain)
    assert (history.state, history.shrunk, history.spilled) == (
        after, before.shrunk, before.spilled,
    )  # fmt: skip


# Laws ---------------------------------------------------------------------------------------------

FRACTIONS = st.none() | st.integers(0, 100).map(lambda percent: percent / 100)
TRACES = st.lists(st.tuples(FRACTIONS, st.integers(1, 40)), max_size=30)
CANS = st.sets(st.sampled_from(sorted(ALL_ACTIONS))).map(frozenset) | st.just(ALL_ACTIONS)


@given(trace=TRACES, can=CANS, checkpoint_s=st.sampled_from([0.0, 20.0]))
def test_laws(trace, can, checkpoint_s):
    fractions = [fraction for fraction, seconds in trace for _ in range(seconds)]
    made, history, acted_s = levels.make(max_pause_s=100), History(), None
    enters = [0.0, *(made.of(state).enter for state in STATES[1:-1]), made.exit]
    for second, fraction in enumerate(fractions):
        readings = [] if fraction is None else [device(fraction)]
        before = history
        verdict, history = judge(readings, made, before, second, checkpoint_s=checkpoint_s, can=can)
        assert verdict.state == history.state
        assert verdict.action in can | {None}
        rises = rank(verdict.state) > rank(before.state)
        if rises and verdict.action == "exit":
            assert before.state == "PAUSE" or fraction >= made.exit
        elif rises and verdict.left_s is None:
            # to what was reached, or by what stands in for a weaker action that is of no use
            stands_in = verdict.action == "spill"
            assert fraction >= enters[rank("SHRINK" if stands_in else verdict.state)]
        if rank(verdict.state) < rank(before.state) or verdict.action in ("grow", "pull", "resume"):
            assert fraction < made.of(before.state).leave
        if verdict.action in ("shrink", "spill", "grow", "pull", "resume"):
            assert acted_s is None or second - acted_s >= made.cooldown_s
        if verdict.action in ("grow", "pull"):
            dwell_s = made.of(before.state).dwell_s
            assert all(each is not None for each in fractions[second - int(dwell_s) : second + 1])
        if before.state in ("PAUSE", "EXIT"):
            assert verdict.action in (None, "resume", "exit")
        if before.state == "EXIT":
            assert (verdict.state, verdict.action) == ("EXIT", None)
        assert history.shrunk >= 0
        assert history.spilled >= 0
        if verdict.action:
            acted_s = second

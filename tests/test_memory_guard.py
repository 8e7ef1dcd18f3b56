"""MemoryGuard: what each action does to a run, and what it leaves as it was.

A `Script` is a probe whose n-th reading is known, and the clock: a second a reading. With every_s=0
each step has one, and so has each look in a pause. Steps are counted by `Counting`.
"""

import json
import math
import os
import resource
import signal
import warnings
from pathlib import Path

import counting
import keras
import numpy as np
import pytest
from counting import Counting, newest_state, steps_in
from keras import tree
from pretending import caches, pretended  # noqa: F401  fixtures

from kerasrl_gpu import checkpoint
from kerasrl_gpu.callbacks import (
    BatchTuner,
    Callback,
    FileLogger,
    MemoryGuard,
    MemoryTrace,
    RunCheckpoint,
)
from kerasrl_gpu.errors import ArgumentError, CheckpointError, MemoryExit
from kerasrl_gpu.guard import events
from kerasrl_gpu.keras_rl import SequentialMemory
from kerasrl_gpu.probes import Reading

BASE = 10  # steps of the checkpoint that runs go on from; the first reading belongs to step 11
END = 30
LIMIT = 100_000
AT_ONCE = {
    "watch_dwell_s": 0, "shrink_dwell_s": 0, "spill_dwell_s": 0, "pause_dwell_s": 0,
    "cooldown_s": 0, "growing_s": 1e9,
}  # fmt: skip


class Script:
    """A probe with these fractions of a limit in turn; the last one stays. An error is raised.

    Args:
        on_reading: called with the reading's number, from 1.
    """

    __name__ = "process"

    def __init__(self, *fractions, on_reading=lambda n: None):
        self.fractions, self.on_reading, self.count = fractions, on_reading, 0

    def __call__(self):
        self.count += 1
        self.on_reading(self.count)
        found = self.fractions[min(self.count, len(self.fractions)) - 1]
        if isinstance(found, Exception):
            raise found
        if not isinstance(found, float):
            return found
        return Reading("process", int(found * LIMIT), LIMIT, "a script")

    def seconds(self):
        return float(self.count)


def low(count):
    return (0.5,) * count


class Noting(Callback):
    """What each step's end shows, behind the guard."""

    def __init__(self):
        super().__init__()
        self.rows, self.tiers, self.logs, self.episodes = [], [], [], []

    def on_step_end(self, episode_step, logs=None):
        self.rows.append(self.agent.execution.rows(self.agent.batch_size))
        self.tiers.append(self.agent.memory.tiers is not None if self.agent.on_pool else False)
        self.logs.append({name: logs[name] for name in logs if name.startswith("memory_")})

    def on_episode_end(self, episode, logs=None):
        self.episodes.append(dict(logs))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """(agent, run directory): compiled once; where its first steps led."""
    agent, run = counting.new_agent(), tmp_path_factory.mktemp("base")
    agent.fit(Counting(), BASE, verbose=0)
    agent.save(run)
    return agent, run


@pytest.fixture(scope="module")
def straight(base, tmp_path_factory):
    """All that a run without a guard leads to."""
    run = tmp_path_factory.mktemp("straight")
    base[0].fit(Counting(), END, callbacks=[RunCheckpoint(run)], verbose=0, resume=base[1])
    return newest_state(run)


@pytest.fixture
def agent(base):
    """The agent, as it was at `base` whatever the test before made of it."""
    agent, run = base
    agent.memory.pull()
    agent.load(run)
    yield agent
    assert not agent.in_loop
    assert agent.trainer.on_exhausted is None
    assert not agent.trainer.careful


@pytest.fixture
def guarded(agent, base, tmp_path):
    """Goes on from `base` with a guard over these fractions; (guard, history)."""

    def run(*fractions, callbacks=(), env=None, script=None, nb_steps=END, resume=base[1], **given):
        script = script or Script(*fractions)
        guard = MemoryGuard(
            tmp_path / "run",
            **{
                "probes": [script], "clock": script.seconds, "every_s": 0, "ballast_bytes": 1000,
                "verbose": 0, "pause_pool_bytes": LIMIT, **AT_ONCE, **given,
            },
        )  # fmt: skip
        history = agent.fit(
            env or Counting(), nb_steps, callbacks=[guard, *callbacks], verbose=0, resume=resume
        )
        return guard, history

    return run


def taken(guard):
    """(step, action) of each event with one."""
    found = events.read(guard.events_path)
    return [(event.step, event.action) for event in found if event.action is not None]


def where(agent, path):
    """All that the run has led to."""
    agent.save(path)
    return newest_state(path)


def close(ours, want):
    """Fail unless as many updates led to the same weights, but for rounding."""
    ours, want = ours["trainer"], want["trainer"]
    assert ours["nb_updates"] == want["nb_updates"]
    for part in ("online", "target"):
        for one, other in zip(tree.flatten(ours[part]), tree.flatten(want[part]), strict=True):
            assert np.max(np.abs(one - other)) <= 1e-6 * np.max(np.abs(other))


# What each action does ----------------------------------------------------------------------------


def test_a_crossing_pauses_exactly_once(agent, guarded, straight, tmp_path):
    saved = {}
    guard, history = guarded(
        0.50, 0.92, 0.95, 0.91, 0.89, 0.70,
        pause=0.90, pause_leave=0.80,
        on_event=lambda event: saved.update({event.action: steps_in(tmp_path / "run")}),
    )  # fmt: skip
    # readings 1 and 2 are those of steps 11 and 12, 3 to 6 are the pause's
    assert taken(guard) == [(11, "pause"), (12, "resume")]
    assert saved == {"pause": [], "resume": [12]}  # saved before it waits
    assert history.completed
    np.testing.assert_equal(where(agent, tmp_path / "end"), straight)


def test_a_pause_lasts_its_dwell_and_time_counts_not_steps(guarded):
    # calm from reading 4 on; 30 s later is reading 34
    script = Script(0.5, 0.93, 0.85, 0.5)
    guard, _ = guarded(script=script, pause_dwell_s=30)
    assert taken(guard) == [(11, "pause"), (12, "resume")]
    assert script.count == 34 + END - 12


def test_what_is_spilled_pulled_and_paused_is_the_same_to_the_bit(
    agent, guarded, straight, tmp_path
):
    noting = Noting()
    guard, _ = guarded(
        *low(3), 0.89, 0.70, 0.70, *low(3), 0.93, 0.90, *low(9),
        callbacks=[noting], pause_pool_bytes=0,
    )  # fmt: skip
    assert taken(guard) == [(13, "spill"), (16, "pull"), (19, "pause"), (20, "resume")]
    # the fourth step spilled, and the seventh pulled; a pause leaves no trace
    assert noting.tiers == [False] * 3 + [True] * 3 + [False] * 14
    assert agent.memory.tiers is None
    np.testing.assert_equal(where(agent, tmp_path / "end"), straight)


def test_a_spill_takes_what_is_over_the_level_that_ends_it(agent, guarded):
    sizes, pool = [], agent.memory.nbytes
    part = agent.memory.layout.row_bytes * 4  # 64 rows in 16 segments
    assert pool == 16 * part
    over = 2.5 * part / LIMIT
    guarded(
        *low(2), 0.89,
        spill=0.889, spill_leave=0.89 - over, shrink=None,
        on_event=lambda event: sizes.append((event.action, agent.memory.tier_bytes["file"])),
        nb_steps=BASE + 5,
    )  # fmt: skip
    assert agent.memory.tier_bytes == {"device": 13 * part, "host": 0, "file": 3 * part}
    assert sizes[-1] == ("spill", 0)  # told before it is done


class Tuner:
    """Stands for a BatchTuner: the readings after which it was asked to tune again."""

    def __init__(self, script):
        self.script, self.asked_at = script, []

    def request(self):
        self.asked_at.append(self.script.count)


def test_parts_of_a_batch_are_the_same_logical_batch(agent, guarded, straight, tmp_path):
    script = Script(*low(2), 0.85, 0.83, 0.75, *low(9))
    noting, tuner = Noting(), Tuner(script)
    guard, _ = guarded(script=script, callbacks=[noting], tuner=tuner, spill=None)
    assert taken(guard) == [(12, "shrink"), (13, "shrink"), (15, "grow"), (16, "grow")]
    assert noting.rows == [4, 4, 2, 1, 1, 2] + [4] * 14
    assert agent.batch_size == 4
    assert tuner.asked_at == [8]  # all is given back at reading 7, and 8 finds it calm
    close(where(agent, tmp_path / "end"), straight)


def test_who_sets_another_micro_batch_meanwhile_keeps_it(agent, guarded):
    class Sets(Callback):
        def on_step_end(self, episode_step, logs=None):
            if self.agent.step == 14:
                self.agent.set_micro_batch(3)

    guarded(*low(2), 0.83, 0.75, 0.75, 0.75, *low(9), callbacks=[Sets()], spill=None)
    assert agent.execution.micro_batch == 3
    agent.set_micro_batch(None)


def test_a_run_that_has_to_end_is_saved_and_goes_on_from_there(
    agent, guarded, straight, tmp_path, capsys
):
    guard, history = guarded(*low(3), 0.97, verbose=1)
    assert not history.completed
    assert history.reason.startswith("memory: process 94.73 KiB of 97.66 KiB, 97.0 % (a script) is")
    assert taken(guard) == [(13, "exit")]
    assert steps_in(guard.path) == [14]
    assert guard.newest == checkpoint.find(guard.path)[0]
    said = capsys.readouterr().err.splitlines()
    assert "step 13: memory NORMAL -> EXIT: process" in said[0]
    assert f"goes on from {guard.newest.name}." in said[-1]
    again, history = guarded(0.5, resume=guard.newest)
    assert history.completed
    assert again.state == "NORMAL"
    np.testing.assert_equal(where(agent, tmp_path / "end"), straight)


def test_it_asks_for_a_restart_only_where_somebody_restarts(agent, guarded, monkeypatch, tmp_path):
    monkeypatch.setenv("KERASRL_GPU_RESTARTS", "0")
    with pytest.raises(MemoryExit, match=r"^memory: process .* exit\.$") as caught:
        guarded(*low(3), 0.97)
    assert caught.value.code == 75
    assert steps_in(tmp_path / "run") == [14]
    _, history = guarded(0.5)  # a run that was not told to end ends as always
    assert history.completed


def test_a_pause_that_lasts_too_long_is_the_end(agent, guarded):
    script = Script(*low(3), 0.93)
    guard, history = guarded(script=script, max_pause_s=20)
    assert taken(guard) == [(13, "pause"), (14, "exit")]
    assert "paused for 20 s, max_pause_s=20: exit" in history.reason
    assert script.count == 4 + 20
    assert steps_in(guard.path)[-1] == 14


# Stops in a pause ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["TERM", "INT", "request_stop"])
def test_a_stop_ends_a_pause_at_once(agent, guarded, straight, tmp_path, how):
    def stop(n):
        if n != 8:
            return
        if how == "request_stop":
            agent.request_stop("enough")
        else:
            os.kill(os.getpid(), signal.Signals[f"SIG{how}"])

    script = Script(*low(3), 0.93, on_reading=stop)
    saves = RunCheckpoint(tmp_path / "run", signals=("TERM",))
    pool_bytes = 0 if how == "TERM" else LIMIT
    _, history = guarded(script=script, callbacks=[saves], pause_pool_bytes=pool_bytes)
    assert script.count == 8
    reasons = {"TERM": "signal SIGTERM", "INT": "keyboard interrupt", "request_stop": "enough"}
    assert history.reason == reasons[how]
    assert steps_in(tmp_path / "run")[-1] == 14
    guarded(0.5, resume=tmp_path / "run")
    np.testing.assert_equal(where(agent, tmp_path / "end"), straight)


def test_a_stop_that_was_asked_for_before_is_not_waited_with(agent, guarded):
    class Stops(Callback):
        def on_step_end(self, episode_step, logs=None):
            if self.agent.step == 13:
                self.agent.request_stop("enough")

    script = Script(*low(3), 0.93)
    guard, history = guarded(script=script, callbacks=[Stops()])
    assert (script.count, history.reason) == (4, "enough")
    assert agent.memory.tiers is None
    assert steps_in(guard.path) == [14]


# What can go wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer, message",
    [
        (RuntimeError("no driver"), "process: The probe failed: RuntimeError: no driver."),
        (None, "process: The probe returned NoneType; a probe returns a probes.Reading."),
        (Reading("process", 5, None, "a script"), "nothing could be read"),
    ],
)
def test_a_probe_that_fails_costs_the_watching_and_not_the_run(agent, guarded, answer, message):
    # five high readings, then none: a state is not left for want of a reading
    noting = Noting()
    guard, history = guarded(*low(2), 0.80, answer, callbacks=[noting])
    assert history.completed
    assert guard.state == "WATCH"
    assert guard.readings[0].fraction is None
    assert math.isnan(noting.logs[-1]["memory_fraction"])
    guard, history = guarded(answer)
    assert history.completed
    assert guard.state == "NORMAL"


def test_without_any_probe_a_run_goes_on(guarded):
    guard, history = guarded(probes=[])
    assert history.completed
    assert guard.readings == []


def test_a_full_disk_costs_the_checkpoint_and_the_spill_and_not_the_pause(
    agent, guarded, straight, tmp_path
):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def allow(n):
        if n in (4, 8):  # the first of these pauses
            resource.setrlimit(resource.RLIMIT_FSIZE, (64 if n == 4 else soft, hard))

    script = Script(*low(3), 0.93, 0.93, 0.93, 0.93, *low(3), on_reading=allow)
    try:
        with pytest.warns(UserWarning, match="stays where it is") as caught:
            guard, history = guarded(script=script, pause_pool_bytes=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = [str(one.message) for one in caught]
    assert sum("step 14: no checkpoint was written" in text for text in said) == 1
    assert sum("the replay pool stays where it is: rows of the pool" in text for text in said) == 1
    assert sum("memory.jsonl lacks a line" in text for text in said) == 1
    assert history.completed
    assert taken(guard) == [(14, "resume")]
    np.testing.assert_equal(where(agent, tmp_path / "end"), straight)


def test_what_on_event_raises_is_a_warning(guarded):
    def fail(event):
        raise ValueError(f"no such room: {event.action}")

    with pytest.warns(UserWarning, match="on_event failed, the run goes on: .* room") as caught:
        guard, history = guarded(*low(3), 0.93, 0.5, on_event=fail)
    assert str(caught[0].message).endswith("ValueError: no such room: pause")
    assert history.completed
    assert taken(guard) == [(13, "pause"), (14, "resume")]


class Mine(SequentialMemory):
    """A memory of a user's own: rows are drawn on the host."""


@pytest.mark.parametrize("normalises", [False, True])
def test_a_model_and_a_memory_that_cannot_be_asked_for_much(tmp_path, normalises):
    layers = [keras.layers.BatchNormalization()] if normalises else []
    model = keras.Sequential([
        keras.Input((1, 2)), keras.layers.Flatten(), *layers, keras.layers.Dense(2),
    ])  # fmt: skip
    memory = None if normalises else Mine(limit=50, window_length=1)
    agent = counting.new_agent(model, memory)
    script = Script(*low(8), 0.83, 0.89, 0.93, *low(3))
    guard = MemoryGuard(
        tmp_path, probes=[script], clock=script.seconds, every_s=0, verbose=0,
        pause_pool_bytes=LIMIT, spill=None if normalises else 0.88, **AT_ONCE,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = agent.fit(Counting(), 20, callbacks=[guard], verbose=0)
    assert history.completed
    said = [str(one.message) for one in caught if "batches stay whole" in str(one.message)]
    if normalises:
        assert len(said) == 1
        assert "normalises a batch as a whole" in said[0]
        want = ["shrink", "pause", "resume"]
    else:  # no pool to spill; what is sampled on the host is split all the same
        assert not said
        want = ["shrink", "pause", "resume", "grow"]
    assert [action for _, action in taken(guard)] == want
    assert agent.execution.micro_batch is None


def test_an_update_that_finds_no_memory_has_something_freed_each_time(agent, guarded):
    answers = []

    class Fails(Callback):
        def on_step_end(self, episode_step, logs=None):
            if self.agent.step == 14:
                fails = self.agent.trainer.on_exhausted
                answers.extend(fails(MemoryError("RESOURCE_EXHAUSTED")) for _ in range(21))

    with pytest.warns(UserWarning, match="MemoryError: RESOURCE_EXHAUSTED .* told to end"):
        guard, history = guarded(0.5, callbacks=[Fails()], cooldown_s=5)
    # 4 rows to 2 and 1; the pool in sixteenths; a pause, inside of the step; then it is the end
    want = ["shrink"] * 2 + ["spill"] * 16 + ["pause", "resume", "exit"]
    assert taken(guard) == [(14, action) for action in want]
    assert answers == [True] * 19 + [False] * 2
    assert "it was paused for that already" in history.reason
    assert steps_in(guard.path) == [15]


# What outlasts a run ------------------------------------------------------------------------------


def test_a_checkpoint_of_a_run_in_need_leads_to_the_same_run(agent, guarded, straight, tmp_path):
    """Shrunk and spilled when it was written: goes on with small parts, which grow again."""
    saves = RunCheckpoint(tmp_path / "saves", every_steps=16, keep=9)
    guard, _ = guarded(*low(2), 0.83, 0.89, 0.75, callbacks=[saves], nb_steps=18)
    assert taken(guard) == [(12, "shrink"), (13, "spill")]
    assert agent.execution.micro_batch == 2
    assert agent.memory.tier_bytes["device"] == 0
    agent.memory.pull()  # as in another process
    agent.set_micro_batch(None)
    again, noting = tmp_path / "saves" / "000001-step-16", Noting()
    guard, history = guarded(0.75, 0.75, *low(9), callbacks=[noting], resume=again)
    # SPILL, whose pool is back already, leads to SHRINK, and that to NORMAL
    assert [action for _, action in taken(guard)[2:]] == ["grow"]
    assert noting.rows == [2] * 3 + [4] * 11
    assert history.completed
    close(where(agent, tmp_path / "end"), straight)


def test_two_fits_with_one_guard(agent, base, tmp_path):
    script = Script(*low(2), 0.83, 0.97, 0.5)
    guard = MemoryGuard(
        tmp_path, probes=[script], clock=script.seconds, every_s=0, verbose=0, **AT_ONCE
    )
    first = agent.fit(Counting(), 20, callbacks=[guard], verbose=0, resume=base[1])
    assert guard.state == "EXIT"
    assert first.reason.startswith("memory: ")
    second = agent.fit(Counting(), 20, callbacks=[guard], verbose=0)
    assert (second.completed, guard.state) == (True, "NORMAL")
    assert [action for _, action in taken(guard)] == ["shrink", "exit", "grow"]
    assert (agent.memory.tiers, agent.execution.micro_batch) == (None, None)


def test_a_test_is_not_guarded(agent, guarded):
    guard, _ = guarded(*low(3), 0.97)
    watch, count = Noting(), guard._probes[0].count
    agent.test(Counting(), 2, callbacks=[guard, watch], visualize=False, verbose=0)
    assert guard._probes[0].count == count
    assert watch.logs == [{}] * 10
    assert set(watch.episodes[0]) == {"episode_reward", "nb_steps"}
    assert steps_in(guard.path) == [14]  # what the run was told does not hold for the test


# Beside others ------------------------------------------------------------------------------------


def test_it_stands_in_the_logs_and_no_log_breaks(agent, guarded, tmp_path):
    noting, csv = Noting(), tmp_path / "log.csv"
    others = [noting, FileLogger(tmp_path / "log.json"), keras.callbacks.CSVLogger(csv)]
    _, history = guarded(*low(2), None, 0.80, callbacks=others)
    first, third, fourth = noting.logs[0], noting.logs[2], noting.logs[3]
    assert first == {"memory_state": "NORMAL", "memory_fraction": 0.5}
    assert third["memory_state"] == "NORMAL"
    assert math.isnan(third["memory_fraction"])
    assert fourth == {"memory_state": "WATCH", "memory_fraction": 0.8}
    # episodes of 5 steps: steps 11 to 15, and so on; two ended before the checkpoint
    assert history.history["memory_state"] == ["WATCH"] * 4
    assert history.history["memory_fraction"] == [0.8] * 4
    read = FileLogger.read(tmp_path / "log.json")
    assert (read["memory_state"], read["memory_fraction"]) == (["WATCH"] * 4, [0.8] * 4)
    assert "memory_fraction" in csv.read_text().splitlines()[0]
    assert len(csv.read_text().splitlines()) == 5


def test_all_that_watches_memory_works_together(agent, guarded, pretended, tmp_path):  # noqa: F811
    pretended.lasts = lambda rows: 4e-3 / rows  # so that it takes the whole batch
    run, tuner = tmp_path / "run", BatchTuner(seconds=0.05, cache=False, verbose=0)
    script = Script(*low(2), 0.83, 0.93, 0.93, *low(30))
    trace = MemoryTrace(run / "trace.jsonl", 0, [Script(0.5)], picture=False)
    run.mkdir()
    guard, history = guarded(
        script=script, tuner=tuner, nb_steps=60, pause_pool_bytes=0,
        callbacks=[RunCheckpoint(run, every_steps=15), trace, tuner],
    )  # fmt: skip
    assert history.completed
    actions = [action for _, action in taken(guard)]
    assert actions == ["shrink", "pause", "resume", "grow"]
    assert steps_in(run) == [45, 60]
    assert tuner.choice is not None
    samples = MemoryTrace.read(trace.path)
    assert {sample.tier_bytes["file"] for sample in samples} == {0, agent.memory.nbytes}


def test_events_stand_in_a_file_each_with_its_readings(agent, guarded):
    heard = []
    guard, _ = guarded(0.5, 0.93, 0.5, on_event=heard.append)
    assert events.read(guard.events_path) == heard
    lines = [json.loads(line) for line in Path(guard.events_path).read_text().splitlines()]
    assert [(line["before"], line["after"], line["action"]) for line in lines] == [
        ("NORMAL", "PAUSE", "pause"),
        ("PAUSE", "WATCH", "resume"),
        ("WATCH", "NORMAL", None),
    ]
    assert lines[0]["readings"] == [
        {"name": "process", "used_bytes": 93_000, "limit_bytes": LIMIT, "source": "a script"}
    ]


# Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"path": None}, r"path=None; pass the run directory, such as path='runs/1'"),
        ({"pause": 0.85}, r"spill=0.88 is not below pause=0.85; levels rise in the order watch, "),
        ({"watch_leave": 0.8}, r"watch_leave=0.8 is not below watch=0.75"),
        ({"pause": 92}, r"pause=92; pass a fraction of the limit, from 0 to 1"),
        ({"max_pause_s": -1}, r"max_pause_s=-1; pass a number of seconds, 0 or more"),
        ({"every_s": -1}, r"every_s=-1; pass seconds, 0 or more"),
        ({"every_steps": 0}, r"every_steps=0; pass a whole number of at least 1"),
        ({"keep": 0}, r"keep=0; pass a whole number of at least 1"),
        ({"ballast_bytes": -1}, r"ballast_bytes=-1; pass a whole number of at least 0"),
        ({"pause_pool_bytes": 0.5}, r"pause_pool_bytes=0.5; pass a whole number of at least 0"),
        ({"probes": "all"}, r"""probes='all'; pass "auto", or a list of callables"""),
        ({"probes": [3]}, r"""probes=\[3\]; pass "auto", or a list of callables"""),
        ({"probes": 3}, r"""probes=3; pass "auto", or a list of callables"""),
        ({"budget": "lots"}, r"budget='lots' is no budget; pass a share such as '70%'"),
        ({"on_event": 3}, r"on_event=3; pass a function of an event, or None"),
    ],
)
def test_what_cannot_be_honoured_is_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        MemoryGuard(**{"path": "run", **arguments})


def test_a_typo_is_no_level():
    with pytest.raises(TypeError, match="wach"):
        MemoryGuard("run", wach=0.5)


def test_a_probe_need_not_stand_in_a_list(guarded):
    script = Script(0.5)
    guarded(probes=script, nb_steps=BASE + 2)
    assert script.count == 2


def test_a_path_that_cannot_be_written_is_refused_before_the_first_step(agent, tmp_path):
    (tmp_path / "file").write_text("mine")
    env = Counting()
    with pytest.raises(CheckpointError, match="no checkpoint can be written into"):
        agent.fit(env, 5, callbacks=[MemoryGuard(tmp_path / "file", probes=[])], verbose=0)
    assert env.steps == 0


def test_a_budget_below_what_the_run_takes_is_refused_with_the_sum(agent, tmp_path):
    env = Counting()
    with pytest.raises(ArgumentError, match=r"budget of 1_048_576 B is less") as caught:
        agent.fit(env, 5, callbacks=[MemoryGuard(tmp_path, budget="1MiB", verbose=0)], verbose=0)
    assert env.steps == 1
    enough = str(caught.value).partition("Pass budget=")[2].partition(" ")[0]
    guard = MemoryGuard(tmp_path, budget=int(2 * int(enough)), verbose=0, ballast_bytes=0)
    assert agent.fit(Counting(), 5, callbacks=[guard], verbose=0).completed
    assert "budget" in next(one for one in guard.readings if one.name == "process").source


def test_what_this_machine_has_is_read_by_itself(agent, tmp_path):
    guard = MemoryGuard(tmp_path, watch=0.99, shrink=None, spill=None, pause=None, exit=None)
    assert agent.fit(Counting(), 5, callbacks=[guard], verbose=0).completed
    names = {"device", "card", "process", "host", "address space", "stalls", "disk"}
    assert {reading.name for reading in guard.readings} == names


def test_every_so_many_steps_and_seconds(agent, guarded):
    script = Script(0.5)
    guarded(script=script, every_s=1e9, every_steps=5, clock=lambda: 0.0, nb_steps=BASE + 12)
    assert script.count == 1 + 2  # the first, then after 5 and 10 steps
    seconds = iter(range(1000))
    script = Script(0.5)
    # two looks at the clock a step, and two more where it is time
    guarded(script=script, every_s=8, clock=lambda: next(seconds), nb_steps=BASE + 12)
    assert 1 < script.count < 5


def test_a_pause_outside_of_a_fit_is_refused(agent, tmp_path):
    with pytest.raises(ArgumentError, match="pause was called outside fit"):
        agent.pause(tmp_path, "why not", until=lambda: True)

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

import counting
import keras
import numpy as np
import pytest
from counting import Counting, newest_state, steps_in
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
                "verbose": 0, **AT_ONCE, **given,
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
    assert saved == {"pause": [], "resume": [12], None: [12]}  # saved before it waits
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
        *low(3), 0.89, 0.70, 0.70, *low(3), 0.93, 0.90, *low(9), callbacks=[noting]
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
        spill_leave=0.89 - over, shrink=None, watch=0.5, watch_leave=0.4,
        on_event=lambda event: sizes.append((event.action, agent.memory.tier_bytes["file"])),
        nb_steps=BASE + 5,
    )  # fmt: skip
    assert agent.memory.tier_bytes == {"device": 13 * part, "host": 0, "file": 3 * part}
    assert sizes[-1] == ("spill", 0)  # told before it is done


def test_parts_of_a_batch_are_the_same_logical_batch(agent, guarded, straight, tmp_path):
    noting = Noting()
    guard, _ = guarded(*low(2), 0.83, 0.84, 0.75, *low(9), callbacks=[noting], spill=None)
    assert taken(guard) == [(12, "shrink"), (13, "shrink"), (15, "grow"), (16, "grow")]
    assert noting.rows == [4, 4, 2, 1, 1, 2] + [4] * 14
    assert agent.batch_size == 4
    ours, want = where(agent, tmp_path / "end"), straight
    assert ours["trainer"]["nb_updates"] == want["trainer"]["nb_updates"]
    for part in ("online", "target"):
        for one, other in zip(
            ours["trainer"][part]["model"]["trainable"],
            want["trainer"][part]["model"]["trainable"],
            strict=True,
        ):
            assert np.max(np.abs(one - other)) <= 1e-6 * np.max(np.abs(other))


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
    assert history.reason.startswith("memory: process 97.0 kB of 100 kB, 97.0 % (a script) is at")
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
    _, history = guarded(script=script, callbacks=[saves], max_pause_s=1e6)
    assert script.count == 8
    assert history.reason == {"TERM": "signal TERM", "INT": "keyboard interrupt"}.get(how, "enough")
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
        with pytest.warns(UserWarning) as caught:
            guard, history = guarded(script=script)
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

    with pytest.warns(UserWarning, match="on_event failed, the run goes on: .* room: pause"):
        guard, history = guarded(*low(3), 0.93, 0.5, on_event=fail)
    assert history.completed
    assert taken(guard) == [(13, "pause"), (14, "resume")]


@pytest.mark.parametrize("normalises", [False, True])
def test_a_model_and_a_memory_that_cannot_be_asked_for_much(tmp_path, normalises):
    layers = [keras.layers.BatchNormalization()] if normalises else []
    model = keras.Sequential([
        keras.Input((1, 2)), keras.layers.Flatten(), *layers, keras.layers.Dense(2),
    ])  # fmt: skip
    memory = None if normalises else SequentialMemory(limit=50, window_length=1)
    agent = counting.new_agent(model, memory)
    script = Script(*low(8), 0.83, 0.89, 0.93, *low(3))
    guard = MemoryGuard(
        tmp_path, probes=[script], clock=script.seconds, every_s=0, verbose=0, **AT_ONCE
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = agent.fit(Counting(), 20, callbacks=[guard], verbose=0)
    assert history.completed
    said = [str(one.message) for one in caught if "batches stay whole" in str(one.message)]
    if normalises:
        assert len(said) == 1
        assert "normalises a batch as a whole" in said[0]
        want = ["shrink", "spill", "pause", "resume", "pull"]
    else:  # no pool to spill; what is sampled on the host is split all the same
        assert not said
        want = ["shrink", "shrink", "pause", "resume", "grow", "grow"]
    assert [action for _, action in taken(guard)] == want
    assert agent.execution.micro_batch is None


def test_an_update_that_finds_no_memory_is_run_again_when_something_was_freed(agent, guarded):
    answers = []

    class Fails(Callback):
        def on_step_end(self, episode_step, logs=None):
            if self.agent.step == 14:
                error = MemoryError("RESOURCE_EXHAUSTED")
                answers.extend(self.agent.trainer.on_exhausted(error) for _ in range(7))

    with pytest.warns(UserWarning, match="MemoryError: RESOURCE_EXHAUSTED an allocation failed"):
        guard, history = guarded(*low(10), 0.5, callbacks=[Fails()], shrink_dwell_s=3)
    # 4 rows to 2 to 1; the pool in 16 parts, a failure each
    assert [action for step, action in taken(guard) if step == 14][:3] == [
        "shrink", "shrink", "spill",
    ]  # fmt: skip
    assert answers == [True] * 7
    assert history.completed

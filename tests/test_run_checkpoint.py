"""RunCheckpoint: when it saves, what a save that fails leaves, and what signals do to a run.

Steps are counted by `Counting`, whose step n gives the reward n.
"""

import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from types import SimpleNamespace

import counting
import numpy as np
import pytest
import stopped
from counting import Counting, newest_state, steps_in

from kerasrl_gpu import checkpoint
from kerasrl_gpu.callbacks import Callback, FileLogger, RunCheckpoint, run_checkpoint
from kerasrl_gpu.errors import ArgumentError, CheckpointError

BASE = 5  # steps of the checkpoint that compared runs begin with


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """(agent, run directory): compiled once; where its first 5 steps led."""
    agent, run = counting.new_agent(), tmp_path_factory.mktemp("base")
    fit(agent, BASE)
    agent.save(run)
    return agent, run


@pytest.fixture
def agent(base):
    """The agent, as it was at `base` whatever the test before made of it."""
    agent, run = base
    agent.load(run)
    yield agent
    left_open = agent.in_loop
    if left_open:
        agent.end_run(None)
    assert not left_open


def fit(agent, nb_steps, *callbacks, env=None, **arguments):
    return agent.fit(env or Counting(), nb_steps, callbacks=list(callbacks), verbose=0, **arguments)


class At(Callback):
    """Calls {step: what} at the end of those steps."""

    def __init__(self, whats):
        super().__init__()
        self.whats = whats

    def on_step_end(self, episode_step, logs=None):
        self.whats.get(self.agent.step + 1, lambda: None)()


# When ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, nb_steps, want",
    [
        ({"every_steps": 4, "keep": 9}, 18, [4, 8, 12, 16, 18]),
        ({"every_steps": 4, "keep": 9}, 16, [4, 8, 12, 16]),  # none twice
        ({"every_steps": 4}, 18, [16, 18]),
        ({"every_steps": 4, "keep": 1}, 18, [18]),
        ({}, 7, [7]),
        ({"every_steps": 4}, 0, []),
    ],
)
def test_it_saves_every_so_many_steps_and_at_the_end(agent, tmp_path, arguments, nb_steps, want):
    fit(agent, nb_steps, RunCheckpoint(tmp_path, **arguments))
    assert steps_in(tmp_path) == want


def test_a_resumed_run_saves_at_the_same_steps(agent, tmp_path):
    fit(agent, 6, RunCheckpoint(tmp_path, every_steps=4, keep=9))
    fit(agent, 6, RunCheckpoint(tmp_path, every_steps=4, keep=9), resume=tmp_path)
    assert steps_in(tmp_path) == [4, 6]  # no step came since
    fit(agent, 13, RunCheckpoint(tmp_path, every_steps=4, keep=9), resume=tmp_path)
    assert steps_in(tmp_path) == [4, 6, 8, 12, 13]


@pytest.mark.parametrize(
    "arguments, want",
    [
        # a step a second:  3, 6 by the clock, 7 at the end
        ({"every_s": 3}, [3, 6, 7]),
        # 3 by the clock, 4 by the count, which starts the clock anew: 4 + 3, which is the end
        ({"every_s": 3, "every_steps": 4}, [3, 4, 7]),
        ({"every_s": 0.1}, [1, 2, 3, 4, 5, 6, 7]),
        ({"every_s": math.inf}, [7]),
    ],
)
def test_it_saves_every_so_many_seconds(agent, tmp_path, monkeypatch, arguments, want):
    env = Counting()
    clock = SimpleNamespace(monotonic=lambda: 1_000.0 + env.steps)
    monkeypatch.setattr(run_checkpoint, "time", clock)
    fit(agent, 7, RunCheckpoint(tmp_path, keep=9, **arguments), env=env)
    assert steps_in(tmp_path) == want


def test_an_exception_leaves_the_checkpoints_before_it(agent, tmp_path):
    def fail(n):
        if n == 8:
            raise RuntimeError("the simulator is gone")

    with pytest.raises(RuntimeError, match="the simulator is gone"):
        fit(agent, 20, RunCheckpoint(tmp_path, every_steps=3), env=Counting(fail))
    assert steps_in(tmp_path) == [3, 6]  # the environment is ahead of step 7


def test_a_test_is_no_run_to_save(agent, tmp_path):
    watch = RunCheckpoint(tmp_path, every_steps=4)
    fit(agent, 7, watch)
    before = newest_state(tmp_path)
    agent.test(Counting(), nb_episodes=2, callbacks=[watch], visualize=False, verbose=0)
    assert steps_in(tmp_path) == [4, 7]
    np.testing.assert_equal(newest_state(tmp_path), before)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"path": None}, r"path=None; pass the run directory, such as path='runs/1'"),
        ({"path": b"run"}, r"path=b'run'; pass the run directory"),
        ({"every_steps": 0}, r"every_steps=0; pass a whole number of at least 1"),
        ({"every_steps": 2.5}, r"every_steps=2.5; pass a whole number of at least 1"),
        ({"every_steps": "9"}, r"every_steps='9'; pass a whole number of at least 1"),
        ({"every_s": 0}, r"every_s=0; pass a number of seconds above 0"),
        ({"every_s": math.nan}, r"every_s=nan; pass a number of seconds above 0"),
        ({"every_s": "9"}, r"every_s='9'; pass a number of seconds above 0"),
        ({"keep": 0}, r"keep=0; pass a whole number of at least 1"),
        ({"signals": ("TERM", "KILL")}, r"signals=\('TERM', 'KILL'\); pass True, or some of \("),
        ({"signals": "TERM"}, r"signals='TERM'; pass True, or some of \('TERM', 'INT', 'USR1'\)"),
        ({"signals": signal.SIGTERM}, r"signals=.*SIGTERM.*; pass True, or some of \('TERM'"),
    ],
)
def test_what_cannot_be_honoured_is_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        RunCheckpoint(**{"path": "run", **arguments})


def test_whole_floats_and_paths_are_taken(agent, tmp_path):
    fit(agent, 5, RunCheckpoint(tmp_path / "a" / "b", every_steps=2.0, keep=9.0))
    assert steps_in(tmp_path / "a" / "b") == [2, 4, 5]


# Saves that fail ----------------------------------------------------------------------------------


def test_a_full_disk_is_waited_for(agent, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def allow(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    def look():
        names.extend(sorted(path.name for path in run.iterdir()))

    run, again, names = tmp_path / "run", tmp_path / "again", []
    limits = At({6: lambda: allow(1024), 9: look, 10: lambda: allow(soft)})
    try:
        with pytest.warns(UserWarning, match="no checkpoint was written") as caught:
            fit(agent, 12, limits, RunCheckpoint(run, every_steps=2, keep=9))
    finally:
        allow(soft)
    said = [str(one.message) for one in caught if "no checkpoint" in str(one.message)]
    assert [text.partition(":")[0] for text in said] == ["step 6", "step 8"]
    assert "File too large" in said[0]
    assert names == [".writer-lock", "000001-step-2", "000002-step-4"]  # no half of one takes room
    assert "000002-step-4 is the newest" in said[0]
    assert steps_in(run) == [2, 4, 10, 12]
    straight, older = newest_state(run), checkpoint.find(run)[2]
    assert older.name == "000002-step-4"
    fit(agent, 12, RunCheckpoint(again), resume=older)
    np.testing.assert_equal(newest_state(again), straight)


def test_a_path_that_becomes_a_file_costs_the_checkpoints_and_not_the_run(agent, tmp_path):
    path = tmp_path / "run"

    def replace():
        shutil.rmtree(path)
        path.write_text("mine")

    with pytest.warns(UserWarning, match="no checkpoint was written") as caught:
        history = fit(agent, 6, RunCheckpoint(path, every_steps=4), At({2: replace}))
    said = [str(one.message) for one in caught if "no checkpoint" in str(one.message)]
    assert [text.partition(" could not be")[0] for text in said] == [
        f"step {n}: no checkpoint was written: the checkpoint at step {n}" for n in (4, 6)
    ]
    assert history.completed
    assert path.read_text() == "mine"


class Broken(Callback):
    """Says of itself that it can be saved, and cannot."""

    def get_state(self):
        raise ValueError("no idea")

    def set_state(self, state):
        pass


def test_a_callback_that_cannot_be_saved_costs_the_checkpoints_and_not_the_run(agent, tmp_path):
    with (
        pytest.warns(
            UserWarning, match=r"from where this run ended: ValueError: no idea\. Resume from"
        ),
        pytest.warns(UserWarning, match="step 4: no checkpoint was written: ValueError: no idea"),
    ):
        history = fit(agent, 6, Broken(), RunCheckpoint(tmp_path, every_steps=4))
    assert history.completed
    assert steps_in(tmp_path) == []
    fit(agent, 3)  # the agent is not left inside a run


def test_a_log_that_cannot_be_written_does_not_leave_the_agent_inside_a_run(agent, tmp_path):
    def gone():
        shutil.rmtree(tmp_path / "logs")

    (tmp_path / "logs").mkdir()
    log = FileLogger(tmp_path / "logs" / "episodes.jsonl", interval=10)
    with (
        pytest.warns(UserWarning, match=r"cannot be written: .* wait for it: 1\. Make room"),
        pytest.raises(FileNotFoundError),
    ):
        fit(agent, 8, log, At({7: gone}))
    fit(agent, 3)


def test_nan_never_replaces_a_good_checkpoint(agent, tmp_path):
    def explode():
        agent.optimizer.learning_rate = math.inf

    with pytest.warns(UserWarning, match="no checkpoint was written") as caught:
        fit(agent, 21, RunCheckpoint(tmp_path, every_steps=2, keep=1), At({9: explode}))
    said = [str(one.message) for one in caught if "no checkpoint" in str(one.message)]
    steps = [text.partition(":")[0] for text in said]
    assert steps == [f"step {n}" for n in (10, 12, 14, 16, 18, 20, 21)]
    assert "holds NaN or infinity" in said[0]  # the loss came before the step
    assert "the last loss is nan" in said[1]
    assert all("resume from one, with a smaller learning rate" in text for text in said)
    assert steps_in(tmp_path) == [8]
    fit(agent, 14, resume=tmp_path)
    assert float(agent.optimizer.learning_rate) == pytest.approx(0.01)
    assert all(np.isfinite(weights).all() for weights in agent.model.get_weights())


def test_a_weight_that_is_nan_is_named(agent, tmp_path):
    fit(agent, 6)
    kernel, bias = agent.model.get_weights()
    agent.model.set_weights([np.full_like(kernel, np.nan), bias])
    agent.take_weights()
    with pytest.raises(CheckpointError, match=r"online/model/.* holds NaN or infinity"):
        agent.save(tmp_path)
    agent.model.set_weights([np.zeros_like(kernel), bias])
    agent.take_weights()
    agent.save(tmp_path)
    assert steps_in(tmp_path) == [6]


# Signals in this process --------------------------------------------------------------------------


def raise_at(step, name):
    return Counting(lambda n: n == step and signal.raise_signal(getattr(signal, name)))


@pytest.fixture
def own_handlers():
    """Handlers of the user's own; what they were called with."""
    called, numbers = [], (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    handlers = {number: lambda *args, n=number: called.append(n) for number in numbers}
    before = {number: signal.signal(number, handlers[number]) for number in numbers}
    yield called
    now = {number: signal.signal(number, before[number]) for number in numbers}
    assert now == handlers  # whatever a test did, they are back


def test_handlers_are_put_back(agent, tmp_path, own_handlers):
    history = fit(agent, 20, RunCheckpoint(tmp_path, signals=True), env=raise_at(7, "SIGTERM"))
    assert (history.completed, history.reason) == (False, "signal SIGTERM")
    assert steps_in(tmp_path) == [7]
    assert own_handlers == []
    signal.raise_signal(signal.SIGTERM)
    assert own_handlers == [signal.SIGTERM]


def test_handlers_are_put_back_after_an_exception(agent, tmp_path, own_handlers):
    def fail(n):
        raise RuntimeError("the simulator is gone")

    with pytest.raises(RuntimeError, match="the simulator is gone"):
        fit(agent, 20, RunCheckpoint(tmp_path, signals=True), env=Counting(fail))


def test_handlers_are_put_back_when_another_callback_leaves(agent, tmp_path, own_handlers):
    class Leaves(Callback):
        def on_train_end(self, logs=None):
            sys.exit("done")

    with pytest.raises(SystemExit, match="done"):
        fit(agent, 6, Leaves(), RunCheckpoint(tmp_path, signals=True))
    assert steps_in(tmp_path) == [6]  # it was not too late to save


def test_a_handler_that_came_during_the_run_stays(agent, tmp_path, own_handlers):
    def newer(*args):
        pass

    mine = signal.getsignal(signal.SIGUSR1)
    install = At({3: lambda: signal.signal(signal.SIGUSR1, newer)})
    fit(agent, 6, install, RunCheckpoint(tmp_path, signals=True))
    assert signal.signal(signal.SIGUSR1, mine) is newer


def test_the_second_signal_goes_to_the_handler_before(agent, tmp_path, own_handlers):
    def twice(n):
        if n == 7:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)

    history = fit(agent, 20, RunCheckpoint(tmp_path, signals=True), env=Counting(twice))
    assert history.reason == "signal SIGUSR1"
    assert own_handlers == [signal.SIGUSR1]


def test_two_of_them_take_signals_once(agent, tmp_path, own_handlers):
    watch = [RunCheckpoint(tmp_path / name, signals=True) for name in "ab"]

    def twice(n):
        if n == 7:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)

    fit(agent, 20, *watch, env=Counting(twice))
    assert own_handlers == [signal.SIGTERM]
    assert [steps_in(tmp_path / name) for name in "ab"] == [[7], [7]]


@pytest.mark.parametrize("signals", [False, None, (), ("INT", "USR1")])
def test_no_handler_is_installed_that_was_not_asked_for(agent, tmp_path, own_handlers, signals):
    watch = RunCheckpoint(tmp_path, signals=signals)
    history = fit(agent, 9, watch, env=raise_at(7, "SIGTERM"))
    assert own_handlers == [signal.SIGTERM]
    assert (history.completed, history.reason) == (True, None)
    assert steps_in(tmp_path) == [9]


def test_a_signal_during_the_last_save_is_not_lost(agent, tmp_path, monkeypatch, own_handlers):
    def late(*args, **kwargs):
        if not agent.in_loop:
            signal.raise_signal(signal.SIGTERM)
        return write(*args, **kwargs)

    write = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", late)
    history = fit(agent, 7, RunCheckpoint(tmp_path, signals=True))
    assert steps_in(tmp_path) == [7]
    assert (history.completed, history.reason) == (True, "signal SIGTERM")


def test_ctrl_c_during_the_last_save_leaves_the_ones_before(agent, tmp_path, monkeypatch):
    class Ended(Callback):
        over = False

        def on_train_end(self, logs=None):
            self.over = True

    def twice(handle):
        if not agent.in_loop:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return sync(handle)

    sync, ended = os.fsync, Ended()
    monkeypatch.setattr(os, "fsync", twice)
    with pytest.raises(KeyboardInterrupt):
        fit(agent, 7, RunCheckpoint(tmp_path, every_steps=4, signals=True), ended)
    assert ended.over
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert sorted(path.name for path in tmp_path.iterdir()) == [".writer-lock", "000001-step-4"]


def test_a_test_is_stopped_by_signals_too(agent, tmp_path, own_handlers):
    watch, env = RunCheckpoint(tmp_path, signals=True), raise_at(7, "SIGTERM")
    history = agent.test(env, nb_episodes=4, callbacks=[watch], visualize=False, verbose=0)
    assert history.reason == "signal SIGTERM"
    assert env.steps == 7
    assert steps_in(tmp_path) == []


@pytest.mark.parametrize("signals", [False, True])
def test_fit_in_a_thread_saves_and_takes_no_signals(agent, tmp_path, own_handlers, signals):
    def work():
        watch = RunCheckpoint(tmp_path, every_steps=4, signals=signals)
        histories.append(fit(agent, 6, watch))

    histories, thread = [], threading.Thread(target=work)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread.start()
        thread.join(60)
    assert histories[0].completed
    assert steps_in(tmp_path) == [4, 6]
    said = [one for one in caught if "signals do not stop this run" in str(one.message)]
    assert len(said) == signals


# Processes of their own ---------------------------------------------------------------------------


def start(*command):
    program = [sys.executable, stopped.__file__, *map(str, command)]
    return program, {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture(scope="module")
def signalled(base, tmp_path_factory):
    """(folder with a run directory a case, {case: what the process said}, its exit status)."""
    folder, said = tmp_path_factory.mktemp("signalled"), {}
    shutil.copytree(base[1], folder / "base")
    command, pipes = start("signals", folder)
    with subprocess.Popen(command, **pipes) as process:
        watchdog = threading.Timer(100, process.kill)
        watchdog.start()
        for line in process.stdout:
            message = json.loads(line)
            if "send" in message:
                process.send_signal(getattr(signal, f"SIG{message['send']}"))
            else:
                said[message["case"]] = message
        errors = process.stderr.read()
        watchdog.cancel()
    assert set(said) == {*stopped.SIGNALS, "TERM in a save", "INT INT"}, errors
    return folder, said, process.returncode


@pytest.mark.parametrize("name", stopped.SIGNALS)
def test_a_signal_ends_a_run_after_its_step(signalled, name):
    folder, said, _ = signalled
    logs = {"did_abort": False, "completed": False, "reason": f"signal SIG{name}"}
    assert said[name] == {
        "case": name,
        "completed": False,
        "reason": f"signal SIG{name}",
        "step": stopped.STOPPED_AT,
        "ended": [logs, logs],
        "handlers_are_back": True,
    }
    assert steps_in(folder / name) == [stopped.STOPPED_AT]


def test_a_run_that_a_signal_ended_goes_on_bit_for_bit(agent, signalled, tmp_path):
    folder, _, _ = signalled
    fit(agent, 40, RunCheckpoint(tmp_path / "straight"), resume=folder / "base")
    history = fit(agent, 40, RunCheckpoint(tmp_path / "again"), resume=folder / "TERM")
    assert history.resumed.absent == []
    assert history.history["episode_reward"] == [25 * e + 15 for e in range(8)]
    again, straight = newest_state(tmp_path / "again"), newest_state(tmp_path / "straight")
    np.testing.assert_equal(again, straight)


def test_a_signal_during_a_save_does_not_spoil_it(signalled):
    folder, said, _ = signalled
    assert said["TERM in a save"]["reason"] == "signal SIGTERM"
    assert said["TERM in a save"]["step"] == 12
    assert steps_in(folder / "TERM in a save") == [8, 12]
    for path in checkpoint.find(folder / "TERM in a save"):
        assert checkpoint.verify(path) == []


def test_ctrl_c_twice_stops_inside_the_step(signalled):
    folder, said, _ = signalled
    logs = {"did_abort": True, "completed": False, "reason": "keyboard interrupt"}
    assert said["INT INT"] == {
        "case": "INT INT",
        "completed": False,
        "reason": "keyboard interrupt",
        "step": 9,  # the tenth was broken off: it did not happen, and nothing is saved
        "ended": [logs, logs],
        "handlers_are_back": True,
    }
    assert steps_in(folder / "INT INT") == [8]


def test_term_twice_ends_the_process_inside_a_save(agent, signalled):
    folder, _, status = signalled
    assert status == -signal.SIGTERM
    assert steps_in(folder / "TERM TERM") == [8]
    fit(agent, 12, RunCheckpoint(folder / "TERM TERM"), resume=folder / "TERM TERM")
    assert steps_in(folder / "TERM TERM") == [8, 12]
    names = {path.name for path in (folder / "TERM TERM").iterdir()}
    assert not any(name.startswith(".writing") for name in names)


def may_mount() -> bool:
    """Whether a child may have file systems that only it sees."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], check=False)
    return tried.returncode == 0


def test_disks_that_are_full_and_read_only_for_a_while(tmp_path):
    if not may_mount():
        pytest.skip("needs the right to mount")
    command, _ = start("disk", tmp_path)
    result = subprocess.run(
        ["unshare", "-m", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    # every second step; full inside steps 6 to 9, read-only inside 14 to 17
    assert said["steps"] == [2, 4, 10, 12, 18, 20]
    why = ["No space left on device"] * 2 + ["Read-only file system"] * 2
    assert len(said["warnings"]) == 4
    for step, reason, text in zip((6, 8, 14, 16), why, said["warnings"], strict=True):
        assert text.startswith(f"step {step}: no checkpoint was written")
        assert reason in text
    assert said["resumed_from"] == "000002-step-4"
    assert said["same"]
    assert said["names"] == [".writer", *[f"{number:06}" for number in range(1, 7)]]

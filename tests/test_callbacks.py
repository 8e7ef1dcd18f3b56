"""Callbacks through the list that calls them, on an agent that only has what callbacks may use."""

import csv
import inspect
import io
import itertools
import json
import math
import sys
import weakref
from collections.abc import Sequence
from types import SimpleNamespace

import gymnasium
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kerasrl_gpu import callbacks as public
from kerasrl_gpu import keras_rl
from kerasrl_gpu.callbacks import (
    Callback,
    CallbackList,
    FileLogger,
    History,
    ModelIntervalCheckpoint,
    StepTimes,
    TestLogger,
    TrainEpisodeLogger,
    TrainIntervalLogger,
    Visualizer,
    interval_logger,
    running,
)
from kerasrl_gpu.callbacks.visualizer import choose_render
from kerasrl_gpu.errors import ArgumentError, ShapeError

NAN = math.nan


class Agent:
    """What the callbacks may rely on, and a count of the metrics that were read too early."""

    def __init__(self, metrics_names=("loss",), step=0):
        self.metrics_names = list(metrics_names)
        self.step = step
        self.training = True
        self.stop_training = False
        self.memory = SimpleNamespace(nbytes=1536, nb_entries=3, limit=10)
        self.forced = 0
        self.saved = []

    def save_weights(self, filepath, overwrite=False):
        self.saved.append((filepath, overwrite))


class Lazy(Sequence):
    """Metrics that are there only once the next step's action was computed."""

    def __init__(self, agent, values):
        self.agent, self.values, self.ready = agent, values, False

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if not self.ready:
            self.agent.forced += 1
            self.ready = True
        return self.values[index]


def step(reward=1.0, *metrics, info=None, action=0):
    return SimpleNamespace(reward=reward, metrics=metrics, info=info or {}, action=action)


def fit(agent, callbacks, episodes, first_episode=0, nb_steps=100, left_open=False, env=None):
    """Call the hooks as the loop does, for episodes given as lists of steps."""
    callbacks = CallbackList(callbacks)
    callbacks.set_model(agent)
    callbacks.set_env(env)
    callbacks.set_params({"nb_steps": nb_steps})
    callbacks.on_train_begin()
    unread = None
    for episode, steps in enumerate(episodes, first_episode):
        callbacks.on_episode_begin(episode)
        for episode_step, now in enumerate(steps):
            callbacks.on_step_begin(episode_step)
            if unread is not None:
                unread.ready = True  # the action of this step came with the last step's update
            callbacks.on_action_begin(now.action)
            callbacks.on_action_end(now.action)
            unread = Lazy(agent, now.metrics)
            logs = {
                "action": now.action,
                "observation": np.zeros(3, "float32"),
                "reward": now.reward,
                "metrics": unread,
                "episode": episode,
                "info": now.info,
            }
            callbacks.on_step_end(episode_step, logs)
            agent.step += 1
        unread.ready = True
        if left_open and episode == first_episode + len(episodes) - 1:
            break
        logs = {
            "episode_reward": sum(now.reward for now in steps),
            "nb_episode_steps": len(steps),
            "nb_steps": agent.step,
        }
        callbacks.on_episode_end(episode, logs)
    callbacks.on_train_end({"did_abort": False, "completed": True, "reason": None})


# Running sums


@pytest.mark.parametrize(
    "value, number",
    [
        (3, 3),
        (0.5, 0.5),
        (True, 1),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), 1),
        (np.array(2.5), 2.5),
        (np.array([2.5]), None),
        (np.array("text"), None),
        (np.array({}, dtype=object), None),
        ("text", None),
        (None, None),
        (1j, None),
    ],
)
def test_as_number_gives_plain_python_numbers_or_none(value, number):
    got = running.as_number(value)
    assert got == number
    assert type(got) is type(number)


def test_as_number_takes_a_number_from_the_device():
    got = running.as_number(keras.ops.convert_to_tensor(2.5))
    assert got == 2.5
    assert type(got) is float
    assert running.as_number(keras.ops.zeros((1,))) is None


def test_late_metrics_leaves_nan_out_of_the_mean():
    # loss: (1 + 4) / 2 = 2.5 over the two steps that had one; counting the NaN as 0: 5 / 3
    metrics = running.LateMetrics(["loss", "mean_q"])
    for values in ([1.0, NAN], [NAN, NAN], [4.0, NAN]):
        metrics.push(values)
    means = metrics.means()
    assert means["loss"] == 2.5
    assert math.isnan(means["mean_q"])


def test_late_metrics_reads_a_step_once_it_is_ready_and_not_before():
    agent = Agent()
    metrics = running.LateMetrics(["loss"])
    first, second = Lazy(agent, [2.0]), Lazy(agent, [4.0])
    metrics.push(first)
    assert math.isnan(metrics.means()["loss"])
    first.ready = True
    metrics.push(second)
    assert metrics.means() == {"loss": 2.0}
    assert agent.forced == 0
    metrics.flush()
    assert metrics.means() == {"loss": 3.0}


@given(st.integers(0, 40))
def test_late_metrics_keeps_few_steps_and_loses_none(nb_steps):
    agent = Agent()
    metrics = running.LateMetrics(["loss"])
    for index in range(nb_steps):
        metrics.push(Lazy(agent, [float(index)]))  # never ready by itself
    assert nb_steps - agent.forced <= running.MAX_WAITING
    metrics.flush()
    if nb_steps:
        assert metrics.means()["loss"] == pytest.approx((nb_steps - 1) / 2)


def test_late_metrics_refuses_values_that_do_not_match_the_names():
    metrics = running.LateMetrics(["loss", "mean_q"])
    with pytest.raises(ShapeError, match=r"returned 1 metrics.*has 2: \['loss', 'mean_q'\]"):
        metrics.push([1.0])


# The list


class Recorder(Callback):
    def __init__(self, name, seen):
        super().__init__()
        self.name, self.seen = name, seen

    def on_train_begin(self, logs=None):
        self.seen.append((self.name, "train_begin", logs))

    def on_train_end(self, logs=None):
        self.seen.append((self.name, "train_end", logs))

    def on_episode_begin(self, episode, logs=None):
        self.seen.append((self.name, "episode_begin", logs))

    def on_episode_end(self, episode, logs=None):
        self.seen.append((self.name, "episode_end", logs))

    def on_step_begin(self, episode_step, logs=None):
        self.seen.append((self.name, "step_begin", logs))

    def on_step_end(self, episode_step, logs=None):
        self.seen.append((self.name, "step_end", logs))

    def on_action_begin(self, action, logs=None):
        self.seen.append((self.name, "action_begin", logs))

    def on_action_end(self, action, logs=None):
        self.seen.append((self.name, "action_end", logs))


def test_every_hook_reaches_every_callback_in_order_with_one_dict():
    seen = []
    fit(Agent(), [Recorder("a", seen), Recorder("b", seen)], [[step(1.0, 0.5)]])
    hooks = ["train_begin", "episode_begin", "step_begin", "action_begin", "action_end"]
    hooks += ["step_end", "episode_end", "train_end"]
    assert [entry[:2] for entry in seen] == [(name, hook) for hook in hooks for name in "ab"]
    for (_, _, first), (_, _, second) in zip(seen[::2], seen[1::2], strict=True):
        assert first is second
        assert isinstance(first, dict)


def test_agent_environment_and_params_are_set():
    agent, env, callback, keras_callback = Agent(), object(), Callback(), keras.callbacks.Callback()
    assert callback.env is None
    fit(agent, [callback, keras_callback], [[step(1.0, 0.5)]], env=env)
    assert callback.model is callback.agent is keras_callback.model is agent
    assert callback.env is env
    assert not hasattr(keras_callback, "env")
    assert callback.params == keras_callback.params == {"nb_steps": 100}


@pytest.mark.parametrize("hook", [name for name in vars(Callback) if name.startswith("on_")])
def test_our_hooks_have_no_mutable_default(hook):
    assert inspect.signature(getattr(Callback, hook)).parameters["logs"].default is None


def test_names_come_from_the_package():
    assert {"History", "FileLogger", "CallbackList"} <= set(dir(public)) & set(public.__all__)
    assert all(hasattr(public, name) for name in public.__all__)
    with pytest.raises(AttributeError, match="Histroy"):
        _ = public.Histroy


class KerasRLStyle(keras_rl.Callback):
    pass


class KerasStyle(keras.callbacks.Callback):
    pass


def test_hooks_that_nobody_overrides_call_nothing():
    callbacks = CallbackList([Callback(), KerasRLStyle(), KerasStyle(), History()])
    calls = []

    def count(frame, event, argument):
        if event == "call":
            calls.append(frame.f_code.co_name)

    sys.setprofile(count)
    try:
        callbacks.on_step_begin(0)
        callbacks.on_action_begin(0)
        callbacks.on_action_end(0)
        callbacks.on_step_end(0)
        callbacks.on_episode_begin(0)
    finally:
        sys.setprofile(None)
    hooks = ["on_step_begin", "on_action_begin", "on_action_end", "on_step_end"]
    assert calls == [*hooks, "on_episode_begin"]


def test_keras_hooks_stand_in_for_the_ones_a_callback_lacks():
    seen = []

    def note(name):
        return lambda index, logs: seen.append((name, index))

    modern = keras.callbacks.LambdaCallback(
        on_epoch_begin=note("epoch_begin"),
        on_epoch_end=note("epoch_end"),
        on_train_batch_begin=note("batch_begin"),
        on_train_batch_end=note("batch_end"),
    )
    old = keras.callbacks.LambdaCallback(on_batch_end=note("old_batch_end"))
    mixed = keras.callbacks.LambdaCallback(
        on_step_end=note("step_end"), on_train_batch_end=note("never")
    )
    fit(Agent(), [modern, old, mixed], [[step(1.0, 0.5)] * 2], first_episode=4)
    assert seen == [
        ("epoch_begin", 4),
        ("batch_begin", 0),
        *[("batch_end", 0), ("old_batch_end", 0), ("step_end", 0)],
        ("batch_begin", 1),
        *[("batch_end", 1), ("old_batch_end", 1), ("step_end", 1)],
        ("epoch_end", 4),
    ]


def test_keras_epoch_logs_are_plain_numbers_with_the_means_of_the_metrics():
    rows = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rows.append(logs))
    agent = Agent(["loss", "mean_q"])
    warm_up, learns = step(np.float32(1), NAN, NAN), step(np.float32(2), 0.25, NAN)
    fit(agent, [callback], [[warm_up], [warm_up, learns, learns]])
    assert math.isnan(rows[0]["loss"])
    # 0.25 is the mean of the two steps that learned; the NaN of the first is no 0
    expected = {"episode_reward": 5.0, "nb_episode_steps": 3, "nb_steps": 4, "loss": 0.25}
    assert expected.items() <= rows[1].items()
    assert math.isnan(rows[1]["mean_q"])
    assert rows[1]["memory_bytes"] == 1536
    assert rows[1]["process_bytes"] > 1 << 20
    assert {type(value) for value in rows[1].values()} == {int, float}
    assert agent.forced == 0


def test_keras_batch_logs_are_numbers_and_read_no_metric_early():
    rows = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: rows.append(logs))
    agent = Agent(["loss", "mean_q"])
    steps = [step(1.0, NAN, NAN), step(2.0, 0.5, NAN), step(3.0, 0.75, NAN)]
    fit(agent, [callback], [steps])
    rewards = [{"action": 0, "reward": float(reward), "episode": 0} for reward in (1, 2, 3)]
    # the loss of the second step comes with the third one's action
    assert rows == [rewards[0], rewards[1], rewards[2] | {"loss": 0.5}]
    assert agent.forced == 0


def test_early_stopping_stops_the_agent():
    # 5 is the best; patience 2 is used up by the second episode after it
    agent = Agent()
    stopper = keras.callbacks.EarlyStopping(monitor="episode_reward", mode="max", patience=2)
    stops = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: stops.append(agent.stop_training)
    )
    fit(agent, [stopper, watch], [[step(reward, NAN)] for reward in (1.0, 5.0, 4.0, 3.0)])
    assert stops == [False, False, False, True]


def test_early_stopping_waits_for_the_first_loss():
    # Keras takes a first NaN for the best loss ever and would stop at the third episode.
    agent = Agent()
    stopper = keras.callbacks.EarlyStopping(monitor="loss", mode="min", patience=2)
    losses = [NAN, NAN, 3.0, 2.0, 1.0]
    fit(agent, [stopper], [[step(1.0, loss)] for loss in losses])
    assert not agent.stop_training
    assert stopper.best == 1.0
    fit(agent, [stopper], [[step(1.0, loss)] for loss in [1.0, 2.0, 3.0]])
    assert agent.stop_training


def test_csv_logger_writes_a_row_an_episode(tmp_path):
    path = tmp_path / "log.csv"
    fit(Agent(), [keras.callbacks.CSVLogger(path)], [[step(1.0, NAN)], [step(2.0, 0.5)] * 2])
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert [row["episode_reward"] for row in rows] == ["1.0", "4.0"]
    assert [row["nb_steps"] for row in rows] == ["1", "3"]
    assert [row["loss"] for row in rows] == ["nan", "0.5"]


def test_reduce_lr_on_plateau_lowers_the_rate_of_the_agents_optimizer():
    agent = Agent()
    agent.optimizer = keras.optimizers.Adam(0.5)
    plateau = keras.callbacks.ReduceLROnPlateau("episode_reward", 0.1, patience=1, mode="max")
    fit(agent, [plateau], [[step(reward, NAN)] for reward in (2.0, 1.0)])
    assert float(agent.optimizer.learning_rate) == pytest.approx(0.05)


def test_tensorboard_writes_its_events(tmp_path, backend):
    if backend != "tensorflow":
        pytest.skip("Keras' TensorBoard writes through TensorFlow, which JAX users need not load")
    pytest.importorskip("tensorboard")
    agent = Agent()
    agent.optimizer, agent.train_function = keras.optimizers.Adam(), None
    fit(agent, [keras.callbacks.TensorBoard(tmp_path)], [[step(1.0, 0.5)] * 3] * 2)
    assert list(tmp_path.glob("train/events*"))


def test_what_keras_callbacks_add_to_the_logs_stays_out_of_ours():
    history = History()
    adds = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(extra=1))
    rows = []
    later = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rows.append(logs))
    fit(Agent(), [adds, later, history], [[step(1.0, 0.5)]])
    assert rows[0]["extra"] == 1
    assert set(history.history) == {"episode_reward", "nb_episode_steps", "nb_steps"}


def test_what_our_callbacks_add_to_the_logs_reaches_all_that_follow():
    class Adds(Callback):
        def on_episode_end(self, episode, logs=None):
            logs["extra"] = episode

    rows, history = [], History()
    later = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: rows.append(logs))
    fit(Agent(), [Adds(), later, history], [[step(1.0, 0.5)]] * 2)
    assert [row["extra"] for row in rows] == history.history["extra"] == [0, 1]


def test_train_end_reaches_everybody_although_one_raises():
    class Breaks(Callback):
        def on_train_end(self, logs=None):
            raise RuntimeError("disk full")

    history = History()
    with pytest.raises(RuntimeError, match="disk full"):
        fit(Agent(), [Breaks(), history], [[step(1.0, 0.5)]])
    assert history.completed


def test_hooks_chosen_while_training_begins_are_called():
    class Late(Callback):
        def on_train_begin(self, logs=None):
            self.on_step_end = lambda episode_step, logs: seen.append(episode_step)

    seen = []
    fit(Agent(), [Late()], [[step(1.0, 0.5)] * 2])
    assert seen == [0, 1]


def test_append_adds_a_callback_at_the_end():
    seen = []
    callbacks = CallbackList([Recorder("a", seen)])
    callbacks.append(Recorder("b", seen))
    callbacks.on_step_end(0, {})
    assert [name for name, _, _ in seen] == ["a", "b"]


def test_what_is_no_callback_is_refused():
    with pytest.raises(ArgumentError, match=r"callbacks\[1\] is the class History.*History\("):
        CallbackList([Callback(), History])
    with pytest.raises(ArgumentError, match=r"callbacks\[0\] is 'History', which is no callback"):
        CallbackList(["History"])


# History


def test_history_has_keras_rls_lists_in_plain_numbers():
    history = History()
    fit(Agent(), [history], [[step(np.float32(1), NAN)] * 2, [step(np.float32(0.5), NAN)]])
    assert isinstance(history, keras.callbacks.History)
    assert history.history == {
        "episode_reward": [2.0, 0.5],
        "nb_episode_steps": [2, 1],
        "nb_steps": [2, 3],
    }
    assert {type(value) for value in history.history["episode_reward"]} == {float}
    assert history.epoch == [0, 1]
    assert (history.completed, history.reason) == (True, None)


def test_history_tells_why_a_run_ended():
    history = History()
    assert (history.history, history.epoch, history.completed) == ({}, [], False)
    history.on_train_end({"did_abort": False, "completed": False, "reason": "memory"})
    assert (history.completed, history.reason) == (False, "memory")
    history.on_train_end({"did_abort": True})  # keras-rl's own loop says no more than this
    assert not history.completed


# Loggers that print


def test_test_logger_prints_a_line_an_episode(capsys):
    logger = TestLogger()
    logger.set_params({"nb_episodes": 2})
    logger.on_train_begin({})
    logger.on_episode_end(1, {"episode_reward": 12.5, "nb_steps": 7})
    assert "Episode 2/2: reward: 12.500, steps: 7" in capsys.readouterr().out


def test_episode_logger_prints_keras_rls_fields(capsys):
    agent = Agent(["loss", "mean_q"], step=10)
    steps = [step(1.0, NAN, NAN, action=0), step(2.0, 0.5, NAN, action=3), step(6.0, 1.5, NAN)]
    fit(agent, [TrainEpisodeLogger()], [steps])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith(" 13/100: episode: 1, duration: ")
    assert "episode steps: 3, steps per second: " in line
    # rewards: (1 + 2 + 6) / 3 = 3; actions: (0 + 3 + 0) / 3 = 1; loss: (0.5 + 1.5) / 2 = 1
    assert "episode reward: 9.000, mean reward: 3.000 [1.000, 6.000]" in line
    assert "mean action: 1.000 [0.000, 3.000], loss: 1.000000, mean_q: --" in line
    assert agent.forced == 0


@pytest.mark.parametrize(
    "action, text",
    [
        (np.array([[1.0, -3.0], [0.5, 2.5]], "float32"), "0.250 [-3.000, 2.500]"),
        (np.int64(2), "2.000 [2.000, 2.000]"),
        ({"move": 1}, "--"),
        ((np.zeros(2), np.zeros((2, 2))), "--"),
    ],
)
def test_episode_logger_takes_any_action(capsys, action, text):
    fit(Agent(), [TrainEpisodeLogger()], [[step(1.0, NAN, action=action)]])
    assert f"mean action: {text}, loss" in capsys.readouterr().out


def test_episode_logger_prints_the_unfinished_episode(capsys):
    fit(Agent(), [TrainEpisodeLogger()], [[step(1.0, 0.5)]] * 2, left_open=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "episode: 2," in lines[2]
    assert lines[2].endswith("loss: 0.500000 (unfinished)")


def test_episode_logger_tells_open_episodes_apart(capsys):
    logger = TrainEpisodeLogger()
    logger.set_model(Agent([]))
    logger.set_params({"nb_steps": 9})
    logger.on_train_begin({})
    for episode, reward in ((0, 1.0), (1, 10.0), (0, 2.0)):  # none was announced
        logger.on_step_end(0, {"episode": episode, "reward": reward, "action": 0})
    logger.on_episode_end(1, {})
    logger.on_episode_end(0, {})
    lines = capsys.readouterr().out.splitlines()
    assert "episode: 2," in lines[1]
    assert "episode reward: 10.000" in lines[1]
    assert "episode reward: 3.000" in lines[2]


@pytest.mark.parametrize("logger", [TrainEpisodeLogger, TrainIntervalLogger, FileLogger])
def test_loggers_keep_no_step_alive(logger, tmp_path, capsys):
    callback = logger(tmp_path / "log") if logger is FileLogger else logger()
    agent = Agent()
    callback.set_model(agent)
    callback.set_params({"nb_steps": 100})
    callback.on_train_begin({})
    callback.on_episode_begin(0, {})
    observations, metrics = [], []
    for index in range(20):
        observation, values = np.zeros(3), Lazy(agent, [0.5])
        observations.append(weakref.ref(observation))
        metrics.append(weakref.ref(values))
        logs = {"action": 0, "observation": observation, "reward": 1.0, "episode": 0}
        callback.on_step_end(index, logs | {"metrics": values, "info": {"x": observation}})
        values.ready = True
        del observation, values, logs
    assert sum(reference() is not None for reference in observations) == 0
    assert sum(reference() is not None for reference in metrics) <= 2


def test_interval_logger_prints_each_interval_and_the_last_partial_one(capsys):
    agent = Agent(["loss", "mean_q"])
    # intervals of 3: steps 0..2, 3..5, 6. Losses 0..6: means 1, 4, 6; a reading one step off would
    # give 0.5 for the first. The episode that ends with step 2 belongs to the first interval.
    steps = [step(float(index), float(index), NAN) for index in range(7)]
    fit(agent, [TrainIntervalLogger(interval=3)], [steps[:3], steps[3:]], nb_steps=7)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Training begins at step 0"
    assert lines[4].startswith("Done after 0:00:00")
    assert len(lines) == 5
    assert [line.split(" steps")[0] for line in lines[1:4]] == ["3/7", "6/7", "7/7"]
    assert "1 episodes - episode_reward: 3.000 [3.000, 3.000] - reward: 1.000 - " in lines[1]
    assert "0 episodes - episode_reward: -- - reward: 4.000 - " in lines[2]
    assert "1 episodes - episode_reward: 18.000 [18.000, 18.000] - " in lines[3]
    losses = [line.split("loss: ")[1].split(" ")[0] for line in lines[1:4]]
    assert losses == ["1.000", "4.000", "6.000"]
    assert "mean_q: --" in lines[1]
    assert "memory: 1.5 KiB replay, " in lines[1]
    assert agent.forced == 0


def test_interval_logger_goes_on_where_a_run_was_resumed(capsys):
    fit(Agent(step=4), [TrainIntervalLogger(interval=3)], [[step(1.0, 0.5)] * 2], nb_steps=6)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Training begins at step 4"
    assert lines[1].startswith("6/6 steps")


def test_interval_logger_takes_infos_that_come_go_and_are_arrays(capsys):
    infos = [
        {"lives": 3, "mask": np.ones(4)},
        {"lives": NAN},
        {"lives": 4, "bonus": np.float32(2)},
        {"a": "b"},
    ]
    steps = [step(1.0, NAN, info=info) for info in infos]
    fit(Agent(), [TrainIntervalLogger(interval=2)], [steps])
    lines = capsys.readouterr().out.splitlines()
    assert "lives: 3.000 - memory" in lines[1]
    assert "lives: 4.000 - bonus: 2.000 - memory" in lines[2]
    assert "mask" not in lines[1]


def test_interval_logger_says_why_a_run_ended(capsys):
    logger = TrainIntervalLogger()
    logger.set_model(Agent())
    logger.set_params({})
    for end in ({"did_abort": False, "reason": "memory"}, {"did_abort": True}):
        logger.on_train_begin({})
        logger.on_train_end(end)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith(": memory")
    assert lines[3].endswith(": interrupted")


@pytest.mark.parametrize("step_s", [1e-5, 0.001, 0.1, 1.0])
def test_interval_logger_draws_seldom_and_looks_at_the_clock_seldom(monkeypatch, step_s):
    clock = SimpleNamespace(now_s=0.0, looks=0)

    def perf_counter():
        clock.looks += 1
        return clock.now_s

    class Clocked(Callback):
        def on_step_begin(self, episode_step, logs=None):
            clock.now_s += step_s

    draws = []
    real_draw = interval_logger.ProgressDisplay.draw
    monkeypatch.setattr(interval_logger, "time", SimpleNamespace(perf_counter=perf_counter))
    monkeypatch.setattr(
        interval_logger.ProgressDisplay,
        "draw",
        lambda self, *parts: draws.append(clock.now_s) or real_draw(self, *parts),
    )
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    logger = TrainIntervalLogger(console=console)
    nb_steps = 20_000 if step_s < 0.001 else 1_000
    fit(Agent(), [Clocked(), logger], [[step(1.0, 0.5)] * nb_steps], nb_steps=nb_steps)
    assert len(draws) <= 5 * nb_steps * step_s + 1
    assert max(np.diff([0.0, *draws]), default=0) < max(1.0, 2 * step_s) + 64 * 1e-5
    if step_s < 0.001:
        assert clock.looks < nb_steps / 30


def test_interval_logger_draws_a_bar_on_a_terminal(monkeypatch):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(interval_logger, "REFRESH_S", -1.0)  # draw at every look

    agent, logger = Agent(["q[0]"]), TrainIntervalLogger(interval=2, console=console)
    fit(agent, [logger], [[step(1.0, 0.5)] * 4], nb_steps=8)
    text = screen.getvalue()
    assert "━" in text
    assert "3/8 steps" in text
    assert "q[0]: 0.500" in text
    assert "2/8 steps" in text
    assert text.index("4/8 steps") < text.index("Done after")
    assert text.count("\x1b[?25h") == text.count("\x1b[?25l") == 1  # the cursor is back
    assert agent.forced == 0


@pytest.mark.parametrize("interval", [0, -5, 2.5, "10", None, NAN])
def test_intervals_are_whole_numbers_from_1_upwards(interval, tmp_path):
    for make in (
        lambda: TrainIntervalLogger(interval),
        lambda: ModelIntervalCheckpoint(tmp_path / "w", interval),
        lambda: FileLogger(tmp_path / "log", interval if interval is not None else 0),
    ):
        with pytest.raises(ArgumentError, match=r"Pass a whole number from 1 upwards"):
            make()
    assert TrainIntervalLogger(1e4).interval == 10_000


# FileLogger


def test_file_logger_writes_each_episode_once_and_at_once(tmp_path):
    path = tmp_path / "log.jsonl"
    sizes, texts = [], []

    class Looks(Callback):
        def on_episode_end(self, episode, logs=None):
            texts.append(path.read_text())
            sizes.append(len(texts[-1]))

    fit(Agent(), [FileLogger(path), Looks()], [[step(1.0, 0.5)] * 2] * 4)
    assert [text.count("\n") for text in texts] == [1, 2, 3, 4]
    for earlier, later in itertools.pairwise(texts):
        assert later.startswith(earlier)
    assert path.read_text() == texts[-1]


def test_file_logger_lines_and_columns(tmp_path):
    path = tmp_path / "log.jsonl"
    agent = Agent(["loss", "mean_q"])
    names = list(agent.metrics_names)
    episodes = [[step(np.float32(1), NAN, NAN)], [step(2.0, 0.5, math.inf), step(3.0, 1.5, 1.0)]]
    fit(agent, [FileLogger(path)], episodes)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["loss"] is None  # strict JSON has no NaN
    assert lines[1]["mean_q"] == "inf"
    data = FileLogger.read(path)
    assert data["episode"] == [0, 1]
    assert data["episode_reward"] == [1.0, 5.0]
    assert data["nb_episode_steps"] == [1, 2]
    assert data["nb_steps"] == [1, 3]
    assert data["completed"] == [True, True]
    assert all(duration >= 0 for duration in data["duration"])
    assert math.isnan(data["loss"][0])
    assert data["loss"][1] == 1.0
    assert data["mean_q"][1] == math.inf
    assert set(data) == {*names, "episode_reward", "nb_episode_steps", "nb_steps", "episode"} | {
        "duration",
        "completed",
    }
    assert agent.metrics_names == names
    assert agent.forced == 0


def test_file_logger_writes_the_unfinished_episode(tmp_path):
    path = tmp_path / "log.jsonl"
    fit(Agent(), [FileLogger(path)], [[step(1.0, 0.5)], [step(2.0, 0.75)] * 3], left_open=True)
    data = FileLogger.read(path)
    assert data["completed"] == [True, False]
    assert data["episode_reward"] == [1.0, 6.0]
    assert data["nb_episode_steps"] == [1, 3]
    assert data["nb_steps"] == [1, 4]
    assert data["loss"] == [0.5, 0.75]


def test_file_logger_continues_the_file_of_a_resumed_run(tmp_path):
    path = tmp_path / "log.jsonl"
    fit(Agent(), [FileLogger(path)], [[step(1.0, 0.5)]] * 3 + [[step(9.0, 0.5)]])
    # Back to the checkpoint at step 2: what was logged after it has not happened.
    fit(Agent(step=2), [FileLogger(path)], [[step(5.0, 0.5)]], first_episode=2)
    assert FileLogger.read(path)["episode_reward"] == [1.0, 1.0, 5.0]
    assert len(path.read_text().splitlines()) == 5
    # A run that starts from 0 is another run.
    fit(Agent(), [FileLogger(path)], [[step(7.0, 0.5)]])
    assert FileLogger.read(path)["episode_reward"] == [7.0]


def test_file_logger_completes_an_episode_that_was_left_open(tmp_path):
    path, agent = tmp_path / "log.jsonl", Agent()
    fit(agent, [FileLogger(path)], [[step(1.0, 0.5)] * 2], left_open=True)
    assert FileLogger.read(path)["completed"] == [False]
    fit(agent, [FileLogger(path)], [[step(1.0, 0.5)] * 3])
    data = FileLogger.read(path)
    assert (data["completed"], data["nb_steps"]) == ([True], [5])


def test_file_logger_reads_past_a_line_that_broke_off(tmp_path):
    path = tmp_path / "log.jsonl"
    fit(Agent(), [FileLogger(path)], [[step(1.0, 0.5)]] * 2)
    path.write_text(path.read_text()[:-5])
    fit(Agent(step=1), [FileLogger(path)], [[step(3.0, 0.5)]], first_episode=1)
    assert FileLogger.read(path)["episode_reward"] == [1.0, 3.0]


def test_file_logger_takes_other_keys_in_every_episode(tmp_path):
    class Adds(Callback):
        def on_episode_end(self, episode, logs=None):
            extra = {"win": True} if episode else {"map": "cave", "grid": np.ones(3)}
            logs.update(extra)

    path = tmp_path / "log.jsonl"
    fit(Agent(), [Adds(), FileLogger(path)], [[step(1.0, 0.5)]] * 2)
    data = FileLogger.read(path)
    assert data["map"][0] == "cave"
    assert math.isnan(data["map"][1])
    assert data["win"][1] is True
    assert "grid" not in data


def test_file_logger_writes_every_so_many_episodes(tmp_path):
    path = tmp_path / "log.jsonl"
    counts = []

    class Looks(Callback):
        def on_episode_end(self, episode, logs=None):
            counts.append(path.read_text().count("\n"))

    fit(Agent(), [FileLogger(path, interval=3), Looks()], [[step(1.0, 0.5)]] * 4)
    assert counts == [0, 0, 3, 3]
    assert len(FileLogger.read(path)["episode"]) == 4


def test_file_logger_works_in_a_test_run(tmp_path):
    path = tmp_path / "log.jsonl"
    callbacks = CallbackList([FileLogger(path)])
    callbacks.set_model(Agent())
    callbacks.set_params({"nb_episodes": 1})
    callbacks.on_train_begin()
    callbacks.on_episode_begin(0)
    callbacks.on_step_end(0, {"reward": 2.0, "episode": 0, "action": 0, "info": {}})
    callbacks.on_episode_end(0, {"episode_reward": 2.0, "nb_steps": 1})
    callbacks.on_train_end()
    data = FileLogger.read(path)
    assert data["episode_reward"] == [2.0]
    assert "loss" not in data


def test_file_logger_reads_keras_rls_own_file(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"loss": [NAN, 0.5], "nb_steps": [9, 5], "episode": [1, 0]}))
    data = FileLogger.read(path)
    assert (data["episode"], data["nb_steps"], data["loss"][0]) == ([0, 1], [5, 9], 0.5)


def test_file_logger_refuses_a_missing_folder_when_training_begins(tmp_path):
    with pytest.raises(ArgumentError, match=r"does not exist.*os\.makedirs"):
        fit(Agent(), [FileLogger(tmp_path / "no" / "log.jsonl")], [])
    with pytest.raises(ArgumentError, match=r"is a folder"):
        fit(Agent(), [FileLogger(tmp_path)], [])


# ModelIntervalCheckpoint


def test_checkpoint_saves_every_interval(tmp_path, capsys):
    agent = Agent()
    pattern = tmp_path / "w_{step:03d}_{episode}_{reward:.1f}.weights.h5"
    checkpoint = ModelIntervalCheckpoint(pattern, interval=2, verbose=1)
    fit(agent, [checkpoint], [[step(0.5, NAN)] * 3, [step(1.25, NAN)] * 2])
    assert agent.saved == [
        (str(tmp_path / "w_002_0_0.5.weights.h5"), True),
        (str(tmp_path / "w_004_1_1.2.weights.h5"), True),
    ]
    assert "Step 2: weights go to " in capsys.readouterr().out
    assert agent.forced == 0


def test_checkpoint_counts_on_in_a_resumed_run(tmp_path):
    agent = Agent(step=3)
    fit(agent, [ModelIntervalCheckpoint(tmp_path / "w_{step}", 2)], [[step(1.0, NAN)] * 3])
    assert [path[-3:] for path, _ in agent.saved] == ["w_4", "w_6"]


def test_checkpoint_takes_one_name_for_all_saves_and_a_relative_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = Agent()
    fit(agent, [ModelIntervalCheckpoint("weights.h5f", 1)], [[step(1.0, NAN)] * 2])
    assert agent.saved == [("weights.h5f", True)] * 2


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "w_{epoch}.weights.h5",
            r"\{epoch\} is not known.*\{step\}, \{episode\}.*Pass for example",
        ),
        ("w_{loss}.weights.h5", r"\{loss\} is not known"),
        ("w_{}.weights.h5", r"\{\} is not known"),
        ("w_{0}.weights.h5", r"\{0\} is not known"),
        ("w_{step.weights.h5", r"cannot be filled in"),
        ("w_{step:%Y}.weights.h5", r"cannot be filled in"),
        ("w_{reward:d}.weights.h5", r"cannot be filled in"),
        ("{step}/w.weights.h5", r"another one for each file"),
        ("no/w_{step}.weights.h5", r"does not exist.*os\.makedirs"),
        ("", r"is a folder"),
    ],
)
def test_checkpoint_refuses_a_bad_name_when_training_begins(tmp_path, name, message):
    agent = Agent()
    checkpoint = ModelIntervalCheckpoint(f"{tmp_path}/{name}", interval=1)
    with pytest.raises(ArgumentError, match=message):
        fit(agent, [checkpoint], [[step(1.0, NAN)]])
    assert agent.step == 0


# Visualizer


class OldEnv(keras_rl.Env):
    def __init__(self):
        self.modes = []

    def render(self, mode="ascii", close=False):
        self.modes.append(mode)

    def close(self):
        pass


class OldWrapper:
    def __init__(self, env):
        self.env = env

    def render(self, *args, **kwargs):
        return self.env.render(*args, **kwargs)


class Plain:
    """An environment that takes no mode and says nothing about one."""

    def __init__(self):
        self.count = 0

    def render(self):
        self.count += 1


def test_visualizer_renders_old_environments_with_a_mode():
    env = OldEnv()
    fit(Agent(), [Visualizer()], [[step(1.0, NAN)] * 3], env=env)
    assert env.modes == ["human"] * 3
    choose_render(OldWrapper(env))()
    assert env.modes[3:] == ["human"]


def test_visualizer_renders_what_takes_no_mode():
    env = Plain()
    fit(Agent(), [Visualizer()], [[step(1.0, NAN)] * 3], env=env)
    assert env.count == 3


def test_visualizer_renders_a_gymnasium_environment_as_it_was_made(recwarn):
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env.reset(seed=0)
    draw = choose_render(env)
    assert draw().ndim == 3
    env.close()
    assert not [w for w in recwarn if "render_mode" in str(w.message)]


def test_visualizer_warns_once_where_nothing_can_be_shown():
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="nothing is shown") as caught:
        fit(Agent(), [Visualizer()], [[step(1.0, NAN)] * 3] * 2, env=env)
    messages = [str(w.message) for w in caught if "render_mode" in str(w.message)]
    assert len(messages) == 1
    assert "gymnasium.make('CartPole-v1', render_mode=\"human\")" in messages[0]
    env.close()


# StepTimes ----------------------------------------------------------------------------------------


def test_step_times_split_a_step_in_four(capsys):
    # the clock shows 0 at the beginning, then at each hook: 1 before the step, 2 for the network,
    # 3 for the environment, 4 for the memory, and 1 more before the next step
    ticks = iter(np.cumsum([0, 1, 2, 3, 4, 1, 2, 3, 4]) / 1e6)
    times = StepTimes(clock=lambda: next(ticks))
    fit(Agent(), [times], [[step()] * 2])
    assert times.steps == 2
    spent = {part: round(1e6 * seconds) for part, seconds in times.seconds.items()}
    assert spent == {"network": 4, "environment": 6, "update": 8, "callbacks": 2}
    assert capsys.readouterr().out == (
        "a step takes 10 us: network 2 us (20%), environment 3 us (30%), update 4 us (40%), "
        "callbacks 1 us (10%)\n"
    )


def test_step_times_say_nothing_of_no_steps_and_when_told_so(capsys):
    for times in (StepTimes(), StepTimes(verbose=0)):
        fit(Agent(), [times], [[step()]] if not times.verbose else [])
    assert not capsys.readouterr().out


def test_a_log_that_cannot_be_written_for_a_while_loses_no_line(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()

    class Away(Callback):
        def on_episode_begin(self, episode, logs=None):
            if episode == 1:
                folder.rename(tmp_path / "away")
            if episode == 3:
                (tmp_path / "away").rename(folder)

    log = FileLogger(folder / "log.jsonl")
    with pytest.warns(UserWarning, match=r"log.jsonl cannot be written: .*Make room"):
        fit(Agent(), [log, Away()], [[step(1.0, 0.5)]] * 5)
    assert FileLogger.read(folder / "log.jsonl")["episode"] == [0, 1, 2, 3, 4]

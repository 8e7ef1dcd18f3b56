"""What callbacks hold of a run, and the files they write, through a checkpoint.

The steps of `Counting` give 1, 2, 3, ...: episode e, of 5 steps, has the reward 25 e + 15.
"""

import collections
import contextlib
import csv
import io
import json
import math
import os
import re
from pathlib import Path
from types import SimpleNamespace

import counting
import keras
import numpy as np
import pytest
from counting import Counting, steps_in
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu import checkpoint
from kerasrl_gpu.callbacks import Callback, FileLogger, RunCheckpoint, base, log_files, states
from kerasrl_gpu.callbacks.running import LateMetrics
from kerasrl_gpu.keras_rl import rl_callbacks

BASE, SAVED, BROKEN, END = 5, 12, 17, 23  # steps; SAVED is inside episode 2, BROKEN in 3
OUR_OWN_TIME = ("duration", "memory_bytes", "process_bytes")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(agent, run directory of its first 5 steps)."""
    agent, run = counting.new_agent(), tmp_path_factory.mktemp("base")
    agent.fit(Counting(), BASE, verbose=0)
    agent.save(run)
    return agent, run


class Plain(Callback):
    """A user's own, that knows nothing of checkpoints."""

    def __init__(self, every):
        super().__init__()
        self.every, self.count, self.total, self.kept, self.best = every, 0, 0.0, [], {}
        self.opened = collections.Counter()  # no plain data: starts anew

    def on_step_end(self, episode_step, logs=None):
        self.count += 1
        self.opened[logs["episode"]] += 1
        if self.count % self.every == 0:
            self.total += logs["reward"]
            self.kept.append(np.asarray(logs["observation"]))
            self.best[logs["episode"]] = logs["reward"]


class Own(Callback):
    """A user's own, that says what it holds."""

    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def on_episode_end(self, episode, logs=None):
        self.seen["episodes"] += 1

    def get_state(self):
        return {"episodes": self.seen["episodes"]}

    def set_state(self, state):
        self.seen.update(state)


def observers(folder):
    """New objects of every kind that holds something."""
    folder.mkdir(exist_ok=True)
    episode_reward = {"monitor": "episode_reward", "mode": "min"}  # the first one stays the best
    return SimpleNamespace(
        log=FileLogger(folder / "episodes.jsonl"),
        csv=keras.callbacks.CSVLogger(folder / "episodes.csv"),
        stopping=keras.callbacks.EarlyStopping(patience=50, **episode_reward),
        plateau=keras.callbacks.ReduceLROnPlateau(patience=2, factor=0.5, **episode_reward),
        best=keras.callbacks.ModelCheckpoint(
            str(folder / "best-{epoch}.weights.h5"), save_weights_only=True,
            save_best_only=True, monitor="episode_reward", mode="min",
        ),
        every_second=Plain(2),
        own=Own(),
        every_third=Plain(3),
    )  # fmt: skip


def run(compiled, nb_steps, callbacks, resume=None, env=None, **arguments):
    """(history, what was printed) of a run from `compiled`'s checkpoint or another."""
    agent, first = compiled
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        history = agent.fit(
            env or Counting(), nb_steps, callbacks=callbacks, resume=resume or first, **arguments
        )
    return history, printed.getvalue()


@pytest.fixture(scope="module")
def two(compiled, tmp_path_factory):
    """One run that was not broken, and one that was, whose logs were ahead of its checkpoint."""
    folder = tmp_path_factory.mktemp("two")
    agent = compiled[0]
    whole, broken, again = (observers(folder / name) for name in ("whole", "broken", "broken"))
    history, printed = run(compiled, END, [*vars(whole).values()], verbose=2)
    rate = float(agent.optimizer.learning_rate)
    saves = RunCheckpoint(folder / "run", every_steps=SAVED)
    run(compiled, BROKEN, [*vars(broken).values(), saves], verbose=2)
    assert steps_in(folder / "run") == [SAVED, BROKEN]
    saved = checkpoint.find(folder / "run")[1]
    later, printed_later = run(compiled, END, [*vars(again).values()], saved, verbose=2)
    return SimpleNamespace(
        folder=folder,
        whole=SimpleNamespace(**vars(whole), history=history, printed=printed, rate=rate),
        again=SimpleNamespace(
            **vars(again),
            history=later,
            printed=printed_later,
            rate=float(agent.optimizer.learning_rate),
        ),
    )


def test_the_history_is_that_of_one_run(two):
    # episodes 0 to 3 end at steps 5, 10, 15, 20
    assert two.again.history.epoch == [0, 1, 2, 3]
    assert two.again.history.history == {
        "episode_reward": [15.0, 40.0, 65.0, 90.0],
        "nb_episode_steps": [5, 5, 5, 5],
        "nb_steps": [5, 10, 15, 20],
    }
    assert two.again.history.history == two.whole.history.history


def without_time(data):
    return {name: values for name, values in data.items() if name not in OUR_OWN_TIME}


def test_the_file_logger_tells_one_run(two):
    read = [FileLogger.read(two.folder / name / "episodes.jsonl") for name in ("whole", "broken")]
    whole, again = map(without_time, read)
    # the run begins with episode 1; of episode 4 there are 21 + 22 + 23
    assert again["episode_reward"] == [40.0, 65.0, 90.0, 66.0]
    assert again["completed"] == [True, True, True, False]
    np.testing.assert_equal(again, whole)
    lines = (two.folder / "broken" / "episodes.jsonl").read_text().splitlines()
    assert len(lines) == 4  # nothing is in the file twice


def rows_of(path):
    with open(path, newline="") as file:
        return [without_time(row) for row in csv.DictReader(file)]


def test_the_csv_logger_goes_on_in_its_file(two):
    whole, again = (rows_of(two.folder / name / "episodes.csv") for name in ("whole", "broken"))
    assert [row["epoch"] for row in again] == ["1", "2", "3"]
    assert [row["episode_reward"] for row in again] == ["40.0", "65.0", "90.0"]
    assert again == whole  # the losses, too: means over an episode that was open at the checkpoint


def printed_lines(text):
    """The episodes' lines, without what is a matter of time."""
    lines = [line for line in text.splitlines() if "episode reward" in line]
    return [re.sub(r"duration: \S+, |steps per second: \S+, ", "", line) for line in lines]


def test_the_episode_logger_prints_what_one_run_prints(two):
    whole, again = printed_lines(two.whole.printed), printed_lines(two.again.printed)
    assert "episode reward: 65.000, mean reward: 13.000 [11.000, 15.000]" in again[0]
    assert "(unfinished)" in again[-1]
    assert again == whole[1:]  # episode 1 was over before the checkpoint


def test_keras_counters_go_on(two):
    # the best is episode 1; 2 and 3 are worse
    for seen in (two.whole, two.again):
        assert (seen.stopping.best, seen.stopping.wait) == (40.0, 2)
        assert (seen.best.best, sorted(os.listdir(two.folder / "whole"))) == (
            40.0,
            ["best-2.weights.h5", "episodes.csv", "episodes.jsonl"],
        )
        # patience 2 ran out in episode 3: half of 0.01, and the count begins anew
        assert (seen.plateau.best, seen.plateau.wait) == (40.0, 0)
        assert seen.rate == pytest.approx(0.005)
    assert sorted(os.listdir(two.folder / "broken")) == sorted(os.listdir(two.folder / "whole"))


def test_attributes_of_a_users_own_callbacks_go_on(two):
    # steps 6 to 23: the second, fourth ... are 7, 9, ... 23; the third, sixth ... 8, 11, ... 23
    for seen in (two.whole, two.again):
        assert (seen.every_second.count, seen.every_second.total) == (18, sum(range(7, 24, 2)))
        assert (seen.every_third.count, seen.every_third.total) == (18, sum(range(8, 24, 3)))
        assert seen.every_second.best == {1: 9.0, 2: 15.0, 3: 19.0, 4: 23.0}
    for name in ("every_second", "every_third"):
        kept, wanted = getattr(two.again, name).kept, getattr(two.whole, name).kept
        np.testing.assert_array_equal(kept, wanted)


def test_what_is_no_plain_data_starts_anew(two):
    assert two.whole.every_second.opened == {1: 5, 2: 5, 3: 5, 4: 3}
    assert two.again.every_second.opened == {2: 3, 3: 5, 4: 3}


def test_a_state_of_its_own_is_taken(two):
    assert two.whole.own.seen == two.again.own.seen == {"episodes": 3}


def test_a_resume_in_the_same_process_cuts_the_logs_too(compiled, tmp_path):
    log, counts, env = FileLogger(tmp_path / "log.jsonl"), Plain(2), Counting()
    run(compiled, BROKEN, [log, counts], env=env, verbose=0)
    assert FileLogger.read(log.filepath)["completed"] == [True, True, False]
    run(compiled, END, [log, counts], True, env, verbose=0)
    assert FileLogger.read(log.filepath)["episode_reward"] == [40.0, 65.0, 90.0, 66.0]
    assert Path(log.filepath).read_text().count("\n") == 4
    assert counts.count == END - BASE


def test_callbacks_that_run_twice_are_saved_whole(compiled, tmp_path):
    """What one resume brought back, and this run did not change, is there for the next."""

    class Episodes(Callback):
        count = 0

        def on_episode_end(self, episode, logs=None):
            self.count = self.count + 1

    path, used, new = tmp_path / "run", Episodes(), Episodes()
    run(compiled, SAVED, [used, RunCheckpoint(path)], verbose=0)
    run(compiled, SAVED + 1, [used, RunCheckpoint(path)], path, verbose=0)
    run(compiled, END, [new], path, verbose=0)
    assert new.count == 3  # episodes 1, 2 and 3


# Others than in the checkpoint --------------------------------------------------------------------


def test_arguments_given_at_the_resume_hold(compiled, tmp_path):
    patient = {"monitor": "episode_reward", "mode": "min"}
    first = keras.callbacks.EarlyStopping(patience=50, **patient)
    run(compiled, 22, [first, RunCheckpoint(tmp_path)], verbose=0)
    assert first.wait == 2  # episodes 2 and 3 are worse than 1
    second = keras.callbacks.EarlyStopping(patience=3, **patient)
    history, _ = run(compiled, 60, [second], tmp_path, verbose=0)
    assert compiled[0].step == 25  # episode 4 is the third
    assert not history.completed
    assert second.patience == 3
    sparse = Plain(every=4)
    run(compiled, 9, [Plain(every=2), RunCheckpoint(tmp_path / "plain")], verbose=0)
    run(compiled, 14, [sparse], tmp_path / "plain", verbose=0)
    # 7 and 9 by the first, 6 + 7 = 13 by the second, whose count went on from 4
    assert (sparse.every, sparse.count, sparse.total) == (4, 9, 7.0 + 9.0 + 13.0)


def test_callbacks_may_be_fewer_or_more(compiled, tmp_path):
    path, log = tmp_path / "run", tmp_path / "log.jsonl"
    first = [Plain(1), FileLogger(log), keras.callbacks.CSVLogger(tmp_path / "a.csv")]
    run(compiled, SAVED, [*first, RunCheckpoint(path)], verbose=0)
    csv_file, content = (tmp_path / "a.csv").read_bytes(), log.read_bytes()
    one, other, own = Plain(1), Plain(1), Own()
    history, _ = run(compiled, END, [own, one, other], path, verbose=0)
    assert history.completed
    assert (one.count, other.count) == (END - BASE, END - SAVED)  # the second one is new
    assert own.seen == {"episodes": 2}
    assert (tmp_path / "a.csv").read_bytes() == csv_file  # nobody here writes into it
    assert log.read_bytes() == content


def test_metrics_may_be_others():
    """With another policy, or compiled with other metrics, an episode's means have other names."""
    before = LateMetrics(["loss", "mae", "mean_q"])
    for values in ([1.0, 10.0, 100.0], [3.0, 30.0, 300.0]):
        before.push(values)
    after = LateMetrics(["mean_q", "mean_eps", "loss"])
    after.set_state(before.get_state())
    after.push([800.0, 0.5, 5.0])
    after.flush()
    # loss (1 + 3 + 5) / 3, mean_q (100 + 300 + 800) / 3; mean_eps comes from the last step alone
    assert after.means() == {"mean_q": 400.0, "mean_eps": 0.5, "loss": 3.0}


@given(
    st.lists(
        st.tuples(st.floats(-1e6, 1e6), st.one_of(st.just(math.nan), st.floats(-1e6, 1e6))),
        max_size=12,
    ),
    st.integers(0, 12),
)
def test_means_are_those_of_one_episode_wherever_it_was_cut(values, cut):
    whole, first, second = (LateMetrics(["loss", "mae"]) for _ in range(3))
    for pair in values:
        whole.push(pair)
    for pair in values[:cut]:
        first.push(pair)
    second.set_state(first.get_state())
    for pair in values[cut:]:
        second.push(pair)
    whole.flush()
    second.flush()
    np.testing.assert_equal(second.means(), whole.means())
    assert second.seen == whole.seen


# States -------------------------------------------------------------------------------------------


def test_only_what_the_run_changed_is_taken():
    callback = Plain(every=4)
    began = states.plain(callback)
    callback.count, callback.kept = 7, [np.array([1.0, math.nan])]
    saved = states.get_state(callback, began)
    assert saved["class"].endswith(":Plain")
    assert sorted(saved["state"]) == ["count", "kept"]
    callback.kept[0][0] = 5.0  # the state is a copy
    assert saved["state"]["kept"][0][0] == 1.0


def test_the_nth_of_a_class_gets_the_nth():
    saved = [
        {"class": "tests.a:Plain", "state": 1},
        {"class": "tests.a:Own", "state": 2},
        {"class": "__main__:Plain", "state": np.zeros(2)},
    ]
    callbacks = [Own(), Plain(1), Plain(2), Plain(3)]
    found = [(type(one).__name__, one_saved["state"]) for one, one_saved in states.pairs(
        callbacks, saved)]  # fmt: skip
    np.testing.assert_equal(found, [("Own", 2), ("Plain", 1), ("Plain", np.zeros(2))])
    assert len(saved) == 3


def test_a_list_of_callbacks_names_every_class():
    held = base.CallbackList([Plain(1), Own()]).get_state()
    assert [entry["class"].rpartition(":")[2] for entry in held] == ["Plain", "Own", "view"]


# Log files ----------------------------------------------------------------------------------------


class Appends:
    """Only what `log_files` asks."""

    def __init__(self, *paths):
        self.paths = paths

    def log_files(self):
        return self.paths


def marked_at(path, content):
    path.write_bytes(content)
    return log_files.marks(Appends(path))


def after_cut(path, marks):
    """{name: content} of the folder, once the file was cut back to its mark."""
    log_files.cut_back(Appends(path), marks)
    return {found.name: found.read_bytes() for found in path.parent.iterdir()}


@given(kept=st.binary(max_size=9_000), more=st.binary(max_size=300))
def test_a_file_that_grew_is_cut_back_to_where_it_was(tmp_path_factory, kept, more):
    path = tmp_path_factory.mktemp("log") / "log"
    marks = marked_at(path, kept)
    path.write_bytes(kept + more)
    found = after_cut(path, marks)
    if kept or not more:
        assert found == {"log": kept}
    else:  # nothing tells an empty file from another
        assert found == {"log": b"", "log.repeated": more}


def test_a_log_that_moved_with_its_run_is_cut_too(tmp_path):
    marks = marked_at(tmp_path / "log", b"one\n")
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "log"
    path.write_bytes(b"one\ntwo\n")
    assert after_cut(path, marks) == {"log": b"one\n"}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"o",  # shorter
        b"one\n",  # as long
        b"two\n",
        b"another run's lines, which are more than there were",
        b"One\ntwo\n",  # written anew at the same path
    ],
)
@pytest.mark.parametrize("folder", ["", "elsewhere"])
def test_another_file_is_left_as_it_is(tmp_path, content, folder):
    marks = marked_at(tmp_path / "log", b"one\n")
    path = tmp_path / folder / "log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    log_files.cut_back(Appends(path), marks)
    assert path.read_bytes() == content


def test_a_file_of_another_name_or_of_another_place_that_was_empty_is_left_as_it_is(tmp_path):
    marks = marked_at(tmp_path / "log", b"")
    (tmp_path / "elsewhere").mkdir()
    for path in (tmp_path / "other", tmp_path / "elsewhere" / "log"):
        path.write_bytes(b"not ours\n")
        log_files.cut_back(Appends(path), marks)
        assert path.read_bytes() == b"not ours\n"


def test_what_is_put_aside_replaces_nothing(tmp_path):
    path = tmp_path / "log"
    marks = marked_at(path, b"")
    for content in (b"first\n", b"second\n", b"third\n"):
        path.write_bytes(content)
        log_files.cut_back(Appends(path), marks)
    found = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    assert found == {
        "log": b"",
        "log.repeated": b"first\n",
        "log.repeated.1": b"second\n",
        "log.repeated.2": b"third\n",
    }


def test_files_of_one_name_are_told_by_their_folders(tmp_path):
    paths = [tmp_path / name / "log" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(b"one\n" + path.parent.name.encode())
    marks = log_files.marks(Appends(*paths))
    for path in paths:
        path.write_bytes(path.read_bytes() + b"more\n")
    log_files.cut_back(Appends(*paths), marks)
    assert [path.read_bytes() for path in paths] == [b"one\na", b"one\nb"]


def test_an_attribute_that_is_called_like_a_method_is_an_attribute():
    callback = Callback()
    callback.log_files, callback.get_state, callback.set_state = ["a"], 1, 2
    saved = states.get_state(callback, {})
    assert saved["files"] == {}


def test_a_file_that_is_gone_is_no_error(tmp_path):
    path = tmp_path / "log"
    marks = marked_at(path, b"one\n")
    path.unlink()
    assert after_cut(path, marks) == {}


def test_logs_of_a_checkpoint_in_the_first_episode_begin_anew(compiled, tmp_path):
    """The files were empty then, but for the header's absence."""
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()

    def loggers(name):
        return [
            FileLogger(tmp_path / name / "log.jsonl"),
            keras.callbacks.CSVLogger(tmp_path / name / "log.csv"),
        ]

    run(compiled, END, loggers("whole"), verbose=0)
    path = tmp_path / "run"
    saves = RunCheckpoint(path, every_steps=BASE + 2, keep=9)
    run(compiled, BROKEN, [*loggers("broken"), saves], verbose=0)
    run(compiled, END, loggers("broken"), checkpoint.find(path)[-1], verbose=0)
    read = [FileLogger.read(tmp_path / name / "log.jsonl") for name in ("whole", "broken")]
    whole, again = (
        {name: values for name, values in without_time(one).items() if name != "run_start"}
        for one in read
    )
    np.testing.assert_equal(again, whole)
    whole, again = (rows_of(tmp_path / name / "log.csv") for name in ("whole", "broken"))
    assert again == whole
    names = sorted(os.listdir(tmp_path / "broken"))
    assert names == ["log.csv", "log.csv.repeated", "log.jsonl", "log.jsonl.repeated"]


# TensorBoard --------------------------------------------------------------------------------------


def events(folder):
    """{(tag, step): value} of all that TensorBoard shows; each stands there once."""
    import tensorflow as tf
    from tensorflow.core.util import event_pb2

    found = []
    for path in sorted(folder.rglob("events.out.tfevents*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                if not value.tag.endswith("_bytes"):  # another process may use other memory
                    number = float(tf.make_ndarray(value.tensor))
                    found.append(((value.tag, event.step), number))
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture
def tensorboard(backend, monkeypatch):
    """Keras' callback, as it is; what it calls to write a number needs no tensorboard package."""
    if backend != "tensorflow":
        pytest.skip("Keras writes its TensorBoard files with TensorFlow")
    import tensorflow as tf

    def scalar(name, data, step):
        tf.summary.write(name, tf.constant(data, tf.float32), step)

    def make(folder):
        board = keras.callbacks.TensorBoard(str(folder), write_graph=False, update_freq=1)
        monkeypatch.setattr(board.summary, "scalar", scalar)
        return board

    return make


def test_tensorboard_shows_one_run(compiled, tmp_path, tensorboard):
    run(compiled, END, [tensorboard(tmp_path / "whole")], verbose=0)
    broken, path = tmp_path / "broken", tmp_path / "run"
    saves = RunCheckpoint(path, every_steps=SAVED)
    run(compiled, BROKEN, [tensorboard(broken), saves], verbose=0)
    saved = checkpoint.find(path)[1]
    for _ in range(2):  # the second resume finds what the first one wrote
        run(compiled, END, [tensorboard(broken)], saved, verbose=0)
    shown = events(broken)
    assert {key[0] for key in shown} >= {"epoch_episode_reward", "batch_reward"}
    assert [shown["epoch_episode_reward", episode] for episode in (1, 2, 3)] == [40.0, 65.0, 90.0]
    assert shown == events(tmp_path / "whole")
    repeated = [one.name for one in (broken / "train").iterdir() if "tfevents" not in one.name]
    assert len(repeated) == 1
    assert repeated[0].startswith("repeated.")


def test_a_tensorboard_that_ran_before_goes_on_in_the_same_process(compiled, tmp_path, tensorboard):
    board, env = tensorboard(tmp_path), Counting()
    run(compiled, SAVED, [board], env=env, verbose=0)
    run(compiled, END, [board], True, env, verbose=0)
    shown = events(tmp_path)
    assert [shown["epoch_episode_reward", episode] for episode in (1, 2, 3)] == [40.0, 65.0, 90.0]


def test_tensorboard_files_of_a_run_beside_this_one_are_not_cut(compiled, tmp_path, tensorboard):
    path, beside = tmp_path / "run", tmp_path / "train" / "events.out.tfevents.1.host.2.3.v2"
    beside.parent.mkdir()
    beside.write_bytes(b"its first half, ")
    run(compiled, 9, [tensorboard(tmp_path), RunCheckpoint(path)], verbose=0)
    beside.write_bytes(b"its first half, its second half")
    run(compiled, 14, [tensorboard(tmp_path)], path, verbose=0)
    assert beside.read_bytes() == b"its first half, its second half"


def test_tensorboard_files_of_other_runs_are_left_alone(compiled, tmp_path, tensorboard):
    path, other = tmp_path / "run", tmp_path / "other" / "train"
    run(compiled, 9, [tensorboard(tmp_path / "logs"), RunCheckpoint(path)], verbose=0)
    other.mkdir(parents=True)
    (other / "events.out.tfevents.1.host.2.3.v2").write_bytes(b"somebody's")
    run(compiled, 14, [tensorboard(tmp_path / "other")], path, verbose=0)
    assert (other / "events.out.tfevents.1.host.2.3.v2").read_bytes() == b"somebody's"
    assert len(list(other.iterdir())) == 2


def test_keras_rls_own_loggers_go_on(tmp_path):
    def run(name, nb_steps, resume=None):
        log = tmp_path / f"{name}.json"
        loggers = [rl_callbacks.FileLogger(log), rl_callbacks.TrainEpisodeLogger()]
        saves = RunCheckpoint(tmp_path / name, every_steps=4)
        agent = counting.new_agent()
        agent.fit(Counting(), nb_steps, callbacks=[*loggers, saves], verbose=0, resume=resume)
        return json.loads(log.read_text())

    unbroken = run("one", 23)
    run("other", 13)  # in the middle of an episode
    resumed = run("other", 23, resume=tmp_path / "other")
    assert resumed["episode"] == unbroken["episode"] == [0, 1, 2, 3]
    for name in ("episode_reward", "nb_episode_steps", "nb_steps"):
        assert resumed[name] == unbroken[name]

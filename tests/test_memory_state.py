"""A replay memory in a checkpoint: the rows that come back, in what order, and what they give."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import keras
import numpy as np
import pytest
import scenarios
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import everything

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, checkpoint, contents, engine
from kerasrl_gpu.errors import CheckpointError, PoolTooLarge
from kerasrl_gpu.pool import ranges
from kerasrl_gpu.pool.layout import Field
from kerasrl_gpu.resume import memory as memory_state

BACKENDS = {"jax": "tensorflow", "tensorflow": "jax"}


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch):
    """A pool of a few rows has several ranges of 3 to 5 rows."""
    monkeypatch.setattr(ranges, "_PARTS", 8)
    monkeypatch.setattr(ranges, "_LEAST_ROWS", 3)


# Rows --------------------------------------------------------------------------------------------


def as_vector(number):
    return np.array([number, -number / 7], np.float64)  # stored as float32


def as_frame(number):
    return np.full((2, 3), number % 256, np.uint8)


def as_dict(number):
    return {"place": np.float32([number, 2 * number]), "frame": np.uint8(number % 256)}


def append(memory, first, count, kind):
    """Rows number `first` and on; every seventh ends its episode, the one after shows its end."""
    for number in range(first, first + count):
        memory.append(kind(number), number % 5, number / 3, terminal=number % 7 == 6)


def memory_of(limit, window=1, kind=None, count=0):
    memory = DeviceMemory(limit=limit, window_length=window, seed=4)
    append(memory, 0, count, kind)
    return memory


def save(run, memory):
    """One checkpoint of a memory alone, as `agent.save` writes it."""
    path = checkpoint.write(
        run,
        step=memory.nb_entries,
        manifest={},
        state={"memory": memory_state.get_state(memory)},
        ranges=memory_state.rows_of(memory),
        previous=memory_state.previous(memory),
    )
    memory_state.note(memory, path)
    return path


def restore(path, memory):
    """How many rows did not fit."""
    saved = checkpoint.open_newest(path)
    state = saved.state_part("memory")
    memory_state.check(memory, state, saved)
    return memory_state.set_state(memory, state, saved)


def assert_same_rows(memory, expected):
    assert memory.nb_entries == expected.nb_entries
    assert memory.layout.fields == expected.layout.fields
    for name in ("observations", "actions", "rewards", "terminals"):
        np.testing.assert_equal(getattr(memory, name), getattr(expected, name))
    stored = [contents.stored(one, *memory.layout.fields) for one in (memory, expected)]
    np.testing.assert_equal(*stored)
    shown = [one.get_recent_state(one.spec.example) for one in (memory, expected)]
    np.testing.assert_equal(*shown)


def assert_same_batches(memory, expected, counters=None):
    np.testing.assert_equal(
        memory.read_batch(16, counters=counters), expected.read_batch(16, counters=counters)
    )


@pytest.mark.parametrize(
    "kind, window, count", [(as_vector, 1, 17), (as_frame, 3, 45), (as_dict, 2, 45)]
)
def test_what_was_saved_comes_back(tmp_path, kind, window, count):
    memory = memory_of(20, window, kind, count)
    memory.read_batch(16)  # draws go on where they stood
    path = save(tmp_path, memory)
    again = memory_of(20, window)
    assert restore(path, again) == 0
    assert again.ring.get_state() == memory.ring.get_state()
    assert_same_rows(again, memory)
    assert_same_batches(again, memory)
    for one in (memory, again):
        append(one, count, 11, kind)
    assert_same_rows(again, memory)
    assert_same_batches(again, memory)


@pytest.mark.parametrize("limit, count", [(9, 17), (9, 45), (33, 45)])
def test_the_newest_rows_go_into_another_limit(tmp_path, limit, count):
    path = save(tmp_path, memory_of(20, 3, as_frame, count))
    again = memory_of(limit, 3)
    held = min(count, 20)
    kept = min(limit, held)
    assert restore(path, again) == held - kept
    # a memory that was only ever given the rows that are kept has the same ones live
    fresh = memory_of(max(kept, 5), 3, as_frame, count)
    assert_same_rows(again, fresh)
    if count == 45:  # compiling is what takes time
        assert_same_batches(again, fresh, counters=(4, 7))
    append(again, count, 40, as_frame)
    assert_same_rows(again, memory_of(limit, 3, as_frame, count + 40))


def test_rows_replace_what_was_there(tmp_path):
    path = save(tmp_path, memory_of(20, kind=as_vector, count=8))
    again = memory_of(20, kind=as_vector, count=37)
    restore(path, again)
    assert_same_rows(again, memory_of(20, kind=as_vector, count=8))


def test_a_memory_without_rows_takes_none_and_empties_another(tmp_path):
    assert memory_state.get_state(memory_of(20)) is None
    assert memory_state.rows_of(memory_of(20)) == []
    other = memory_of(20, kind=as_vector, count=30)
    memory_state.clear(other)
    assert (other.nb_entries, list(other.recent_observations), other.saved) == (0, [], None)
    append(other, 0, 9, as_vector)
    assert_same_rows(other, memory_of(20, kind=as_vector, count=9))


# Saving again ------------------------------------------------------------------------------------


def rows_in(path):
    """u8[rows, row bytes] of a whole checkpoint, slot after slot."""
    saved = checkpoint.open_newest(path)
    return np.concatenate([saved.rows(name) for name in saved.range_names])


def rows_on_device(memory):
    ever = min(memory.ring.heads[0], memory.layout.capacity)
    return engine.to_host(engine.take_rows(memory.pool, np.arange(ever, dtype=np.int32)))


@settings(max_examples=12)
@given(
    steps=st.lists(st.tuples(st.integers(0, 26), st.sampled_from("scu")), min_size=2, max_size=5)
)
def test_each_of_many_checkpoints_holds_the_whole_pool(tmp_path_factory, steps):
    run = tmp_path_factory.mktemp("run")
    memory, count = memory_of(20, kind=as_vector, count=1), 1
    path = save(run, memory)
    for more, then in steps:
        append(memory, count, more, as_vector)
        count += more
        if then == "c":
            memory.close_episode(as_vector(1000 + count))
        elif then == "u":
            memory.close_episode(None)  # nobody knows the last observation
        before, path = path, save(run, memory)
        np.testing.assert_array_equal(rows_in(path), rows_on_device(memory))
        if not more and then == "s" and memory.ring.heads[0] > 5:  # nothing but the newest row
            same = [os.path.samefile(file, before / "pool" / file.name) for file in files_of(path)]
            assert sum(same) >= len(same) - 1


def files_of(path):
    return sorted((path / "pool").iterdir())


def test_only_ranges_with_new_rows_are_written_again(tmp_path):
    # limit 20, ranges of 3 rows: 18 rows are ranges 0 to 5; rows 18, 19, 20 go to slots 18, 19, 0,
    # and the newest row of then, slot 17, may have been closed: ranges 0, 5 and 6 are new
    memory = memory_of(20, kind=as_vector, count=18)
    before = save(tmp_path, memory)
    append(memory, 18, 3, as_vector)
    after = save(tmp_path, memory)
    linked = [
        (before / "pool" / file.name).exists()
        and os.path.samefile(file, before / "pool" / file.name)
        for file in files_of(after)
    ]
    assert linked == [False, True, True, True, True, False, False]


def test_a_resumed_pool_is_saved_by_links_and_a_resized_one_as_a_whole(tmp_path):
    path = save(tmp_path, memory_of(20, kind=as_vector, count=18))
    same, larger = memory_of(20), memory_of(24)
    restore(path, same)
    again = save(tmp_path, same)
    assert sum(file.stat().st_nlink == 2 for file in files_of(again)) == 5  # all but the newest
    restore(path, larger)
    whole = save(tmp_path / "other", larger)
    assert all(file.stat().st_nlink == 1 for file in files_of(whole))
    np.testing.assert_array_equal(rows_in(whole), rows_on_device(larger))


def test_a_checkpoint_of_another_run_with_the_same_name_is_no_previous_one(tmp_path):
    memory = memory_of(20, kind=as_vector, count=18)
    path = save(tmp_path / "run", memory)
    shutil.rmtree(tmp_path / "run")
    assert memory_state.previous(memory) is None
    other = memory_of(20)
    append(other, 100, 18, as_vector)
    assert save(tmp_path / "run", other) == path
    again = save(tmp_path / "run", memory)
    np.testing.assert_array_equal(rows_in(again), rows_on_device(memory))


# The other backend -------------------------------------------------------------------------------


def write_for_the_other(run):
    """What the other backend's process does."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(ranges, "_LEAST_ROWS", 3)
    monkeypatch.setattr(ranges, "_PARTS", 8)
    save(run, memory_of(20, 2, as_dict, 45))


def test_a_pool_of_the_other_backend(tmp_path, backend):
    program = f"import test_memory_state as test; test.write_for_the_other({str(tmp_path)!r})"
    environment = {**os.environ, "KERAS_BACKEND": BACKENDS[backend]}
    subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, env=environment, check=True
    )
    again = memory_of(20, 2)
    assert restore(tmp_path, again) == 0
    expected = memory_of(20, 2, as_dict, 45)
    assert_same_rows(again, expected)
    assert_same_batches(again, expected)


# What does not fit -------------------------------------------------------------------------------


def refused(path, memory, match):
    before = memory_state.get_state(memory)
    with pytest.raises(CheckpointError, match=match):
        restore(path, memory)
    np.testing.assert_equal(memory_state.get_state(memory), before)


def test_other_observations_are_refused(tmp_path):
    path = save(tmp_path, memory_of(20, kind=as_frame, count=9))
    match = r"observations \(leaf/observation\) of uint8\[2, 3\], this agent's are float32\[2\]"
    refused(path, memory_of(20, kind=as_vector, count=3), match)
    match = r"holds observations \(leaf/frame\) of no kind, this agent's are uint8\[\]"
    refused(path, memory_of(20, kind=as_dict, count=3), match)


def test_other_actions_are_refused(tmp_path):
    memory = memory_of(20)
    memory.bind(Field("float32", (2,)))
    memory.append(as_vector(0), np.zeros(2), 0.0, False)
    path = save(tmp_path, memory)
    other = memory_of(20)
    other.bind(Field("float32", (3,)))
    refused(path, other, r"holds actions of float32\[2\], this agent's are float32\[3\]")


def test_a_pool_without_room_is_refused_while_nothing_has_changed(tmp_path):
    path = save(tmp_path / "run", memory_of(20, kind=as_vector, count=9))
    memory = DeviceMemory(limit=20, budget=120)
    with pytest.raises(PoolTooLarge, match=r"Pass limit=7 or less"):
        restore(path, memory)
    assert (memory.pool, memory.nb_entries) == (None, 0)


# An agent ----------------------------------------------------------------------------------------


def dqn(seed):
    scenarios.begin(seed)
    agent = DQNAgent(
        scenarios.q_network((4,), 2), nb_actions=2, memory=DeviceMemory(limit=50),
        batch_size=8, nb_steps_warmup=20, target_model_update=15, seed=1,
    )  # fmt: skip
    agent.compile(keras.optimizers.Adam(1e-2))
    return agent


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An agent, and a run directory with its checkpoint."""
    path, agent = tmp_path_factory.mktemp("run"), dqn(seed=1)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(ranges, "_LEAST_ROWS", 9)
        agent.fit(gymnasium.make("CartPole-v1"), 40, verbose=0)
        agent.save(path)
    return agent, path


def damage(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_a_pool_file_that_is_bad_leaves_the_agent_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(ranges, "_LEAST_ROWS", 9)
    agent, env = dqn(seed=2), gymnasium.make("CartPole-v1")
    agent.fit(env, 40, verbose=0)
    path = agent.save(tmp_path)
    agent.fit(env, 50, verbose=0)  # other weights, other rows
    before = everything(agent)
    last = files_of(path)[-1]
    damage(last)
    with pytest.raises(CheckpointError, match=rf"{last.name} is damaged.*agent.load_weights"):
        agent.load(path)
    np.testing.assert_equal(everything(agent), before)
    last.unlink()
    with pytest.raises(CheckpointError, match=rf"{last.name} cannot be read"):
        agent.load(path)
    np.testing.assert_equal(everything(agent), before)
    agent.fit(env, 60, verbose=0, resume=True)  # and it goes on


def assert_weights(agent, expected):
    ours, theirs = agent.trainer.get_state(), expected.trainer.get_state()
    np.testing.assert_equal(ours["online"], theirs["online"])
    np.testing.assert_equal(ours["target"], theirs["target"])


@pytest.fixture
def opened(monkeypatch):
    """Names of the files that were read or digested."""
    seen = []
    for name in ("read", "check"):
        original = getattr(checkpoint.files, name)

        def noted(path, *args, original=original):
            seen.append(path.name)
            return original(path, *args)

        monkeypatch.setattr(checkpoint.files, name, noted)
    return seen


def test_weights_alone_read_nothing_of_the_pool(trained, opened):
    agent, path = trained
    other = dqn(seed=3)
    other.load_weights(path)
    assert set(opened) == {"manifest.json", "COMMIT", "state.json", "state.safetensors"}
    assert_weights(other, agent)
    for ours, theirs in zip(other.model.get_weights(), agent.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert other.memory.nb_entries == 0
    other.load_weights(checkpoint.find(path)[0])  # one checkpoint, too
    assert_weights(other, agent)


def test_weights_alone_go_into_an_agent_that_is_not_compiled(trained):
    agent, path = trained
    other = DQNAgent(scenarios.q_network((4,), 2), nb_actions=2, memory=DeviceMemory(limit=50))
    other.load_weights(path)
    for ours, theirs in zip(other.model.get_weights(), agent.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_weights_alone_of_another_network_are_refused(trained):
    _, path = trained
    other = DQNAgent(scenarios.q_network((5,), 2), nb_actions=2, memory=DeviceMemory(limit=50))
    with pytest.raises(CheckpointError, match=r"weights have the shapes \[\(4, 24\).*\(5, 24\)"):
        other.load_weights(path)
    other.compile("sgd")
    with pytest.raises(CheckpointError, match=r"networks do not fit this agent: model/trainable"):
        other.load_weights(path)


def test_weights_alone_of_an_actor_and_a_critic(tmp_path, opened):
    def ddpg(seed):
        scenarios.begin(seed)
        networks = scenarios.actor_critic((3,), 1)
        agent = DDPGAgent(
            1, networks["actor"], networks["critic"], networks["input"],
            DeviceMemory(limit=90), target_model_update=0.1,
        )  # fmt: skip
        agent.compile("sgd")
        return agent

    agent, other = ddpg(1), ddpg(2)
    agent.actor.set_weights([w + 1 for w in agent.actor.get_weights()])
    agent.take_weights()  # targets are others than the networks now
    agent.save(tmp_path)
    opened.clear()
    other.load_weights(tmp_path)
    assert_weights(other, agent)

"""DeviceMemory by itself: what keras-rl's SequentialMemory says, and what that one gets wrong."""

import copy
import inspect
import pickle
import random
import re

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TimeLimit

from kerasrl_gpu import DeviceMemory, DQNAgent, engine
from kerasrl_gpu.errors import ArgumentError, EmptyPool, PoolTooLarge
from kerasrl_gpu.keras_rl import Experience, Memory, SequentialMemory
from kerasrl_gpu.pool.layout import Field

NEVER = 10**9
ONE_OF_256 = Field("uint8", ())


def episodes(lengths, observe, seed=0):
    """keras-rl's calls of `append`: an episode's steps, then its last observation."""
    numbers = random.Random(seed)
    for length in lengths:
        for step in range(length + 1):
            last = step == length
            action = 0 if last else numbers.randrange(4)
            reward = 0.0 if last else numbers.randrange(-8, 8) / 4
            yield observe(), action, reward, step == length - 1


def counting(shape=(2,), dtype=np.float32, start=0):
    """A function that gives arrays of 1, 2, 3, ..., none of them like another."""
    count = [start]

    def observe():
        count[0] += 1
        return np.full(shape, count[0], dtype)

    return observe


def filled(memory, lengths, observe=None, seed=0):
    for row in episodes(lengths, observe or counting(), seed):
        memory.append(*row)
    return memory


def can_start(memory: SequentialMemory):
    """Rows that keras-rl's `sample(batch_idxs=...)` starts a transition from as it was asked."""
    rows = range(memory.window_length, memory.nb_entries - 1)
    return [row for row in rows if not memory.terminals[row - 1]]


def assert_same_experiences(got, want):
    assert len(got) == len(want)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(ours.state0, theirs.state0)
        np.testing.assert_array_equal(ours.state1, theirs.state1)
        assert (ours.action, ours.reward) == (theirs.action, theirs.reward)
        assert ours.terminal1 == theirs.terminal1


# What keras-rl says ----------------------------------------------------------------------------


@pytest.mark.parametrize("window, cross", [(1, False), (3, False), (3, True)])
def test_every_row_is_what_keras_rl_says(window, cross):
    # one pair of memories, which compiles once; 12 histories after each other, so that the ring is
    # looked at empty, partly filled, and wrapped around at every kind of row
    limit, numbers, observe = 24, random.Random(window), counting()
    options = {"window_length": window, "ignore_episode_boundaries": cross}
    theirs, ours = SequentialMemory(limit=limit, **options), DeviceMemory(limit, **options)
    total = 0
    for seed in range(12):
        lengths = [numbers.randrange(1, 8) for _ in range(numbers.randrange(1, 4))]
        for row in episodes(lengths, observe, seed):
            theirs.append(*row)
            ours.append(*row)
        total += sum(lengths) + len(lengths)
        rows = can_start(theirs)
        asked = [rows[index % len(rows)] for index in range(limit)]
        assert_same_experiences(ours.sample(limit, asked), theirs.sample(limit, asked))
        assert ours.nb_entries == theirs.nb_entries == min(limit, total)
        if 0 < seed < 11:  # every new size compiles; the first and the last one will do
            continue
        np.testing.assert_array_equal(ours.observations, theirs.observations)
        np.testing.assert_array_equal(ours.actions, theirs.actions)
        np.testing.assert_array_equal(ours.rewards, theirs.rewards)
        np.testing.assert_array_equal(ours.terminals, theirs.terminals)


@pytest.mark.parametrize("cross", [False, True])
def test_recent_states_are_what_keras_rl_says(cross):
    options = {"window_length": 3, "ignore_episode_boundaries": cross}
    theirs, ours = SequentialMemory(limit=20, **options), DeviceMemory(20, **options)
    ours.allocate(np.zeros(2, np.float32))
    for step, row in enumerate(episodes([1, 5, 2, 3], counting())):
        for memory in (theirs, ours):
            state = memory.get_recent_state(row[0])
            assert len(state) == 3
            assert isinstance(state, list)
        np.testing.assert_array_equal(
            ours.get_recent_state(row[0]), theirs.get_recent_state(row[0])
        )
        assert {seen.dtype for seen in ours.get_recent_state(row[0])} == {np.dtype("float32")}
        ours.see(row[0])  # what the next call acts on
        np.testing.assert_array_equal(ours.wire.view["see/observation"], state)
        for memory in (theirs, ours):  # a test only looks
            memory.append(*row, training=step % 4 != 3)
    assert ours.nb_entries == theirs.nb_entries


def test_config_holds_keras_rls_keys_and_rebuilds_it():
    memory = DeviceMemory(
        40, window_length=2, ignore_episode_boundaries=True, keep_dtype=True, budget=10**6,
        seed=3,
    )  # fmt: skip
    theirs = SequentialMemory(limit=40, window_length=2, ignore_episode_boundaries=True)
    config = memory.get_config()
    assert theirs.get_config().items() <= config.items()
    assert set(config) == set(inspect.signature(DeviceMemory).parameters)
    assert DeviceMemory(**config).get_config() == config
    assert isinstance(memory, Memory)


# Draws -----------------------------------------------------------------------------------------


def starts(batch):
    return [float(one.state0[0][0]) for one in batch]


def test_draws_follow_the_seed_and_never_pair_two_episodes():
    # the ring has wrapped and an episode is open: its newest row and the oldest stand side by side
    one, other = (filled(DeviceMemory(17, seed=1), [5] * 9) for _ in range(2))
    for memory in (one, other):
        memory.append(np.full(2, 55, np.float32), 0, 0.0, False)
    first, second = one.sample(64), one.sample(64)
    assert starts(first) == starts(other.sample(64))
    assert starts(first) != starts(second)
    other.seed = 2
    assert starts(second) != starts(other.sample(64))
    for experience in first + second:
        assert isinstance(experience, Experience)
        assert experience.state1[0][0] == experience.state0[0][0] + 1
        assert experience.terminal1 == (experience.state1[0][0] % 6 == 0)


def test_only_rows_that_start_a_transition_are_drawn():
    memory, observe = DeviceMemory(9), counting()
    with pytest.raises(EmptyPool, match=r"none of the 0 stored rows.*nb_steps_warmup"):
        memory.sample(32)
    memory.append(observe(), 0, 0.0, True)  # an episode of one step, its end still to come
    with pytest.raises(EmptyPool, match="none of the 1 stored rows"):
        memory.sample(32)
    memory.append(observe(), 0, 0.0, False)
    assert starts(memory.sample(32)) == [1] * 32  # with repetition
    filled(memory, [2], observe)
    final, newest, beyond, before = 1, 4, 8, -2
    assert set(starts(memory.sample(32))) == {1, 3, 4}
    for asked in (final, newest, beyond, before):  # drawn anew, as in keras-rl
        assert set(starts(memory.sample(32, [asked] * 32))) <= {1, 3, 4}
    # keras-rl looks for ever for a row whose predecessor is not terminal
    filled(memory, [1] * 20, observe)
    batch = memory.sample(32)
    assert all(one.terminal1 for one in batch)
    assert len(set(starts(batch))) == 4  # a row's observation and its end, 9 rows


# Dtypes and bytes ------------------------------------------------------------------------------


def test_a_batch_has_one_dtype_whatever_it_touches():
    # keras-rl pads an episode's start with float64, and one such frame widens the whole batch
    memory = filled(DeviceMemory(60, window_length=4), [6] * 12, counting((2, 2), np.uint8))
    seen = set()
    for _ in range(200):
        batch = memory.read_batch(8)
        for key in ("observation", "next_observation"):
            seen.add((str(batch[key]["observation"].dtype), batch[key]["observation"].shape))
    assert seen == {("uint8", (8, 4, 2, 2))}
    experiences = [one for _ in range(4) for one in memory.sample(8)]
    frames = [frame for one in experiences for frame in (*one.state0, *one.state1)]
    assert {str(frame.dtype) for frame in frames} == {"uint8"}
    assert any(not frame.any() for frame in frames)  # some were padding


@pytest.mark.parametrize(
    "dtype, stored", [("float64", "float32"), ("int64", "int32"), ("bool", "bool")]
)
def test_wide_numbers_are_stored_in_32_bits(dtype, stored):
    memory = filled(DeviceMemory(10), [2], counting((2,), dtype))
    assert {str(shown.dtype) for shown in memory.observations} == {stored}
    assert memory.nbytes == 10 * (2 * np.dtype(stored).itemsize + 4 + 4 + 1)


def test_wide_numbers_are_kept_on_request_or_refused_aloud():
    values = [1 + 2**-40, 2 + 2**-40, 3.0]
    memory = DeviceMemory(20, keep_dtype=True)
    if engine.NAME != "jax":
        for value in values:
            memory.append(np.array([value]), 0, 0.0, False)
        assert [shown[0] for shown in memory.observations] == values
        assert memory.observations[0].dtype == np.float64
        assert memory.nbytes == 20 * (8 + 4 + 4 + 1)
        return
    with pytest.raises(ArgumentError, match=r"keep_dtype=True.*float64.*jax_enable_x64"):
        memory.append(np.array([values[0]]), 0, 0.0, False)
    assert memory.nb_entries == 0


def test_large_integers_keep_every_bit_of_32():
    memory = DeviceMemory(20)
    values = [-(2**31), -1, 2**31 - 1]
    for value in values:
        memory.append(np.array([value], np.int64), 0, 0.0, False)
    assert [int(shown[0]) for shown in memory.observations] == values


def pool_nbytes(memory):
    return engine.to_host(memory.pool).nbytes


def test_a_frame_is_stored_once_whatever_the_window():
    # 84 * 84 + 1 action + 4 reward + 1 flags = 7,062 bytes a row; stacks would be 4 or 8 times that
    memory = DeviceMemory(100, window_length=4)
    memory.bind(ONE_OF_256)
    assert memory.nbytes == 0
    filled(memory, [10] * 3, counting((84, 84), np.uint8))
    assert memory.nbytes == 100 * 7_062
    assert memory.nbytes == pool_nbytes(memory)


@pytest.mark.parametrize(
    "observation, action",
    [
        (np.zeros((8, 8), np.uint8), None),
        (np.zeros(17), Field("float32", (6,))),
        ({"image": np.zeros((4, 4, 3), np.uint8), "pos": np.zeros(3), "mode": 2}, ONE_OF_256),
        ((np.zeros(2, np.float16), np.zeros((), bool)), ONE_OF_256),
    ],
    ids=["frames", "floats", "dict", "tuple"],
)
def test_the_estimate_before_is_the_truth_afterwards(observation, action):
    memory = DeviceMemory(50, window_length=2)
    if action is not None:
        memory.bind(action)
    estimate = memory.estimate(observation)
    assert memory.nbytes == 0
    assert memory.pool is None
    memory.allocate(observation)
    assert estimate["nbytes"] == memory.nbytes == pool_nbytes(memory)
    fields = memory.layout.unpack(engine.to_host(memory.pool))
    assert estimate["fields"] == {name: array.nbytes for name, array in fields.items()}
    assert estimate["nbytes"] == sum(estimate["fields"].values())
    assert memory.nbytes == 50 * estimate["row_bytes"]
    assert estimate["limit"] == 50


def test_a_limit_that_does_not_fit_is_refused_with_the_largest_that_does():
    # rows of 64 + 4 + 4 + 1 = 73 bytes: 100,000 bytes hold 1,369 of them
    observation, budget = np.zeros((8, 8), np.uint8), 100_000
    memory = DeviceMemory(10_000_000, budget=budget)
    with pytest.raises(PoolTooLarge, match=r"limit=10_000_000 rows of 73 B") as caught:
        memory.append(observation, 0, 0.0, False)
    assert isinstance(caught.value, MemoryError)
    assert memory.nbytes == memory.nb_entries == 0
    fits = int(re.search(r"Pass limit=([\d_]+)", str(caught.value))[1])
    assert fits == 1_369
    for limit, refused in ((fits, False), (fits + 1, True)):
        memory = DeviceMemory(limit, budget=budget)
        if refused:
            with pytest.raises(PoolTooLarge):
                memory.allocate(observation)
        else:
            memory.allocate(observation)
            assert 0 <= budget - memory.nbytes < 73


def test_the_hosts_own_memory_is_the_budget_where_none_is_given():
    # a petabyte of frames: refused before anything is allocated
    memory = DeviceMemory(10**11)
    with pytest.raises(PoolTooLarge, match=r"GiB are left for the pool"):
        memory.allocate(np.zeros((84, 84), np.uint8))
    assert memory.pool is None


# Structured observations -----------------------------------------------------------------------


def as_dict(n):
    parts = {
        "image": np.full((2, 2), n % 256, np.uint8),
        "inner": {"pos": np.float32([n, -n]), "mode": n % 3},
    }
    return parts if n % 2 else dict(reversed(parts.items()))  # keys in whatever order


def as_tuple(n):
    return np.float32([n, n + 0.5]), np.array([n % 2 == 0])


def assert_same_structure_and_values(got, want):
    keras.tree.assert_same_structure(got, want)
    for one, other in zip(keras.tree.flatten(got), keras.tree.flatten(want), strict=True):
        np.testing.assert_array_equal(one, other)
        if isinstance(other, np.ndarray):
            assert one.dtype == other.dtype


@pytest.mark.parametrize("make", [as_dict, as_tuple])
def test_structured_observations_keep_structure_and_dtypes(make):
    shown = [make(n) for n in range(1, 10)]
    queue = iter(shown)
    memory = filled(DeviceMemory(30, window_length=3), [4, 3], lambda: next(queue))
    assert_same_structure_and_values(memory.observations, shown)
    # an episode ended before the newest two
    state = memory.get_recent_state(make(10))
    zero = keras.tree.map_structure(np.zeros_like, make(10))
    keras.tree.assert_same_structure(state, [zero, zero, zero])
    for leaves, want in zip(state, (zero, zero, make(10)), strict=True):
        assert_same_structure_and_values(leaves, want)


def test_structured_transitions_are_read_as_they_were_stored():
    shown = [as_dict(n) for n in range(1, 10)]
    queue = iter(shown)
    memory = filled(DeviceMemory(30, window_length=2), [4, 3], lambda: next(queue))
    middle, first = memory.sample(2, [2, 5])  # in mid-episode, and an episode's first step
    assert_same_structure_and_values(middle.state0 + middle.state1, shown[1:3] + shown[2:4])
    zero = keras.tree.map_structure(lambda leaf: 0 * leaf, shown[5])
    assert_same_structure_and_values(first.state0 + first.state1, [zero, *shown[5:6], *shown[5:7]])


# Under an agent --------------------------------------------------------------------------------


class Count(gymnasium.Env):
    """Shows how many steps the episode has had; ends after `length`."""

    observation_space, action_space = Box(0, np.inf, (1,)), Discrete(2)

    def __init__(self, length=NEVER):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.n = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.n += 1
        return np.full(1, self.n, np.float32), float(self.n), self.n >= self.length, False, {}


def acting(memory, **options):
    """A DQN that stores and acts, and never learns."""
    model = keras.Sequential(
        [
            keras.Input((memory.window_length, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    options = {"batch_size": 4, "nb_steps_warmup": NEVER, "seed": 1, **options}
    agent = DQNAgent(model, nb_actions=2, memory=memory, **options)
    agent.compile("sgd")
    return agent


@pytest.fixture(scope="module")
def pool_of_17():
    """An agent whose pool is overwritten three times by each test; one compilation for both."""
    return acting(DeviceMemory(17))


def test_a_cut_episode_keeps_its_last_observation(pool_of_17):
    # observation = step counter 0..5, cut after 5 steps, a limit that no number of episodes fills
    pool_of_17.fit(TimeLimit(Count(), 5), 3 * 17, verbose=0)
    batch = pool_of_17.memory.read_batch(64)
    shown = batch["observation"]["observation"].ravel()
    np.testing.assert_array_equal(batch["next_observation"]["observation"].ravel(), shown + 1)
    assert set(shown) == {0, 1, 2, 3, 4}  # the cut step too
    np.testing.assert_allclose(batch["discount"], 0.99)
    assert not batch["terminated"].any()


def test_memory_interval_spares_starts_not_steps(pool_of_17):
    # keras-rl stores every fourth step and takes neighbours for consecutive ones
    pool_of_17.memory_interval = 4
    pool_of_17.fit(Count(6), 48, verbose=0)
    assert pool_of_17.memory.nb_entries == 17
    batch = pool_of_17.memory.read_batch(64)
    shown = batch["observation"]["observation"].ravel()
    np.testing.assert_array_equal(batch["next_observation"]["observation"].ravel(), shown + 1)
    np.testing.assert_array_equal(batch["reward"], shown + 1)
    np.testing.assert_array_equal(batch["terminated"], shown == 5)
    # the last 15 steps are there; of a run whose episodes take 6, steps 36, 40 and 44 show 0, 4
    # and 2, and every episode's last one may start as well
    assert set(shown) == {0, 2, 4, 5}


# Taken over ------------------------------------------------------------------------------------


def assert_answers_from_the_pool(handed, agent):
    assert isinstance(handed, SequentialMemory)
    assert isinstance(agent.memory, DeviceMemory)
    assert handed.nb_entries == agent.memory.nb_entries == len(handed.observations)
    assert len(handed.actions) == len(handed.rewards) == len(handed.terminals)
    np.testing.assert_array_equal(handed.observations, agent.memory.observations)
    assert handed.get_config().items() <= agent.memory.get_config().items()


def test_an_empty_sequential_memory_is_taken_over():
    handed = SequentialMemory(limit=40, window_length=2)
    agent = acting(handed)
    assert (agent.memory.limit, agent.memory.window_length) == (40, 2)
    assert_answers_from_the_pool(handed, agent)
    agent.fit(Count(3), 5, verbose=0)
    assert handed.nb_entries == 6
    assert [int(shown[0]) for shown in handed.observations] == [0, 1, 2, 3, 0, 1]
    assert list(handed.terminals) == [False, False, True, False, False, False]
    handed.append(np.float32([2]), 1, 0.5, True)
    assert agent.memory.nb_entries == 7
    assert (handed.actions[-1], handed.rewards[-1], handed.terminals[-1]) == (1, 0.5, True)
    assert [float(seen[0]) for seen in handed.get_recent_state(np.float32([3]))] == [2, 3]


@pytest.mark.parametrize(
    "lengths, window", [([4, 3, 6], 1), ([4, 3, 6, 2, 7, 1, 3], 3)], ids=["part", "full"]
)
def test_a_filled_sequential_memory_is_taken_over(lengths, window):
    observe = counting((1,))
    handed = filled(SequentialMemory(limit=20, window_length=window), lengths, observe)
    for _ in range(2):  # an episode is open
        handed.append(observe(), 1, 0.5, False)
    before = copy.deepcopy(handed)
    rows = can_start(before)
    asked = [rows[index % len(rows)] for index in range(20)]
    agent = acting(handed)
    assert_answers_from_the_pool(handed, agent)
    assert_same_experiences(handed.sample(20, asked), before.sample(20, asked))
    np.testing.assert_array_equal(handed.observations, before.observations)
    np.testing.assert_array_equal(handed.terminals, before.terminals)
    # where the deque is full, its oldest row is an episode's last observation: nothing follows it,
    # and no stack may reach back to it
    oldest = float(before.observations[0][0])
    drawn = [one for _ in range(10) for one in handed.sample(20)]
    shown = {float(frame[0]) for one in drawn for frame in one.state0}
    assert (oldest in shown) == (len(before.observations) < 20)
    now = observe()
    np.testing.assert_array_equal(handed.get_recent_state(now), before.get_recent_state(now))
    for memory in (handed, before):
        filled(memory, [3, 2], counting((1,), start=100))
    rows = can_start(before)
    asked = [rows[index % len(rows)] for index in range(20)]
    assert_same_experiences(handed.sample(20, asked), before.sample(20, asked))


def test_a_memory_that_was_taken_over_serves_the_next_agent_as_well():
    handed = SequentialMemory(limit=40, window_length=1)
    first, second = acting(handed), acting(handed)
    assert second.on_pool
    assert second.memory is first.memory


def test_a_memory_class_of_the_users_own_keeps_its_mind():
    class Mine(SequentialMemory):
        pass

    agent = acting(Mine(limit=40, window_length=1))
    assert type(agent.memory) is Mine
    assert not agent.on_pool


def test_a_pool_serves_agents_of_one_kind_of_action_only():
    memory = DeviceMemory(40)
    memory.bind(Field("float32", (3,)))
    memory.append(np.zeros(1, np.float32), np.zeros(3), 0.0, False)
    with pytest.raises(ArgumentError, match="DeviceMemory of its own"):
        acting(memory)


# Copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [pickle.dumps, copy.deepcopy, copy.copy])
def test_a_pool_is_not_pickled_or_copied_by_accident(copies):
    for memory in (DeviceMemory(10), filled(DeviceMemory(10), [2])):
        with pytest.raises(TypeError, match=r"agent\.save\(path\)"):
            copies(memory)

"""The pool against the oracle: every index, every kind of episode, both ends of the ring."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Oracle, Row

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError, PoolTooLarge
from kerasrl_gpu.planning import room
from kerasrl_gpu.pool import ring, transitions, uniform
from kerasrl_gpu.pool.layout import ACTION, FLAGS, REWARD, Field, Layout
from kerasrl_gpu.wire import Wire

GAMMA = 0.5
DTYPES = ["uint8", "int8", "bool", "int16", "uint16", "int32", "uint32", "float16", "float32"]


@cache
def layout_of(dtype, shape, window, environments, capacity, cross):
    return Layout(
        leaves={"observation": Field(dtype, shape)},
        action=Field("uint8", ()),
        limit=capacity * environments,
        window=window,
        environments=environments,
        cross_episodes=cross,
    )


_COMPILED = {}


def compiled(layout, rule):
    """(wire, put, read) for a layout, compiled once."""
    key = id(layout), rule
    if key not in _COMPILED:
        _COMPILED[key] = layout, *compile_for(layout, rule)  # the layout stays, so its id does
    return _COMPILED[key][1:]


def compile_for(layout, rule):
    wire = Wire({"slot": ("int32", (1,)), "row": ("uint8", (1, layout.row_bytes))})

    def read(pool, tail, size, environment, offset):
        live = ring.Live(tail, size)
        batch = transitions.read(pool, layout, live, environment, offset, rule)
        return batch, uniform.valid(pool, layout, live, environment, offset, rule.span)

    return wire, engine.compile_put(wire.row), engine.compile_read(read)


class Pool:
    """The pool's parts put together as a memory does, one row at a time."""

    def __init__(self, layout, rule):
        self.layout, self.rule = layout, rule
        self.ring = ring.Ring(layout, rule.span)
        self.wire, self.put, self._read = compiled(layout, rule)
        self.pool = engine.zeros((layout.rows, layout.row_bytes), "uint8")
        row = self.wire.view["row"][0]
        self.new = {name: layout.view(row, name) for name in layout.fields}

    def add(self, environment, observation, action, reward, start=True, ending=0):
        slot, flags = self.ring.claim(environment, start=start, ending=ending)
        self.wire.view["slot"][0] = slot
        self.new["leaf/observation"][...], self.new[ACTION][...] = observation, action
        self.new[REWARD][...], self.new[FLAGS][...] = reward, flags
        self.pool = self.put(self.pool, self.wire)
        return flags

    def read_all(self, environment):
        """(batch, valid) of every live row of an environment, padded to the capacity."""
        live = self.ring.live()
        size = int(live.size[environment])
        offset = np.minimum(np.arange(self.layout.capacity), max(size - 1, 0)).astype(np.int32)
        chosen = np.full(len(offset), environment, np.int32)
        batch, valid = self._read(self.pool, live.tail, live.size, chosen, offset)
        host = {
            key: engine.to_host(value["observation"] if isinstance(value, dict) else value)[:size]
            for key, value in batch.items()
        }
        return host, engine.to_host(valid)[:size]


def play(pool, oracle, environment, length, ending, seed, starts=lambda step: True):
    """One episode into both; `ending` is a flag, or None for an episode that stays open."""
    random = np.random.default_rng(seed)
    leaf = pool.layout.leaves["observation"]

    def observe():
        return random.integers(0, 100, leaf.shape).astype(leaf.dtype)

    for step in range(length):
        last = step == length - 1 and ending is not None
        observation, action, reward = observe(), int(random.integers(4)), float(random.normal())
        reward = float(np.float32(reward))
        start = starts(step) or last
        pool.add(environment, observation, action, reward, start, ending if last else 0)
        row = Row(observation, action, reward, first=step == 0, start=start)
        oracle.add(row)
    if ending is not None:
        observation = observe()
        pool.add(environment, observation, 0, 0.0)
        terminated = bool(ending & ring.TERMINATED)
        oracle.add(Row(observation, 0, 0.0, first=False, final=True, terminated=terminated))


def assert_same(pool, oracle, environment):
    batch, valid = pool.read_all(environment)
    n, bootstrap = pool.rule.span, pool.rule.bootstrap_truncated
    want = [oracle.is_valid(index, n) for index in range(len(oracle.rows))]
    np.testing.assert_array_equal(valid, want)
    for index in np.flatnonzero(valid):
        expected = oracle.transition(index, n, GAMMA, bootstrap)
        for key, value in expected.items():
            got = batch[key][index]
            assert np.asarray(got).dtype != np.float64
            np.testing.assert_allclose(
                np.asarray(got, np.float64),
                np.asarray(value, np.float64),
                rtol=1e-5,
                atol=1e-5,
                err_msg=f"{key} of row {index}",
            )


episodes = st.lists(
    st.tuples(
        st.integers(0, 1),  # environment
        st.integers(1, 7),  # length
        st.sampled_from([ring.TERMINATED, ring.TRUNCATED]),
        st.integers(0, 2**16),
    ),
    min_size=1,
    max_size=6,
)
# few layouts and rules, so that each compiles once; many histories
cases = st.sampled_from(
    [
        ("uint8", (2,), 1, 1, 1, False, True),
        ("uint8", (2, 2), 4, 1, 2, False, True),
        ("float32", (3,), 1, 3, 2, False, True),
        ("int32", (), 3, 2, 1, False, False),
        ("float32", (2,), 2, 5, 1, False, True),
        ("bool", (2,), 3, 1, 1, True, True),
    ]
)


@given(case=cases, history=episodes, open_steps=st.integers(0, 3), interval=st.integers(1, 3))
def test_every_row_reads_as_the_oracle_says(case, history, open_steps, interval):
    dtype, shape, window, n, environments, cross, bootstrap = case
    layout = layout_of(dtype, shape, window, environments, 13, cross)
    pool = Pool(layout, transitions.Rule(n, GAMMA, bootstrap))
    oracles = [Oracle(13, window, cross) for _ in range(environments)]
    for environment, length, ending, seed in history:
        environment %= environments
        starts = lambda step: step % interval == 0  # noqa: E731
        play(pool, oracles[environment], environment, length, ending, seed, starts)
    play(pool, oracles[0], 0, open_steps, None, 7)
    for environment, oracle in enumerate(oracles):
        assert_same(pool, oracle, environment)
    anywhere = any(o.is_valid(i, n) for o in oracles for i in range(len(o.rows)))
    assert pool.ring.has_start() == anywhere


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_as_it_went_in(dtype):
    layout = layout_of(dtype, (3,), 2, 1, 13, False)
    pool = Pool(layout, transitions.Rule(1, GAMMA))
    oracle = Oracle(13, 2)
    for seed in range(4):
        play(pool, oracle, 0, 5, ring.TERMINATED, seed)
    assert_same(pool, oracle, 0)
    assert pool.read_all(0)[0]["observation"].dtype == dtype


def test_negative_and_large_integers_keep_every_bit():
    layout = layout_of("int32", (), 1, 1, 13, False)
    pool = Pool(layout, transitions.Rule(1, GAMMA))
    values = [-(2**31), -1, 0, 2**31 - 1]
    for value in values:
        pool.add(0, value, 0, 0.0)
    np.testing.assert_array_equal(pool.read_all(0)[0]["observation"][:3, 0], values[:3])


def test_a_cut_episode_keeps_its_last_observation():
    # FIELD's case: observation = step counter 0..5, cut after 5 steps, a limit that does not fit
    # whole episodes, filled three times over: the next observation is always one more
    layout = layout_of("float32", (), 1, 1, 17, False)
    pool = Pool(layout, transitions.Rule(1, GAMMA))
    for _ in range(9):
        for step in range(5):
            pool.add(0, step, 0, 1.0, ending=ring.TRUNCATED if step == 4 else 0)
        pool.add(0, 5, 0, 0.0)
    batch, valid = pool.read_all(0)
    assert valid.sum() == 14  # 17 rows, of which 3 are final observations
    np.testing.assert_array_equal(batch["next_observation"][valid], batch["observation"][valid] + 1)
    np.testing.assert_allclose(batch["discount"][valid], GAMMA)


@cache
def sampler(window, n, capacity, batch_size):
    """(layout, draw): compiled once for all histories."""
    layout = layout_of("uint8", (), window, 1, capacity, False)

    def draw(pool, tail, size, number):
        live = ring.Live(tail, size)
        return uniform.sample(pool, layout, live, np.uint32(5), number, batch_size, n)

    return layout, engine.compile_read(draw)


def chi_square(lengths, window, n, capacity, batch_size=4096, draws=8):
    """Draws against uniform over the oracle's valid rows: (statistic, degrees of freedom)."""
    layout, draw = sampler(window, n, capacity, batch_size)
    pool, oracle = Pool(layout, transitions.Rule(n, GAMMA)), Oracle(capacity, window)
    for seed, length in enumerate(lengths):
        play(pool, oracle, 0, length, ring.TERMINATED, seed)
    live, counts = pool.ring.live(), np.zeros(capacity)
    for number in range(draws):
        _, offset = draw(pool.pool, live.tail, live.size, np.uint32(number))
        counts += np.bincount(engine.to_host(offset), minlength=capacity)
    valid = np.array([oracle.is_valid(i, n) for i in range(len(oracle.rows))])
    assert counts[: len(valid)][~valid].sum() == 0
    expected = batch_size * draws / valid.sum()
    got = counts[: len(valid)][valid]
    return ((got - expected) ** 2 / expected).sum(), valid.sum() - 1


@pytest.mark.parametrize(
    "lengths", [[1] * 60, [2] * 40, [3] * 33, [500], [1, 40, 2, 3, 1, 1, 30]], ids=str
)
@pytest.mark.parametrize("window, n", [(1, 1), (4, 1), (1, 3), (4, 3)])
def test_draws_are_uniform_over_valid_rows(lengths, window, n):
    statistic, freedom = chi_square(lengths, window, n, capacity=97)
    # mean `freedom`, variance 2 * freedom: five standard deviations
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)


def test_draws_end_where_valid_rows_are_rare():
    layout, draw = sampler(1, 1, 997, 64)
    pool = Pool(layout, transitions.Rule(1, GAMMA))
    for step in range(990):
        pool.add(0, step % 100, 0, 0.0, start=step == 700)
    live = pool.ring.live()
    _, offset = draw(pool.pool, live.tail, live.size, np.uint32(0))
    np.testing.assert_array_equal(engine.to_host(offset), 700)


@settings(max_examples=100)
@given(
    limit=st.integers(4, 9),
    endings=st.lists(st.booleans(), max_size=30),
    window=st.integers(1, 3),
)
def test_ring_holds_exactly_the_newest_rows(limit, endings, window):
    layout = layout_of("uint8", (), window, 1, limit + window, False)
    rows = ring.Ring(layout)
    slots = [rows.claim(ending=ring.TERMINATED if end else 0)[0] for end in endings]
    assert slots == [position % layout.capacity for position in range(len(endings))]
    assert len(rows) == min(len(endings), layout.capacity)
    live = rows.live()
    assert live.tail[0] == max(0, len(endings) - layout.capacity) % layout.capacity


def test_a_pool_that_does_not_fit_is_refused_with_the_limit_that_does():
    # 100 rows of 22 B are 2,200 B; 1,100 B hold 50
    with pytest.raises(PoolTooLarge, match="Pass limit=50 or less"):
        room.check_limit(100, 22, 3, 1_100, room.Beside())
    room.check_limit(50, 22, 3, 1_100, room.Beside())


def test_bytes_a_transition_are_what_the_design_promises():
    # 84 * 84 + 1 + 4 + 1 = 7,062 at any window; 17 * 4 + 6 * 4 + 4 + 1 = 97
    frames = layout_of("uint8", (84, 84), 4, 1, 100, False)
    assert frames.row_bytes == 7_062
    floats = Layout(
        leaves={"observation": Field("float32", (17,))},
        action=Field("float32", (6,)),
        limit=100,
    )
    assert (floats.row_bytes, floats.nbytes) == (97, 9_700)


def test_a_limit_below_the_window_is_refused():
    with pytest.raises(ArgumentError, match="Pass limit=6 or more"):
        layout_of("uint8", (), 4, 1, 5, False)
    with pytest.raises(ArgumentError, match="3-step returns"):
        ring.Ring(layout_of("uint8", (), 1, 1, 4, False), span=3)

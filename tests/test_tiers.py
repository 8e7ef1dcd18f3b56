"""A pool on several tiers against the same pool in one piece: rows, draws, batches, failures."""

import errno
import resource
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.pool import ring, transitions, uniform
from kerasrl_gpu.pool.layout import Field, Layout
from kerasrl_gpu.pool.reader import Reader
from kerasrl_gpu.pool.tiers import DEVICE, FILE, HOST, Tiers, check_tier, unstage
from kerasrl_gpu.wire import Wire

ROWS = 37  # 3 rows a segment, 13 segments, one row in the last
SEGMENTS = 13
BATCH = 8
TIERS = (DEVICE, HOST, FILE)


@cache
def layout_of(window, limit=ROWS, leaf=(2,)):
    return Layout(
        leaves={"observation": Field("uint8", leaf)},
        action=Field("uint8", ()),
        limit=limit,
        window=window,
    )


@contextmanager
def device_apart():
    """The device's memory is another than the host's, as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "on_cpu", lambda: False)
        yield


@contextmanager
def files_up_to(nbytes):
    """The disk refuses what would make a file larger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Twins:
    """One pool three times: in NumPy, in one piece on the device, and on tiers."""

    def __init__(self, window, span):
        self.layout = layout_of(window)
        self.rule = transitions.Rule(span, 0.5)
        self.tiers, self.reader = Tiers(self.layout), Reader(self.layout)
        self.wire = Wire({"slot": ("int32", (1,)), "row": ("uint8", (1, self.layout.row_bytes))})
        self._fill = engine.compile_fill()
        self._pool = engine.zeros((ROWS, self.layout.row_bytes), "uint8")
        self._places = engine.compile_read(self._draw)
        self._unstage = engine.compile_read(
            lambda staged, index: unstage(staged, self.layout, BATCH, span, index)
        )

    def begin(self):
        """An empty pool, whatever lies where."""
        self.ring = ring.Ring(self.layout, self.rule.span)
        self.random = np.random.default_rng(6)
        self.rows = np.zeros((ROWS, self.layout.row_bytes), np.uint8)
        self.tiers.take(0, self.rows)

    def write(self, count, ending):
        """So many steps; `ending` is a flag of the last one, or 0."""
        for step in range(count + bool(ending)):
            slot, flags = self.ring.claim(ending=ending if step == count - 1 else 0)
            row = self.random.integers(0, 256, self.layout.row_bytes).astype(np.uint8)
            self.layout.view(row, "reward")[...] = self.random.normal()
            row[self.layout.flags_place] = flags
            self.rows[slot] = row
            self.wire.view["slot"][0], self.wire.view["row"][...] = slot, row
            self.tiers.put(self.wire)
            self.wire.view["row"][...] = 255  # the next one is written while the device reads this

    def whole(self):
        """u8[N, row bytes] in one piece on the device."""
        self._pool = self._fill(self._pool, 0, self.rows.copy())
        return self._pool

    def places(self, counters):
        """The slots that the whole pool's batch is read from, i32[B, k + n]."""
        live = self.ring.live()
        seed, draw = (np.uint32(counter % 2**32) for counter in counters)
        return engine.to_host(self._places(self.whole(), live.tail, live.size, seed, draw))

    def _draw(self, pool, tail, size, seed, draw):
        live, span = ring.Live(tail, size), self.rule.span
        starts = uniform.sample(pool, self.layout, live, seed, draw, BATCH, span)
        return transitions.places(self.layout, live, *starts, span)

    def batches(self, counters, offsets=None):
        """The same draw from the whole pool and from the tiers, on the host."""
        offsets = np.full(BATCH, -1) if offsets is None else offsets
        arguments = self.ring.live(), counters, offsets, self.rule
        both = self.reader(self.whole(), *arguments), self.reader.from_tiers(self.tiers, *arguments)
        return [{key: on_host(value) for key, value in batch.items()} for batch in both]

    def staged(self, slots):
        """u8[K, B, k + n, row bytes] as a compiled call gets them."""
        staged = self.tiers.stage(slots)
        every = [
            engine.to_host(self._unstage(staged, np.array([index], np.int32)))
            for index in range(len(slots))
        ]
        return np.stack(every)


def on_host(value):
    return engine.to_host(value["observation"] if isinstance(value, dict) else value)


@cache
def twins(window, span=1):
    """Compiled once for all histories."""
    return Twins(window, span)


def every_slot():
    return np.arange(ROWS, dtype=np.int32)


moves = st.tuples(st.just("move"), st.integers(0, SEGMENTS - 1), st.sampled_from(TIERS))
writes = st.tuples(
    st.just("write"), st.integers(1, 30), st.sampled_from([0, ring.TERMINATED, ring.TRUNCATED])
)


# Laws ---------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    case=st.sampled_from([(1, 1), (3, 2)]),
    apart=st.booleans(),
    placed=st.lists(st.sampled_from(TIERS), min_size=SEGMENTS, max_size=SEGMENTS),
    history=st.lists(st.one_of(moves, writes), max_size=12),
    counters=st.tuples(st.integers(-(2**31), 2**33), st.integers(0, 2**33)),
)
def test_wherever_rows_lie_the_same_draws_give_the_same_batches(
    case, apart, placed, history, counters
):
    one = twins(*case)
    with device_apart() if apart else pytest.MonkeyPatch.context():
        one.begin()
        for index, tier in enumerate(placed):
            one.tiers.move(index, tier)
        for what, *arguments in [*history, ("write", 6, ring.TERMINATED)]:
            one.tiers.move(*arguments) if what == "move" else one.write(*arguments)
        np.testing.assert_array_equal(one.tiers.read(every_slot()), one.rows)
        np.testing.assert_equal(*one.batches(counters))


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_a_spilled_pool_draws_what_a_whole_one_does(window):
    one = twins(window)
    one.begin()
    for ending in (ring.TERMINATED, 0, ring.TRUNCATED):
        one.write(17, ending)  # around the ring, and one episode more
    for index in range(SEGMENTS):
        one.tiers.move(index, TIERS[index % 3])
    drawn = set()
    for draw in range(60):
        slots = one.tiers.draw(one.ring.live(), (9, draw), BATCH, 1)
        np.testing.assert_array_equal(slots, one.places((9, draw)))
        drawn.update(slots[:, window - 1].tolist())
    starts = np.flatnonzero(one.rows[:, one.layout.flags_place] & ring.FINAL == 0)
    assert drawn <= set(starts)
    assert len(drawn) > 0.8 * len(starts)


def test_given_starts_are_read_and_others_drawn():
    one = twins(2)
    one.begin()
    one.write(20, 0)
    asked = np.array([3, -1, 19, 7, 0, 500, 3, 18])  # 19 has no next observation, 500 is no row
    whole, spilled = one.batches((1, 2), asked)
    np.testing.assert_equal(spilled, whole)
    seen = one.layout.unpack(one.rows)["leaf/observation"]
    for place, start in ((0, 3), (3, 7), (4, 0), (6, 3), (7, 18)):
        np.testing.assert_array_equal(spilled["observation"][place, -1], seen[start])


@given(
    placed=st.lists(st.sampled_from(TIERS), min_size=SEGMENTS, max_size=SEGMENTS),
    again=st.lists(st.sampled_from(TIERS), min_size=SEGMENTS, max_size=SEGMENTS),
)
def test_the_tiers_bytes_add_up_and_a_move_says_how_many_went(placed, again):
    one = twins(1)
    one.begin()
    row_bytes = one.layout.row_bytes  # 2 + 1 + 4 + 1
    for index, tier in enumerate(placed):
        one.tiers.move(index, tier)
    for index, (before, tier) in enumerate(zip(placed, again)):
        rows = 1 if index == SEGMENTS - 1 else 3
        assert one.tiers.move(index, tier) == (0 if tier == before else rows * row_bytes)
    assert one.tiers.segments == again
    assert sum(one.tiers.tier_bytes.values()) == ROWS * row_bytes == one.layout.nbytes
    for tier in TIERS:
        full = again[:-1].count(tier) * 3 + (again[-1] == tier)
        assert one.tiers.tier_bytes[tier] == full * row_bytes


@settings(max_examples=10)
@given(data=st.data(), updates=st.integers(1, 2))
def test_staged_batches_are_the_rows_of_their_slots(data, updates):
    one = twins(3)
    one.begin()
    one.write(36, 0)
    count = updates * BATCH * 4
    slots = data.draw(st.lists(st.integers(0, ROWS - 1), min_size=count, max_size=count))
    slots = np.array(slots, np.int32).reshape(updates, BATCH, 4)
    np.testing.assert_array_equal(one.staged(slots), one.rows[slots])


@given(first=st.integers(0, ROWS - 1), data=st.data())
def test_rows_are_taken_across_segments(first, data):
    count = data.draw(st.sampled_from([n for n in (1, 5, 12) if first + n <= ROWS]))
    one = twins(1)
    one.begin()
    for index in range(SEGMENTS):
        one.tiers.move(index, TIERS[index % 3])
    rows = np.random.default_rng(first).integers(0, 256, (count, one.layout.row_bytes))
    one.rows[first : first + count] = rows
    one.tiers.take(first, rows.astype(np.uint8))
    np.testing.assert_array_equal(one.tiers.read(every_slot()), one.rows)


# Geometry -----------------------------------------------------------------------------------------


def test_segments_begin_with_that_of_the_oldest_row():
    # slots 9, 10 and 11 are the fourth segment
    assert Tiers(layout_of(1)).oldest_first(10) == [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 2]
    assert Tiers(layout_of(1)).oldest_first(0) == list(range(SEGMENTS))
    # 5 rows are 5 segments
    assert Tiers(layout_of(1, limit=5)).oldest_first(4) == [4, 0, 1, 2, 3]


def test_parts_take_16_mib_at_most_and_are_all_rows():
    # rows of 6 MiB + 6 B: two are less than 16 MiB; 40 rows are segments of 3
    parts = Tiers(layout_of(1, limit=40, leaf=(6 * 2**20,))).parts()
    assert parts == [(start, start + 2) for start in range(0, 40, 2)]
    # a row of more than that is a part by itself
    assert Tiers(layout_of(1, limit=4, leaf=(2**25,))).parts() == [(n, n + 1) for n in range(4)]
    # and small ones go a segment at a time
    assert Tiers(layout_of(1)).parts()[0] == (0, 3)
    assert Tiers(layout_of(1)).parts()[-1] == (36, 37)


def test_only_the_host_and_a_file_are_spilled_to():
    assert [check_tier(tier) for tier in (HOST, FILE)] == [HOST, FILE]
    with pytest.raises(ArgumentError, match="spilled to 'host' or 'file', not to 'disk'"):
        check_tier("disk")


# The file -----------------------------------------------------------------------------------------


def filled(folder, leaf=(4_000,)):
    """(tiers with all rows in the file, the rows): 4,006 B each, 148,222 B in all."""
    tiers = Tiers(layout_of(1, leaf=leaf), folder)
    rows = np.random.default_rng(3).integers(0, 256, (ROWS, tiers.layout.row_bytes))
    tiers.take(0, rows.astype(np.uint8))
    return tiers, rows.astype(np.uint8)


def row_in_a_wire(layout, slot):
    wire = Wire({"slot": ("int32", (1,)), "row": ("uint8", (1, layout.row_bytes))})
    wire.view["slot"][0], wire.view["row"][...] = slot, 7
    return wire


def test_the_file_has_no_name(tmp_path):
    tiers, rows = filled(tmp_path)
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(tiers.read(every_slot()), rows)


def test_a_disk_without_room_for_all_rows_says_so_before_any_is_written(tmp_path):
    tiers = Tiers(layout_of(1, leaf=(4_000,)), tmp_path)
    one_row = np.ones((1, tiers.layout.row_bytes), np.uint8)
    with files_up_to(100_000):
        for _ in range(2):  # the first try leaves nothing that the second takes for a file
            with pytest.raises(OSError, match="File too large"):
                tiers.take(0, one_row)
    tiers.take(0, one_row)
    np.testing.assert_array_equal(tiers.read(np.arange(2)), [one_row[0], 0 * one_row[0]])


@pytest.mark.parametrize("lacks", ["posix_fallocate", "support"])
def test_where_room_cannot_be_set_aside_it_is_taken_as_it_comes(tmp_path, monkeypatch, lacks):
    def refuse(*arguments):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    if lacks == "posix_fallocate":
        monkeypatch.delattr("os.posix_fallocate")
    else:
        monkeypatch.setattr("os.posix_fallocate", refuse)
    tiers = Tiers(layout_of(1), tmp_path)
    rows = np.full((5, tiers.layout.row_bytes), 9, np.uint8)
    tiers.take(10, rows)
    expected = np.zeros((ROWS, tiers.layout.row_bytes), np.uint8)
    expected[10:15] = rows
    np.testing.assert_array_equal(tiers.read(every_slot()), expected)  # those beyond its end, too


def test_a_move_that_the_disk_refuses_leaves_the_segment_where_it_was(tmp_path):
    tiers, rows = filled(tmp_path)
    for index in (2, 11):
        tiers.move(index, HOST)
    tiers.take(33, rows[:3])  # what lies in the file of segment 11 is old now
    rows[33:36] = rows[:3]
    with files_up_to(100_000):  # segment 11 lies from byte 132,198 on
        tiers.move(2, FILE)
        with pytest.raises(OSError, match="File too large"):
            tiers.move(11, FILE)
    assert tiers.segments == [FILE] * 11 + [HOST, FILE]
    np.testing.assert_array_equal(tiers.read(every_slot()), rows)


def test_a_row_that_the_disk_refuses_takes_its_segment_into_memory(tmp_path):
    tiers, rows = filled(tmp_path)
    with files_up_to(100_000):
        tiers.put(row_in_a_wire(tiers.layout, 5))  # at 20,030 it has its place
        assert tiers.tier_bytes[HOST] == 0
        with pytest.warns(UserWarning, match="File too large.*12_018 B of it are in the host's"):
            tiers.put(row_in_a_wire(tiers.layout, 34))
        tiers.put(row_in_a_wire(tiers.layout, 35))  # its neighbour finds it there
    rows[[5, 34, 35]] = 7
    assert tiers.segments == [FILE] * 11 + [HOST, FILE]
    np.testing.assert_array_equal(tiers.read(every_slot()), rows)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        filled(tmp_path / "missing")


def test_a_file_is_closed_with_its_pool(tmp_path):
    tiers, _ = filled(tmp_path)
    file = tiers._file
    del tiers
    assert file.closed

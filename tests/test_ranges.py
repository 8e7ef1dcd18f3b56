"""Ranges: the rows of a pool cut up for a checkpoint, and rings that go on in another capacity."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasrl_gpu.pool import ranges
from kerasrl_gpu.pool.layout import Field, Layout
from kerasrl_gpu.pool.ring import FINAL, FIRST, NOT_A_START, TERMINATED, TRUNCATED, Ring

MIB = 2**20


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch):
    """A pool of a few rows has several ranges: at least 2 rows each, at most 7 of them."""
    monkeypatch.setattr(ranges, "_PARTS", 7)
    monkeypatch.setattr(ranges, "_LEAST_ROWS", 2)


# How long a range is ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "capacity, row_bytes, rows",
    [
        (1_000_000, 10, 15_625),  # a 64th, 156 kB
        (1_000_001, 10, 15_626),  # rounded up: 64 ranges, not 65
        (10_000, 10, 1_024),  # a 64th would be 157 rows
        (50, 10, 1_024),  # one range holds all
        (1_000_000, 7_062, 2_375),  # 16 MiB of Atari frames, where a 64th is 110 MB
        (1_000, 17 * MIB, 1),  # no row is cut
    ],
)
def test_a_range_is_a_64th_within_limits(monkeypatch, capacity, row_bytes, rows):
    monkeypatch.undo()
    assert ranges.length(capacity, row_bytes) == rows


@given(capacity=st.integers(1, 10**8), row_bytes=st.integers(1, 2**26))
def test_a_range_is_neither_large_nor_one_of_very_many(capacity, row_bytes):
    rows = ranges.length(capacity, row_bytes)
    assert rows >= 1
    assert rows == 1 or rows * row_bytes <= 16 * MIB
    held_back = (rows + 1) * row_bytes > 16 * MIB
    assert held_back or -(-capacity // rows) <= 7


# Which rows ------------------------------------------------------------------------------------


def slots_of(part):
    return {(part.environment, slot) for slot in range(part.start, part.stop)}


@given(capacity=st.integers(1, 40), heads=st.lists(st.integers(0, 90), min_size=1, max_size=3))
def test_ranges_tile_the_slots_that_were_ever_written(capacity, heads):
    ever = {(e, position % capacity) for e, head in enumerate(heads) for position in range(head)}
    parts = ranges.written(capacity, 10, heads)
    found = [slot for part in parts for slot in slots_of(part)]
    assert len(found) == len(set(found))
    assert set(found) == ever
    assert all(part.stop - part.start <= ranges.length(capacity, 10) for part in parts)


@given(capacity=st.integers(1, 40), heads=st.lists(st.integers(0, 90), min_size=1, max_size=3))
def test_a_name_is_the_same_for_the_same_place(capacity, heads):
    full = ranges.written(capacity, 10, [capacity] * len(heads))
    place = {part.name: (part.environment, part.start) for part in full}
    assert len(place) == len(full)
    for part in ranges.written(capacity, 10, heads):
        assert place[part.name] == (part.environment, part.start)


@settings(max_examples=200)
@given(capacity=st.integers(1, 40), since=st.integers(0, 90), more=st.integers(0, 90))
def test_a_range_has_changed_where_one_of_its_slots_was_written_since(capacity, since, more):
    written_at = {position % capacity: position for position in range(since)}
    if since:
        written_at[(since - 1) % capacity] = since  # an episode that is closed writes it again
    written_at |= {p % capacity: p for p in range(since, since + more)}
    for part in ranges.written(capacity, 10, [since + more]):
        newest = max(written_at[slot] for _, slot in slots_of(part))
        assert ranges.changed(part, capacity, since + more, since) == (newest >= since)


def test_what_changed_of_a_ring_that_wrapped():
    # capacity 12, ranges of 2; at 14 the head stood at slot 2, its newest row was slot 1.
    # Up to 17 slots 2, 3, 4 are written: ranges 0 (slot 1), 1 and 2 changed, 3 to 5 did not.
    parts = ranges.written(12, 10, [17])
    assert [ranges.changed(part, 12, 17, 14) for part in parts] == [True] * 3 + [False] * 3
    # up to 25 the whole ring, slot 1 included, went by
    assert all(ranges.changed(part, 12, 25, 14) for part in parts)


@given(st.lists(st.integers(0, 12), max_size=20))
def test_runs_are_the_longest_pieces_that_count_up_by_one(slots):
    found = ranges.runs(np.array(slots, int))
    assert [slot for start, stop in found for slot in slots[start:stop]] == slots
    for start, stop in found:
        assert slots[start:stop] == list(range(slots[start], slots[start] + stop - start))
    for (_, stop), (start, _) in pairwise(found):
        assert stop == start
        assert slots[start] != slots[stop - 1] + 1


# Rings in another capacity ---------------------------------------------------------------------


def ring_of(capacity, window, span, crossing):
    leaves = {"observation": Field("float32", ())}
    layout = Layout(leaves, Field("uint8", ()), capacity, window, cross_episodes=crossing)
    return Ring(layout, span)


# What may happen between two rows, as `DeviceMemory` calls it.
EVENTS = st.one_of(
    st.tuples(st.just("row"), st.booleans(), st.sampled_from([0, 0, 0, 0, TERMINATED, TRUNCATED])),
    st.tuples(st.just("rows that are no starts"), st.integers(2, 9)),
    st.tuples(st.just("close"), st.booleans()),
)


def play(ring, event, flags):
    """Let one thing happen; `flags` is the list of every row's flags that the ring gave out."""
    if event[0] == "row":
        flags.append(ring.claim(start=event[1], ending=event[2])[1])
    elif event[0] == "rows that are no starts":
        flags.extend(ring.claim(start=False)[1] for _ in range(event[1]))
    elif ring.is_open() and ring.heads[0]:
        if event[1]:  # the last observation is known
            ring.close()
            flags.append(ring.claim()[1])
        elif not ring.endings[0]:
            ring.end_at_newest()
            flags[-1] |= TRUNCATED | FINAL


def can_start(rows, index, window, span, crossing):
    """Whether a transition can start in row `index` of these flags, oldest first."""
    if rows[index] & (FINAL | NOT_A_START):
        return False
    after = rows[index + 1 : index + 1 + span]
    if len(after) < span and not any(flags & FINAL for flags in after):
        return False
    for age in range(window - 1):
        if rows[index - age] & FIRST and not crossing:
            return True
        if index - age - 1 < 0:
            return False
    return True


def check(ring, flags, kept, window, span, crossing):
    """The ring says what it would of `kept` rows, the newest ones of `flags`."""
    assert len(ring) == kept
    assert ring.heads[0] - ring.tail() == kept
    live = ring.live()
    assert live.size.tolist() == [kept]
    assert live.tail.tolist() == [ring.tail() % ring.layout.capacity]
    rows = flags[len(flags) - kept :]
    starts = (can_start(rows, index, window, span, crossing) for index in range(kept))
    assert ring.has_start() == any(starts)


@settings(max_examples=300)  # a millisecond each
@given(
    window=st.integers(1, 3),
    span=st.integers(1, 2),
    crossing=st.booleans(),
    spare=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    before=st.lists(EVENTS, max_size=30),
    after=st.lists(EVENTS, max_size=20),
)
def test_a_ring_goes_on_with_the_newest_rows(window, span, crossing, spare, before, after):
    least, read = window + span + 1, (window, span, crossing)
    ring, flags = ring_of(least + spare[0], *read), []
    for event in before:
        play(ring, event, flags)
    check(ring, flags, min(len(flags), ring.layout.capacity), *read)

    other = ring_of(least + spare[1], *read)
    shifts = other.set_state(ring.get_state())
    kept = min(len(ring), other.layout.capacity)
    check(other, flags, kept, *read)
    if ring.layout.capacity == other.layout.capacity:
        assert shifts == [0]
        assert other.get_state() == ring.get_state()
    else:
        assert shifts == [len(flags) - kept]

    held, others = len(flags), list(flags)
    for event in after:
        play(ring, event, flags)
        play(other, event, others)
        assert others == flags  # which row comes next does not depend on the capacity
        kept_now = min(kept + len(others) - held, other.layout.capacity)
        check(other, others, kept_now, *read)
        if ring.layout.capacity == other.layout.capacity:
            assert other.get_state() == ring.get_state()

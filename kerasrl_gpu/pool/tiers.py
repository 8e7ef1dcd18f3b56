"""A pool in segments that lie on the device, in the host's memory, or in a file.

A row has the same slot wherever it lies, and draws look at flags that stay on the device, so what
is drawn does not change. The rows of a batch are gathered on the host and handed to the update,
which from there on is the one that reads a whole pool.
"""

from __future__ import annotations

import errno
import functools
import math
import os
import tempfile
import warnings
import weakref
from typing import NamedTuple

import numpy as np
from keras import ops

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.pool import ranges, transitions, uniform
from kerasrl_gpu.pool.ring import Live

DEVICE, HOST, FILE = "device", "host", "file"
_SEGMENTS = 16  # of a pool; each that lies on a device is a call of its own for every batch
_PART_BYTES = 2**24  # so much more memory does a move take


class Tiers:
    """The rows of a pool, segment by segment where they lie.

    Args:
        layout: the pool's shape.
        folder: where the file is made, which has no name and ends with the process; None takes the
            system's folder for temporary files.

    Attributes:
        length: rows of a segment; the last may have fewer.
    """

    def __init__(self, layout, folder=None):
        self.layout, self._folder, self._file = layout, folder, None
        self.length = -(-layout.rows // _SEGMENTS)
        self._part = min(self.length, max(1, _PART_BYTES // layout.row_bytes))
        self._segments = [None] * -(-layout.rows // self.length)  # None: in the file
        self._flags, self._fill = engine.zeros((layout.rows, 1), "uint8"), engine.compile_fill()
        self._staging = {}

    # Moving -------------------------------------------------------------------------------------

    @property
    def segments(self) -> list[str]:
        """The tier of each segment."""
        return [FILE if one is None else one.tier for one in self._segments]

    @property
    def tier_bytes(self) -> dict:
        """Bytes of the rows on each tier."""
        sizes = dict.fromkeys((DEVICE, HOST, FILE), 0)
        for index, tier in enumerate(self.segments):
            sizes[tier] += self.segment_bytes(index)
        return sizes

    def parts(self) -> list[tuple[int, int]]:
        """(first slot, one beyond the last) of pieces of at most 16 MiB, all rows of the pool."""
        return list(self._steps(0, self.layout.rows))

    def take(self, first: int, rows: np.ndarray) -> None:
        """Store rows u8[n, row bytes] from that slot on, wherever they belong.

        Raises:
            OSError: the file cannot be made, or its disk refuses.
        """
        for start, stop in self._pieces(first, first + len(rows)):
            self._write(start, rows[start - first : stop - first])
        place = self.layout.flags_place
        self._flags = self._fill(self._flags, first, rows[:, place : place + 1].copy())

    def move(self, index: int, tier: str) -> int:
        """Put one segment on another tier; returns its bytes, 0 where it lies there already.

        Raises:
            OSError: the file cannot be made, or its disk refuses; the segment stays where it was.
            MemoryError: there is no room; it stays, too.
        """
        if self.segments[index] == tier:
            return 0
        start, stop = self._bounds(index)
        if tier == FILE:
            for first, last in self._steps(start, stop):
                self._write_file(first, self.read(np.arange(first, last)))
            self._segments[index] = None
        else:
            holder = self._holder(tier, stop - start)
            for first, last in self._steps(start, stop):
                holder.write(first - start, self.read(np.arange(first, last)))
            self._segments[index] = holder
        return self.segment_bytes(index)

    def segment_bytes(self, index: int) -> int:
        """Bytes of its rows."""
        return self._rows(index) * self.layout.row_bytes

    def oldest_first(self, tail: int) -> list[int]:
        """Segments, beginning with that of the oldest row.

        Args:
            tail: its slot.
        """
        count, first = len(self._segments), tail // self.length
        return [(first + step) % count for step in range(count)]

    def _holder(self, tier, rows):
        shape = rows, self.layout.row_bytes
        if tier == HOST or engine.on_cpu():  # the device's memory is the host's there
            return _HostRows(np.zeros(shape, np.uint8), tier)
        return _DeviceRows(zeros(*shape), self._fill)

    # Rows ---------------------------------------------------------------------------------------

    def put(self, wire) -> None:
        """Store the row that waits in a wire.

        Where the disk refuses it, all rows of its segment are taken out of the file.
        """
        slot, row = int(wire.view["slot"][0]), wire.view["row"].copy()  # the wire is free again
        try:
            self.take(slot, row)
        except OSError as error:
            nbytes = self.move(slot // self.length, HOST)
            warnings.warn(
                f"the file with rows of the replay pool refuses to be written: {error}. {nbytes:_} "
                "B of it are in the host's memory from now on.",
                stacklevel=2,
            )
            self.take(slot, row)

    def read(self, slots: np.ndarray) -> np.ndarray:
        """u8[n, row bytes] of these slots, on the host."""
        rows = np.empty((len(slots), self.layout.row_bytes), np.uint8)
        which = slots // self.length
        for index in np.unique(which):
            mine = np.flatnonzero(which == index)
            holder = self._segments[index]
            if holder is None:
                rows[mine] = self._read_file(slots[mine])
            else:
                rows[mine] = holder.read(slots[mine] - index * self.length)
        return rows

    def _write(self, start, rows):
        holder = self._segments[start // self.length]
        if holder is None:
            self._write_file(start, rows)
        else:
            holder.write(start % self.length, rows)

    def _bounds(self, index):
        start = index * self.length
        return start, start + self._rows(index)

    def _rows(self, index) -> int:
        return min(self.length, self.layout.rows - index * self.length)

    def _pieces(self, start, stop):
        """The same slots, cut where a segment ends."""
        while start < stop:
            end = min(stop, (start // self.length + 1) * self.length)
            yield start, end
            start = end

    def _steps(self, start, stop):
        """The same slots in pieces of at most 16 MiB."""
        for first in range(start, stop, self._part):
            yield first, min(first + self._part, stop)

    # The file -----------------------------------------------------------------------------------

    def _descriptor(self) -> int:
        if self._file is None:
            # no memory map: what is mapped counts as the process' resident memory
            file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            weakref.finalize(self, file.close)
            _reserve(file.fileno(), self.layout.nbytes)
            self._file = file
        return self._file.fileno()

    def _write_file(self, first, rows):
        view, offset = memoryview(np.ascontiguousarray(rows)).cast("B"), 0
        while offset < len(view):
            at = first * self.layout.row_bytes + offset
            offset += os.pwrite(self._descriptor(), view[offset:], at)

    def _read_file(self, slots):
        row_bytes, rows = self.layout.row_bytes, np.zeros((len(slots), self.layout.row_bytes), "u1")
        for start, stop in ranges.runs(slots):
            flat, at, offset = rows[start:stop].reshape(-1), int(slots[start]) * row_bytes, 0
            # rows beyond the file's end were never written
            while read := os.pread(self._descriptor(), len(flat) - offset, at + offset):
                flat[offset : offset + len(read)] = np.frombuffer(read, np.uint8)
                offset += len(read)
        return rows

    # Batches ------------------------------------------------------------------------------------

    def draw(self, live: Live, counters, batch_size: int, span: int, offsets=None) -> np.ndarray:
        """i32[B, k + n] slots of the rows of B transitions; see `uniform.sample`.

        Args:
            live: the live rows.
            counters: (seed, draw).
            offsets: i32[B], rows after the oldest one to start from, where they can; None draws.
        """
        program = _drawing(_flags_of(self.layout), batch_size, span)
        seed, draw = (np.uint32(counter % 2**32) for counter in counters)
        offsets = np.full(batch_size, -1) if offsets is None else np.asarray(offsets)
        asked = offsets.astype(np.int32)
        return engine.to_host(program(self._flags, live.tail, live.size, seed, draw, asked))

    def stage(self, slots: np.ndarray):
        """The rows of K batches on the device, for a step's call: u8[K, B (k + n) row bytes].

        The next batches of the same size take its place.

        Args:
            slots: i32[K, B, k + n].
        """
        shape = len(slots), math.prod(slots.shape[1:]) * self.layout.row_bytes
        if shape not in self._staging:
            self._staging = {shape: engine.zeros(shape, "uint8")}
        rows = self.read(slots.reshape(-1)).reshape(shape)
        self._staging[shape] = self._fill(self._staging[shape], 0, rows)
        return self._staging[shape]


def unstage(staged, layout, batch_size: int, span: int, index):
    """u8[B, k + n, row bytes] of batch `index`, inside a compiled function."""
    rows = engine.take_rows(staged, index)
    return ops.reshape(rows, (batch_size, layout.window + span, layout.row_bytes))


def _reserve(descriptor, nbytes) -> None:
    """Set room aside: a disk that has none says so before any row is moved, not in mid-run."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot
            raise


class _HostRows:
    def __init__(self, rows, tier):
        self._rows, self.tier = rows, tier

    def read(self, places):
        return self._rows[places]

    def write(self, first, rows):
        self._rows[first : first + len(rows)] = rows


class _DeviceRows:
    tier = DEVICE

    def __init__(self, rows, fill):
        self._rows, self._fill = rows, fill

    def read(self, places):
        size = 1 << (len(places) - 1).bit_length()  # few shapes: each is compiled
        padded = np.zeros(size, np.int32)
        padded[: len(places)] = places
        return engine.to_host(engine.take_rows(self._rows, padded))[: len(places)]

    def write(self, first, rows):
        self._rows = self._fill(self._rows, first, rows)


class _Flags(NamedTuple):
    """What drawing has to know of a pool whose rows are their flags alone."""

    window: int
    capacity: int
    limit: int
    cross_episodes: bool
    flags_place: int = 0


def _flags_of(layout) -> _Flags:
    return _Flags(layout.window, layout.capacity, layout.limit, layout.cross_episodes)


@functools.cache  # the next pool that is spilled draws at once
def _drawing(flags_only, batch_size, span):
    def draw(flags, tail, size, seed, draw, offsets):
        live = Live(tail, size)
        starts = uniform.starts(flags, flags_only, live, (seed, draw), offsets, span)
        return transitions.places(flags_only, live, *starts, span)

    return engine.compile_read(draw)


def zeros(rows: int, row_bytes: int):
    """u8[rows, row bytes] on the device; raises MemoryError where that has no room."""
    try:
        return engine.zeros((rows, row_bytes), "uint8")
    except Exception as error:  # each engine has its own, of several kinds
        raise MemoryError(str(error)) from error


def check_tier(tier: str) -> str:
    """The tier; raises ArgumentError unless rows can be spilled there."""
    if tier not in (HOST, FILE):
        raise ArgumentError(f"rows are spilled to 'host' or 'file', not to {tier!r}.")
    return tier

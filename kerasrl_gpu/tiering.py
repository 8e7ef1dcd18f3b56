"""Where the rows of a `DeviceMemory` lie, and how many it has: spill, pull, resize.

The rows are one array on the device, or, after a spill, segments on several tiers. An array cannot
be freed in parts, so the first spill takes it through the file, 16 MiB at a time, and so does what
makes one array of segments again, or one of another size: no more memory is needed on the way.
"""

from __future__ import annotations

import contextlib
import gc

import numpy as np

from kerasrl_gpu import engine, probes
from kerasrl_gpu.errors import ArgumentError, SpillFailed, check_number
from kerasrl_gpu.planning import room
from kerasrl_gpu.pool import ranges
from kerasrl_gpu.pool.reader import Reader
from kerasrl_gpu.pool.ring import Ring
from kerasrl_gpu.pool.tiers import DEVICE, FILE, HOST, Tiers, check_tier, zeros


@property
def tier_bytes(memory) -> dict:
    """Bytes of the pool on each tier: {"device", "host", "file"}."""
    if memory.tiers is not None:
        return memory.tiers.tier_bytes
    return {DEVICE: memory.nbytes, HOST: 0, FILE: 0}


@property
def device_bytes(memory) -> int:
    """Bytes of the pool in the device's memory, which on a CPU is the host's."""
    tiers = memory.tier_bytes
    return tiers[DEVICE] + (tiers[HOST] if engine.on_cpu() else 0)


def spill(memory, nbytes: int, *, of=DEVICE, to: str | None = None, folder=None) -> int:
    """Move rows off the device, or from the host to a file, oldest first, by sixteenths.

    What is drawn and learned stays the same to the bit; each update takes longer.

    Args:
        nbytes: to free, at least; less where the pool has less there.
        of: "device" or "host", where they are to be freed.
        to: "host" or "file"; None takes the host's memory where that is another one and has room,
            else a file.
        folder: where the file is made; None takes the system's for temporary files, which frees
            nothing where that lies in memory itself.

    Returns:
        bytes that left it.

    Raises:
        ArgumentError: no number of bytes, or another tier.
        SpillFailed: there is no room; every row lies where it did, or in the file.
    """
    _check_nbytes(nbytes)
    to = _checked_tiers(of, to)
    memory.settle()
    if memory.ring is None or not memory.tier_bytes[of] or not nbytes:
        return 0
    to = to or _tier_for(nbytes)
    before, whole = memory.tier_bytes[of], memory.tiers is None
    tiers = _cut(memory, folder) if whole else memory.tiers
    order = [i for i in tiers.oldest_first(_tail(memory)) if whole or tiers.segments[i] == of]
    ends = np.cumsum([tiers.segment_bytes(index) for index in order])
    leaving = 1 + int(np.searchsorted(ends, nbytes))
    try:
        for index in order[:leaving]:
            tiers.move(index, to)
        if whole:
            _take_back(tiers, order[leaving:])
    except (OSError, MemoryError) as error:
        raise _failed(error, f"rows of the pool were to leave the {of}") from error
    return before - tiers.tier_bytes[of]


def pull(memory, nbytes: int | None = None) -> int:
    """Move rows back to the device, oldest first; when all are there, they are one array again.

    Args:
        nbytes: at most so many, but a sixteenth of the pool at least; None: all.

    Returns:
        bytes that came back.

    Raises:
        ArgumentError: no number of bytes.
        SpillFailed: there is no room; every row lies where it did, or in the file.
    """
    if nbytes is not None:
        _check_nbytes(nbytes)
    memory.settle()
    tiers = memory.tiers
    if tiers is None or nbytes == 0:
        return 0
    away = [i for i in tiers.oldest_first(_tail(memory)) if tiers.segments[i] != DEVICE]
    ends = np.cumsum([tiers.segment_bytes(index) for index in away])
    coming = max(1, int(np.searchsorted(ends, ends[-1] if nbytes is None else nbytes, "right")))
    try:
        if coming == len(away):
            _join(memory)
        else:
            for index in away[:coming]:
                tiers.move(index, DEVICE)
    except (OSError, MemoryError) as error:
        raise _failed(error, "rows of the pool were to come back to the device") from error
    return int(ends[coming - 1])


def resize(memory, limit: int, *, folder=None) -> None:
    """Hold so many rows from now on; where that is fewer, the newest stay.

    They go through a file and come back as one array: two pools are never held at once, and each
    update costs what it did.

    Args:
        limit: rows, final observations included.
        folder: see `spill`.

    Raises:
        ArgumentError: no number of rows that a transition fits into.
        PoolTooLarge: so many rows have no room beside the rest; nothing has changed.
        SpillFailed: there is no room for the file, and nothing has changed; or none for the pool
            after all, and every row lies in the file.
    """
    if room.checked_limit(limit, memory.window_length, None) == memory.limit:
        return
    memory.settle()
    if memory.ring is None:
        memory.limit = int(limit)
        return
    layout, was = memory.layout_of(limit), memory.ring.get_state()
    ring = Ring(layout, memory.ring.span)  # raises where a transition does not fit
    _check_room(memory, layout)
    tiers = _cut(memory, folder) if memory.tiers is None else memory.tiers
    try:
        _to_file(tiers)
        pool = zeros(layout.rows, layout.row_bytes)
    except (OSError, MemoryError) as error:
        raise _failed(error, f"the pool was to have limit={limit:_}") from error
    shifts = ring.set_state(was)
    memory.limit, memory.layout, memory.ring = layout.limit, layout, ring
    memory.pool, memory.tiers, memory.saved = pool, None, None
    for part in ranges.written(was["capacity"], layout.row_bytes, was["heads"]):
        start = part.environment * was["capacity"]
        rows = tiers.read(np.arange(start + part.start, start + part.stop))
        write_range(memory, part, rows, was, shifts[part.environment])
    _start_anew(memory, resized=True)


def write_range(memory, part, rows, was: dict, shift: int) -> None:
    """Write those rows of a former pool that are kept, each piece in one call.

    Args:
        part: `ranges.Rows`, where they stood in it.
        rows: u8[n, row bytes].
        was: what `Ring.get_state` said of it.
        shift: what `Ring.set_state` returned for its sub-ring.
    """
    capacity, environment = memory.layout.capacity, part.environment
    newest = was["heads"][environment] - 1
    slots = np.arange(part.start, part.stop)
    positions = newest - (newest - slots) % was["capacity"] - shift
    head = memory.ring.heads[environment]
    kept = positions >= head - min(head, capacity)
    slots, rows = positions[kept] % capacity, rows if kept.all() else rows[kept]
    for start, stop in ranges.runs(slots):
        memory.write_rows(environment * capacity + int(slots[start]), rows[start:stop])


def _check_nbytes(nbytes) -> None:
    check_number("nbytes", nbytes, lambda number: number >= 0, "a number of bytes, 0 or more")


def _checked_tiers(of, to) -> str | None:
    """The tier to spill to; None where that is still to be chosen."""
    if of not in (DEVICE, HOST):
        raise ArgumentError(f"rows are spilled of 'device' or 'host', not of {of!r}.")
    if to is not None and check_tier(to) == of:
        raise ArgumentError(f"rows of the {of!r} are there already; pass to='file'.")
    return FILE if of == HOST else to


def _tail(memory) -> int:
    return memory.ring.tail() % memory.layout.capacity


def _tier_for(nbytes) -> str:
    """The host's memory where it is another than the device's, and stays half free."""
    if engine.on_cpu():
        return FILE
    free = probes.free_for_pool()
    return HOST if free is not None and free > 2 * nbytes else FILE


def _cut(memory, folder) -> Tiers:
    """The pool, all of it in the file, and its array freed."""
    tiers = Tiers(memory.layout, folder)
    try:
        for start, stop in tiers.parts():
            if len(memory.ring.heads) > 1 or start < memory.ring.heads[0]:  # else never written
                tiers.take(start, memory.read_rows(np.arange(start, stop, dtype=np.int32)))
    except OSError as error:
        raise _failed(error, "rows of the pool were to leave the device") from error
    memory.pool, memory.tiers = None, tiers
    _start_anew(memory)
    return tiers


def _take_back(tiers, segments) -> None:
    """On the device again with what need not leave it; what has no room there stays in the file."""
    with contextlib.suppress(MemoryError):
        for index in segments:
            tiers.move(index, DEVICE)


def _join(memory) -> None:
    """One array on the device, made of all segments."""
    tiers, layout = memory.tiers, memory.layout
    free = room.spendable(None)
    if free is None or free < 2 * layout.nbytes:  # else there is room for the pool twice
        _to_file(tiers)
    pool, fill = zeros(layout.rows, layout.row_bytes), engine.compile_fill()
    for start, stop in tiers.parts():
        pool = fill(pool, start, tiers.read(np.arange(start, stop)))
    memory.pool, memory.tiers = pool, None
    _start_anew(memory)


def _to_file(tiers) -> None:
    for index in range(len(tiers.segments)):
        tiers.move(index, FILE)


def _start_anew(memory, resized=False) -> None:
    """Let go of an array that compiled calls still hold."""
    memory.reader = Reader(memory.layout)
    memory.release(resized)
    gc.collect()


def _check_room(memory, layout) -> None:
    beside = memory.beside(memory.spec.example)
    held = beside._replace(held=beside.held + memory.device_bytes)
    room.check_limit(layout.limit, layout.row_bytes, memory.least_limit, memory.budget, held)


def _failed(error, what) -> SpillFailed:
    mend = "Free some of its disk, or pass another folder for the file."
    if isinstance(error, MemoryError):
        mend = "Free some memory there; until then they stay where they are."
    return SpillFailed(f"{what}, and could not: {error}. No row is lost. {mend}")

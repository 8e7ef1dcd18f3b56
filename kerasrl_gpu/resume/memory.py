"""A replay memory in a checkpoint: its counters and window as plain values, its rows in ranges."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kerasrl_gpu.checkpoint import Range
from kerasrl_gpu.errors import CheckpointError
from kerasrl_gpu.observations import ObservationSpec, as_plain
from kerasrl_gpu.pool import ranges
from kerasrl_gpu.pool.layout import ACTION
from kerasrl_gpu.pool.ring import Ring
from kerasrl_gpu.tiering import write_range


class Noted(NamedTuple):
    """A checkpoint that holds a pool's rows, as far as they did not change since.

    Attributes:
        path: its directory.
        mark: what it was known by when it was written; its name alone may be another one's by now.
        heads: rows that each sub-ring had been given then.
    """

    path: Path
    mark: bytes | None
    heads: list


def get_state(memory) -> dict | None:
    """What a DeviceMemory holds beside its rows; None before the first row."""
    memory.settle()
    if memory.ring is None:
        return None
    return {
        "example": as_plain(memory.spec.example),
        "fields": _plain(memory.layout.fields),
        "row_bytes": memory.layout.row_bytes,
        "ring": memory.ring.get_state(),
        "nb_draws": memory.nb_draws,
        "window": get_window(memory),
    }


def get_window(memory) -> dict:
    """What acting sees of the open episode, of any keras-rl Memory."""
    return {
        "observations": [as_plain(seen) for seen in memory.recent_observations],
        "terminals": [bool(terminal) for terminal in memory.recent_terminals],
    }


def set_window(memory, window: dict) -> None:
    """Go on where `get_window` was called."""
    for name, seen in window.items():
        held = getattr(memory, f"recent_{name}")
        held.clear()
        held.extend(seen)


def rows_of(memory) -> list[Range]:
    """The pool's rows for `checkpoint.write`; each range is read from the device when asked for."""
    if memory.ring is None:
        return []
    capacity, row_bytes = memory.layout.capacity, memory.layout.row_bytes
    heads = memory.ring.heads
    since = [None] * len(heads) if memory.saved is None else memory.saved.heads
    return [
        Range(
            part.name,
            partial(_read, memory, part, ranges.length(capacity, row_bytes)),
            since[part.environment] is None
            or ranges.changed(part, capacity, heads[part.environment], since[part.environment]),
        )
        for part in ranges.written(capacity, row_bytes, heads)
    ]


def note(memory, path) -> None:
    """Note that a checkpoint holds the rows as they are now; what stays so is linked to it."""
    memory.saved = Noted(path, _mark(path), list(memory.ring.heads))


def previous(memory):
    """The checkpoint that was noted; None where there is none, or another took its place."""
    noted = memory.saved
    return None if noted is None or _mark(noted.path) != noted.mark else noted.path


def _mark(path) -> bytes | None:
    """What no other checkpoint has, whatever its name: a digest of all digests."""
    try:
        return (path / "COMMIT").read_bytes()
    except OSError:
        return None


def _read(memory, part, length) -> np.ndarray:
    """u8[n, row bytes]. Always `length` rows come from the device: one program serves them all."""
    start = part.environment * memory.layout.capacity + part.start
    slots = np.minimum(start + np.arange(length), memory.layout.rows - 1).astype(np.int32)
    return memory.read_rows(slots)[: part.stop - part.start]


def set_state(memory, state: dict, saved) -> int:
    """Give a DeviceMemory what a checkpoint holds; where its limit is smaller, the newest rows.

    Args:
        memory: one that passed `check`.
        state: what `get_state` returned.
        saved: `checkpoint.Saved`, whose rows are read one range at a time.

    Returns:
        how many rows of the checkpoint did not fit.
    """
    memory.settle()
    memory.spec = ObservationSpec(state["example"], memory.keep_dtype)
    was = state["ring"]
    shifts = memory.ring.set_state(was)
    for part in _parts(state):
        write_range(memory, part, saved.rows(part.name), was, shifts[part.environment])
    memory.nb_draws = state["nb_draws"]
    set_window(memory, state["window"])
    same = was["capacity"] == memory.layout.capacity
    memory.saved = None
    if same:
        note(memory, saved.path)
    return sum(min(head, was["capacity"]) for head in was["heads"]) - len(memory.ring)


def clear(memory) -> None:
    """Leave a DeviceMemory as it was before its first row."""
    memory.settle()
    memory.forget_window()
    memory.nb_draws, memory.saved = 0, None
    if memory.ring is not None:
        memory.ring = Ring(memory.layout, memory.ring.span)


def check(memory, state: dict, saved) -> None:
    """See to it that `set_state` cannot fail, and make room for the rows.

    Args:
        saved: its pool's digests have been checked.

    Raises:
        CheckpointError: observations or actions of another kind, or rows are missing.
        PoolTooLarge: there is no room.
    """
    _check_fits(memory, state)
    expected = {p.name: (p.stop - p.start, state["row_bytes"]) for p in _parts(state)}
    found = {name: saved.range_shape(name) for name in saved.range_names}
    if found != expected:
        name = next(n for n in [*expected, *found] if expected.get(n) != found.get(n))
        raise CheckpointError(
            f"{saved.path}: the pool's range {name} has the shape {found.get(name)} where the "
            f"state counts on {expected.get(name)}. Use another checkpoint."
        )
    memory.allocate(state["example"])


def _parts(state) -> list[ranges.Rows]:
    was = state["ring"]
    return ranges.written(was["capacity"], state["row_bytes"], was["heads"])


def _check_fits(memory, state) -> None:
    spec = ObservationSpec(state["example"], memory.keep_dtype) if memory.spec is None else None
    fields = {f"leaf/{name}": leaf for name, leaf in (spec or memory.spec).fields.items()}
    ours = _plain({**fields, ACTION: memory.action})
    for name in sorted(set(ours) | set(state["fields"]) - {"reward", "flags"}):
        here, there = ours.get(name), state["fields"].get(name)
        if here != there:
            what = "actions" if name == ACTION else f"observations ({name})"
            raise CheckpointError(
                f"the checkpoint holds {what} of {_text(there)}, this agent's are {_text(here)}. "
                "Resume with an agent and an environment like those that wrote it."
            )


def _plain(fields: dict) -> dict:
    return {name: [one.dtype, list(one.shape)] for name, one in fields.items()}


def _text(field) -> str:
    return "no kind" if field is None else f"{field[0]}{field[1]}"

"""What the guard did and what was measured, one JSON object a line."""

from __future__ import annotations

import json
import math
import os
import warnings
from typing import NamedTuple

from kerasrl_gpu.probes.readings import Reading


class Event(NamedTuple):
    """A change of state, an action, or both.

    Attributes:
        time: seconds since 1970.
        step: the agent's step.
        before: the state before it.
        after: the state after it.
        action: what was done, or None.
        reason: a sentence.
        readings: all that was read then.
    """

    time: float
    step: int
    before: str
    after: str
    action: str | None
    reason: str
    readings: tuple[Reading, ...] = ()

    def in_words(self) -> str:
        """A line for people."""
        states = self.after if self.after == self.before else f"{self.before} -> {self.after}"
        return f"{states}: {self.reason}"


class Sample(NamedTuple):
    """What was read at one time.

    Attributes:
        time: seconds since 1970.
        step: the agent's step.
        readings: one of each probe.
        tier_bytes: bytes of the replay pool on the "device", the "host" and in a "file".
        run_start: the step where the run began, on its first line alone.
    """

    time: float
    step: int
    readings: tuple[Reading, ...] = ()
    tier_bytes: dict[str, int] | None = None
    run_start: int | None = None


def append(path, record: Event | Sample) -> None:
    """Add a line to a file, in one write, so that a run that is killed leaves no half of one.

    A line that broke off all the same, as on a full disk, does not spoil this one.

    Raises:
        OSError: it could not be written as a whole.
    """
    line = json.dumps(_plain(record), allow_nan=False).encode() + b"\n"
    with open(path, "ab+", buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        written = file.write(line)
    if written != len(line):
        raise OSError(f"{path}: {written} of {len(line)} bytes of a line could be written.")


def append_or_warn(path, record: Event | Sample) -> bool:
    """`append`; False, and a warning, where the disk refuses."""
    try:
        append(path, record)
    except OSError as error:
        warnings.warn(f"{path} lacks a line: {error}", stacklevel=3)
        return False
    return True


def read(path, kind: type = Event) -> list:
    """The records in a file, in its order, without lines that broke off or hold something else.

    Args:
        kind: Event or Sample.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        records = (_record(line, kind) for line in file)
        return [record for record in records if record is not None]


def _plain(record) -> dict:
    """A record as strict JSON holds it; of a reading only what is known."""
    plain = record._asdict()
    plain["readings"] = [
        {name: _finite(value) for name, value in each._asdict().items() if value is not None}
        for each in record.readings
    ]
    return plain


def _finite(value):
    """`value`; a number of another library as a plain one, and None for what JSON cannot hold."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _record(line: str, kind: type):
    try:
        plain = json.loads(line)
        readings = tuple(_reading(each) for each in plain.pop("readings"))
        return kind(**plain, readings=readings)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _reading(plain: dict) -> Reading:
    return Reading(**{"used_bytes": None, "limit_bytes": None, **plain})

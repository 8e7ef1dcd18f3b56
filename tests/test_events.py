"""Events and samples as lines of a file: what goes in comes out, whatever happened between."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu.callbacks import log_files
from kerasrl_gpu.guard import events
from kerasrl_gpu.guard.events import Event, Sample
from kerasrl_gpu.guard.levels import STATES
from kerasrl_gpu.probes.readings import Reading

DEVICE = Reading("device", 15 * 2**30, 16 * 2**30, "memory_stats", peak_bytes=2**34)
NO_CARD = Reading("card", None, None, "NVML", missing="No card.")
STALLS = Reading("stalls", None, None, "/proc/pressure/memory", share=0.125)
EVENT = Event(1.7e9, 12, "WATCH", "PAUSE", "pause", "device is full.", (DEVICE, NO_CARD, STALLS))


def test_an_event_is_one_line_of_json(tmp_path):
    path = tmp_path / "memory.jsonl"
    events.append(path, EVENT)
    [line] = path.read_text().splitlines()
    plain = json.loads(line)
    readings = plain.pop("readings")
    assert plain == {
        "time": 1.7e9, "step": 12, "before": "WATCH", "after": "PAUSE", "action": "pause",
        "reason": "device is full.",
    }  # fmt: skip
    assert readings[0] == {
        "name": "device", "used_bytes": 15 * 2**30, "limit_bytes": 16 * 2**30,
        "source": "memory_stats", "peak_bytes": 2**34,
    }  # fmt: skip
    assert readings[1] == {"name": "card", "source": "NVML", "missing": "No card."}
    assert readings[2]["share"] == 0.125
    assert events.read(path) == [EVENT]


STATE = st.sampled_from(STATES)
SIZE = st.none() | st.integers(0, 2**50)
READING = st.builds(
    Reading, st.text(max_size=9), SIZE, SIZE, st.text(max_size=9), SIZE, SIZE,
    st.none() | st.text(max_size=9), st.none() | st.floats(0, 1),
)  # fmt: skip
READINGS = st.lists(READING, max_size=3).map(tuple)
EVENTS = st.builds(
    Event, st.floats(0, 2e9), st.integers(0), STATE, STATE, st.none() | st.text(max_size=9),
    st.text(max_size=30), READINGS,
)  # fmt: skip
SAMPLES = st.builds(
    Sample, st.floats(0, 2e9), st.integers(0), READINGS,
    st.none() | st.dictionaries(st.sampled_from(["device", "host"]), st.integers(0)), SIZE,
)  # fmt: skip


@given(rows=st.lists(EVENTS, max_size=4), samples=st.lists(SAMPLES, max_size=4))
def test_what_was_written_is_read_in_order(tmp_path_factory, rows, samples):
    path = tmp_path_factory.mktemp("events") / "memory.jsonl"
    path.touch()
    for record in [*rows, *samples]:
        events.append(path, record)
    assert events.read(path) == rows
    assert events.read(path, Sample) == samples


def test_what_json_cannot_hold_is_made_plain(tmp_path):
    odd = (
        Reading("device", np.int64(7), 9, "own"),
        Reading("stalls", None, None, "own", share=math.nan),
    )
    events.append(tmp_path / "m", EVENT._replace(readings=odd))
    [event] = events.read(tmp_path / "m")
    assert event.readings == (Reading("device", 7, 9, "own"), Reading("stalls", None, None, "own"))


def test_a_line_that_broke_off_spoils_no_other(tmp_path):
    path = tmp_path / "memory.jsonl"
    events.append(path, EVENT)
    whole = path.read_bytes()
    for end in range(1, len(whole) - 1):
        path.write_bytes(whole + whole[:end])
        events.append(path, EVENT._replace(step=13))
        assert [event.step for event in events.read(path)] == [12, 13]


class Spy:
    """A file that notes what is written, and takes no more than `most` bytes at a time."""

    def __init__(self, file, calls, most):
        self._file, self._calls, self._most = file, calls, most
        self.tell, self.seek, self.read = file.tell, file.seek, file.read

    def write(self, data):
        self._calls.append(data)
        return self._file.write(data[: self._most])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()


def spied(monkeypatch, most=None):
    """What is written from now on, a write each."""
    calls, opened = [], open
    monkeypatch.setattr(
        events, "open", lambda *a, **k: Spy(opened(*a, **k), calls, most), raising=False
    )
    return calls


def test_each_line_is_one_write(tmp_path, monkeypatch):
    calls = spied(monkeypatch)
    (tmp_path / "m").write_bytes(b"broken")
    events.append(tmp_path / "m", EVENT)
    [line] = calls
    assert line.startswith(b"\n{")
    assert line.endswith(b"}\n")


def test_half_a_line_is_an_error(tmp_path, monkeypatch):
    spied(monkeypatch, most=10)  # as a disk does in its last block
    with pytest.raises(OSError, match=r"m: 10 of \d+ bytes of a line could be written"):
        events.append(tmp_path / "m", EVENT)


def test_the_file_is_cut_back_to_a_checkpoint(tmp_path):
    path = tmp_path / "memory.jsonl"
    callback = SimpleNamespace(log_files=lambda: [path])
    for step in (1, 2):
        events.append(path, EVENT._replace(step=step))
    marked = log_files.marks(callback)
    for step in (3, 4):
        events.append(path, EVENT._replace(step=step))
    log_files.cut_back(callback, marked)
    events.append(path, EVENT._replace(step=30))
    assert [event.step for event in events.read(path)] == [1, 2, 30]

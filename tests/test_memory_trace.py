"""Memory over time: the lines, and the picture."""

import sys
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from kerasrl_gpu.callbacks import MemoryTrace
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.guard import events, levels, picture
from kerasrl_gpu.guard.events import Event, Sample
from kerasrl_gpu.probes.readings import Reading

GIB = 2**30


class Clock:
    """Seconds that pass only when they are told to."""

    now = 100.0

    def __call__(self):
        return self.now


def growing():
    """A probe that reads 1, 2, 3, ... of 16 GiB."""
    used = [0]

    def device():
        used[0] += GIB
        return Reading("device", used[0], 16 * GIB, "memory_stats")

    return device


def broken():
    raise OSError("the driver is gone")


def begun(path, step=0, memory=None, **arguments):
    clock = Clock()
    arguments = {"probes": [growing()], "picture": False, **arguments}
    trace = MemoryTrace(path, clock=clock, **arguments)
    trace.set_model(SimpleNamespace(step=step, memory=memory, training=True))
    trace.on_train_begin()
    return trace, clock


def steps(trace, clock, seconds):
    """A step for each of `seconds`, that long after the one before it."""
    for index, passed in enumerate(seconds):
        clock.now += passed
        trace.on_step_end(index, {})


def test_a_line_comes_each_time_that_every_s_has_passed(tmp_path):
    path = tmp_path / "trace.jsonl"
    trace, clock = begun(path, every_s=1.0)
    steps(trace, clock, [0.4, 0.4, 0.4, 0.4, 5.0, 0.9, 0.1])  # lines at 1.2, 6.6 and 7.6 s
    assert [sample.step for sample in trace.read(path)] == [0, 3, 5, 7]
    trace.on_train_end()
    samples = trace.read(path)
    assert [sample.step for sample in samples] == [0, 3, 5, 7, 7]
    assert [sample.readings[0].used_bytes // GIB for sample in samples] == [1, 2, 3, 4, 5]
    assert [sample.run_start for sample in samples] == [0, None, None, None, None]
    assert sorted(sample.time for sample in samples) == [sample.time for sample in samples]


@pytest.mark.parametrize(
    "memory, tier_bytes",
    [
        (SimpleNamespace(nbytes=7), {"device": 7}),
        (
            SimpleNamespace(nbytes=7, tier_bytes={"device": 4, "host": 2, "file": 1}),
            {"device": 4, "host": 2, "file": 1},
        ),
        (SimpleNamespace(), None),
        (None, None),
    ],
)
def test_the_pool_is_noted_by_tier(tmp_path, memory, tier_bytes):
    begun(tmp_path / "t", memory=memory)
    assert MemoryTrace.read(tmp_path / "t")[0].tier_bytes == tier_bytes


def test_a_reading_that_fails_says_why_and_stops_nothing(tmp_path):
    trace, clock = begun(tmp_path / "t", probes=[broken, growing(), lambda: None])
    steps(trace, clock, [1, 1])
    trace.on_train_end()
    for sample in trace.read(tmp_path / "t"):
        failed, device, nothing = sample.readings
        assert "the driver is gone" in failed.missing
        assert nothing.missing
        assert device.fraction > 0


def test_a_disk_that_refuses_is_told_once(tmp_path):
    trace, clock = begun(tmp_path / "t")
    trace.path = "/dev/full"
    with pytest.warns(UserWarning, match="/dev/full lacks lines from here on") as warned:
        steps(trace, clock, [1, 1, 1])
    assert len(warned) == 1


def test_a_run_goes_on_in_its_file_and_a_new_one_begins_anew(tmp_path):
    path = tmp_path / "t"
    trace, clock = begun(path)
    steps(trace, clock, [1] * 5)
    trace, clock = begun(path, step=3)  # resumed from a checkpoint of step 3
    steps(trace, clock, [1, 1])
    assert [sample.step for sample in trace.read(path)] == [0, 1, 2, 3, 3, 4, 5]
    begun(path)
    assert [sample.step for sample in trace.read(path)] == [0]
    assert trace.log_files() == [str(path)]


def test_arguments_that_cannot_be_honoured(tmp_path):
    for arguments, match in [
        ({"every_s": -1}, r"every_s=-1; pass seconds"),
        ({"probes": [3]}, r'probes=\[3\]; pass "auto", or a list'),
        ({"picture": tmp_path / "x.bmp"}, r"x\.bmp is no picture's name"),
        ({"picture": tmp_path / "no" / "x.png"}, r"there is no folder .*no for x\.png"),
    ]:
        with pytest.raises(ArgumentError, match=match):
            MemoryTrace(tmp_path / "t", **arguments)
    with pytest.raises(ArgumentError, match="does not exist"):
        begun(tmp_path / "no" / "t")


# The picture --------------------------------------------------------------------------------------

MADE = levels.make(spill=None)


def device(used, limit=16 * GIB):
    return Reading("device", used, limit, "memory_stats")


SAMPLES = [
    Sample(1000.0, 0, (device(8 * GIB),), {"device": 3 * GIB, "host": 0, "file": 0}),
    Sample(1060.0, 9, (Reading("device", None, None, "memory_stats", missing="gone"),)),
    Sample(1120.0, 20, (device(12 * GIB), device(1)), {"device": 2 * GIB, "host": GIB, "file": 0}),
]  # fmt: skip
EVENTS = [
    Event(900.0, 0, "NORMAL", "SHRINK", "shrink", "before the first sample"),
    Event(1060.0, 9, "NORMAL", "WATCH", None, ""),
    Event(1120.0, 20, "WATCH", "PAUSE", "pause", ""),
]


@pytest.fixture
def figures(monkeypatch):
    """The figures that are written."""
    written, savefig = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (written.append(self), savefig(self, *a, **k))
    )
    return written


def test_the_picture_shows_readings_levels_events_and_tiers(tmp_path, figures):
    picture.draw(tmp_path / "memory.png", SAMPLES, EVENTS, MADE)
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    shares, pool = figures[0].axes
    [line] = [each for each in shares.lines if each.get_label().startswith("device")]
    # minutes; the fuller of two devices; a gap where nothing could be read
    x, y = line.get_data()
    assert list(x) == [0, 1, 2]
    assert [y[0], y[2]] == [50, 75]
    assert y[1] != y[1]
    assert line.get_label() == "device, at most 12.00 GiB of 16.00 GiB"
    dashed = [each.get_ydata()[0] for each in shares.lines if each.get_linestyle() == "--"]
    assert dashed == [75, 82, 92, 96]  # spill is off
    words = [text.get_text() for text in shares.texts]
    assert words == ["watch", "shrink", "pause", "exit", "WATCH", "pause"]
    marks = {
        style: [each.get_xdata()[0] for each in shares.lines if each.get_linestyle() == style]
        for style in (":", "-")
    }
    assert marks[":"] == [1]
    assert 2 in marks["-"]
    stacked = {each.get_label(): each.get_datalim(pool.transData) for each in pool.collections}
    assert set(stacked) == {"device", "host"}
    assert (stacked["device"].ymin, stacked["device"].ymax) == (0, 3)
    assert stacked["host"].ymax == 3  # 2 GiB on the device, and 1 on top of them
    assert pool.get_ylabel() == "replay pool, GiB"
    assert pool.get_xlabel() == "minutes since step 0"


def test_a_trace_is_drawn_when_training_ends(tmp_path, figures):
    events.append(tmp_path / "memory.jsonl", EVENTS[1])
    trace, clock = begun(
        tmp_path / "trace.jsonl", picture=True, events=tmp_path / "memory.jsonl", levels=MADE
    )
    steps(trace, clock, [1] * 4)
    trace.on_train_end()
    assert (tmp_path / "trace.png").exists()
    trace.draw(tmp_path / "other.svg")
    assert (tmp_path / "other.svg").exists()
    assert len(figures) == 2


def test_one_sample_is_enough_and_none_is_not(tmp_path):
    picture.draw(tmp_path / "a.png", SAMPLES[:1])
    picture.draw(tmp_path / "b.png", SAMPLES[1:2])  # nothing in it could be read
    with pytest.raises(ArgumentError, match="there is no sample to draw"):
        picture.draw(tmp_path / "c.png", [])


def test_without_matplotlib_a_run_ends_all_the_same(tmp_path, monkeypatch):
    trace, _ = begun(tmp_path / "t", picture=True)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.warns(UserWarning, match=r"was not drawn.*pip install 'kerasrl-gpu\[plots\]'"):
        trace.on_train_end()
    with pytest.raises(ImportError, match="not installed"):
        MemoryTrace(tmp_path / "t", picture=tmp_path / "t.png")

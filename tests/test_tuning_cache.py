"""The file of earlier choices: exact, whole at any moment, and never a reason to stop."""

import json
import os
import threading
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.tuning import cache
from kerasrl_gpu.tuning.cache import Cache
from kerasrl_gpu.tuning.choose import Choice, Reading
from kerasrl_gpu.tuning.points import Point

KEY = {"model": "3f9a", "device": "cpu", "budget_bytes": 1 << 33, "mode": "exact", "margin": 0.1}

points = st.builds(Point, *[st.integers(1, 2**70)] * 3)
rates = st.none() | st.floats(allow_nan=False)
readings = st.builds(Reading, points, rates, rates, rates, st.integers(0), st.none() | st.text())
choices = st.builds(Choice, points, st.text(), st.lists(readings, max_size=4))


def a_choice(size=8):
    point = Point(64, size, 2)
    left = Reading(point, 0.1 + 0.2, 1e-300, 1e300, 2**62, None)
    refused = Reading(Point(64, 64, 2), None, None, None, 2**63, "needs up to 7 GiB")
    return Choice(point, "micro_batch=8: the best.", [left, refused])


@pytest.fixture
def silence():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# What is put comes back ---------------------------------------------------------------------------


@given(choice=choices)
def test_a_choice_comes_back_exactly(tmp_path_factory, choice):
    path = tmp_path_factory.mktemp("cache") / "tuning.json"
    Cache(path).put(KEY, choice)
    found = Cache(path).get(KEY)
    assert found == choice
    assert type(found.point) is Point
    assert all(type(reading) is Reading for reading in found.curve)


@pytest.mark.usefixtures("silence")
def test_another_key_finds_nothing_and_its_order_does_not_matter(tmp_path):
    here = Cache(tmp_path / "new" / "folder" / "tuning.json")
    assert here.get(KEY) is None
    here.put(KEY, a_choice())
    assert here.get(dict(reversed(KEY.items()))) == a_choice()
    for other in ({**KEY, "budget_bytes": 1}, {**KEY, "more": None}, {}):
        assert here.get(other) is None
    here.put(KEY, a_choice(16))
    assert here.get(KEY) == a_choice(16)
    assert os.listdir(tmp_path / "new" / "folder") == ["tuning.json"]


def test_the_oldest_go(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_MOST", 3)
    here = Cache(tmp_path / "tuning.json")
    for number in (0, 1, 2, 0, 3):
        here.put({"number": number}, a_choice())
    assert [here.get({"number": number}) is not None for number in range(4)] == [1, 0, 1, 1]


@pytest.mark.parametrize("value", [b"x", (1,), [1], {"a": 1}, object()])
def test_a_key_of_something_else_is_refused(tmp_path, value):
    here = Cache(tmp_path / "tuning.json")
    with pytest.raises(ArgumentError, match=r"the key has 'x': .*; pass names with strings"):
        here.get({"x": value})
    with pytest.raises(ArgumentError, match="pass names with strings, numbers, bools or None"):
        here.put({1: "x"}, a_choice())


def test_where_it_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert Cache().path == tmp_path / "x" / "kerasrl_gpu" / "tuning.json"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("relative/path", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert Cache().path == tmp_path / ".cache" / "kerasrl_gpu" / "tuning.json"

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert Cache().path.name == "tuning.json"


# Damage -------------------------------------------------------------------------------------------


def test_a_file_cut_anywhere_costs_a_warning_and_is_written_anew(tmp_path):
    path = tmp_path / "tuning.json"
    Cache(path).put(KEY, a_choice())
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.warns(UserWarning, match=r"tuning.json is no tuning cache .* written anew"):
            assert Cache(path).get(KEY) is None
    Cache(path).put(KEY, a_choice())
    assert path.read_bytes() == whole


def test_any_value_of_another_type_costs_a_warning(tmp_path):
    path = tmp_path / "tuning.json"
    Cache(path).put(KEY, a_choice())
    [entry] = json.loads(path.read_text())["choices"].items()

    def swapped(value):
        """Every tree with one of its leaves replaced by what fits nowhere."""
        if isinstance(value, dict | list):
            for at in value if isinstance(value, dict) else range(len(value)):
                for other in swapped(value[at]):
                    copy = value.copy()
                    copy[at] = other
                    yield copy
        yield {"no": "such thing"}

    damaged = list(swapped(entry[1]))
    assert len(damaged) > 20
    for value in damaged:
        path.write_text(json.dumps({"format": 1, "choices": {entry[0]: value}}))
        with pytest.warns(UserWarning, match="is no tuning cache"):
            assert Cache(path).get(KEY) is None


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]", b"3", b'{"format": 2, "choices": {}}', b'{"format": 1}',
                b'{"format": 1, "choices": 5}', b"[" * 100_000, b"9" * 10_000, b"null"]
)  # fmt: skip
def test_what_is_no_cache_costs_a_warning_and_is_replaced(tmp_path, content):
    path = tmp_path / "tuning.json"
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="is no tuning cache"):
        assert Cache(path).get(KEY) is None
    Cache(path).put(KEY, a_choice())
    assert Cache(path).get(KEY) == a_choice()


def test_what_cannot_be_read_or_written_costs_a_warning(tmp_path):
    folder = tmp_path / "tuning.json"
    folder.mkdir()
    with pytest.warns(UserWarning, match="cannot be read .*; tuning starts from nothing"):
        assert Cache(folder).get(KEY) is None
    with pytest.warns(UserWarning, match="cannot be written .*; the next run tunes again"):
        Cache(folder).put(KEY, a_choice())
    assert list(folder.iterdir()) == []
    (tmp_path / "file").touch()
    below = Cache(tmp_path / "file" / "tuning.json")
    with pytest.warns(UserWarning, match="cannot be written"):
        below.put(KEY, a_choice())
    with pytest.warns(UserWarning, match="cannot be read"):
        assert below.get(KEY) is None
    assert sorted(os.listdir(tmp_path)) == ["file", "tuning.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("where", ["json.dump", "os.replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch, where, error
):
    here = Cache(tmp_path / "tuning.json")
    here.put(KEY, a_choice())
    before = here.path.read_bytes()

    def fails(*arguments):
        if where == "json.dump":
            arguments[1].write("half a")
        raise error

    monkeypatch.setattr(f"kerasrl_gpu.tuning.cache.{where}", fails)
    if isinstance(error, OSError):
        with pytest.warns(UserWarning, match=r"cannot be written \(No space left on device\)"):
            here.put(KEY, a_choice(16))
    else:
        with pytest.raises(KeyboardInterrupt):
            here.put(KEY, a_choice(16))
    assert here.path.read_bytes() == before
    assert os.listdir(tmp_path) == ["tuning.json"]


# Two at a time ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("silence")
def test_what_another_process_writes_meanwhile_is_kept(tmp_path, monkeypatch):
    ours, theirs = Cache(tmp_path / "tuning.json"), Cache(tmp_path / "tuning.json")
    others = iter(range(3))
    read = Cache._entries

    def read_and_then_the_other_writes(self):
        entries = read(self)
        if self is ours and (number := next(others, None)) is not None:
            theirs.put({"number": number}, a_choice())
        return entries

    monkeypatch.setattr(Cache, "_entries", read_and_then_the_other_writes)
    ours.put(KEY, a_choice(16))
    monkeypatch.undo()
    assert ours.get(KEY) == a_choice(16)
    assert [ours.get({"number": number}) for number in range(3)] == [a_choice()] * 3


@pytest.mark.usefixtures("silence")
def test_one_that_is_always_overtaken_writes_in_the_end(tmp_path, monkeypatch):
    here = Cache(tmp_path / "tuning.json")
    stamps = iter(range(100))
    monkeypatch.setattr(here, "_stamp", lambda: next(stamps))
    here.put(KEY, a_choice())
    assert here.get(KEY) == a_choice()


@pytest.mark.usefixtures("silence")
def test_a_reader_sees_whole_files_only(tmp_path):
    here = Cache(tmp_path / "tuning.json")
    here.put(KEY, a_choice())

    def write(writer):
        for number in range(40):
            Cache(here.path).put({"writer": writer, "number": number}, a_choice())

    writers = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert here.get(KEY) == a_choice()  # a warning would be an error
    for writer in writers:
        writer.join()
    assert os.listdir(tmp_path) == ["tuning.json"]

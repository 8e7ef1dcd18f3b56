"""Checkpoints on the disk: what is written, linked, kept and found, and what is refused."""

import errno
import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from kerasrl_gpu import __version__, checkpoint
from kerasrl_gpu.checkpoint import Range, codec
from kerasrl_gpu.errors import ArgumentError, CheckpointError


@pytest.fixture(autouse=True, scope="module")
def once(backend):
    if backend == "jax":
        pytest.skip("no backend takes part; it runs under tensorflow")


@pytest.fixture
def run(tmp_path):
    return tmp_path / "run"


def rows_of(number, size=4):
    """u8[size, 8], all bytes the number."""
    return np.full((size, 8), number % 256, np.uint8)


def never():
    raise AssertionError("an unchanged range was read")


def save(run, step=0, rows=(1, 2, 3), unchanged=(), **options):
    """A checkpoint with a range a number, named r0, r1, ...; those in `unchanged` are linked."""
    ranges = [
        Range(f"r{i}", never, False) if i in unchanged else Range(f"r{i}", lambda n=n: rows_of(n))
        for i, n in enumerate(rows)
    ]
    state = {"step": step, "net": {"w": np.arange(3) + step, "b": np.float32(step)}}
    options = {"manifest": {"agent": "DQN"}, "state": state, "ranges": ranges, **options}
    return checkpoint.write(run, step=step, **options)


def names(folder):
    return sorted(os.listdir(folder))


def pool_inodes(path):
    return {name: (path / "pool" / name).stat().st_ino for name in names(path / "pool")}


# Writing ------------------------------------------------------------------------------------------


def test_what_was_written_comes_back(run):
    path = save(run, step=12, manifest={"agent": "DQN", "versions": {"keras": "3.15"}})
    assert path == run / "000001-step-12"
    assert names(path) == ["COMMIT", "manifest.json", "pool", "state.json", "state.safetensors"]
    saved = checkpoint.open_newest(run)
    assert saved.path == path
    assert (saved.manifest["format"], saved.manifest["agent"]) == (1, "DQN")
    versions = saved.manifest["versions"]
    assert list(versions) == ["kerasrl_gpu", "python", "numpy", "safetensors", "keras"]
    assert (versions["kerasrl_gpu"], versions["keras"]) == (__version__, "3.15")
    assert saved.state["step"] == 12
    np.testing.assert_array_equal(saved.state["net"]["w"], [12, 13, 14])
    assert saved.range_names == ["r0", "r1", "r2"]
    np.testing.assert_array_equal(saved.rows("r1"), rows_of(2))
    listed = [path / name for name in saved.manifest["files"]]
    assert saved.nbytes == sum(file.stat().st_size for file in listed)
    assert checkpoint.verify(path) == []


def test_safetensors_itself_reads_the_files(run):
    state = {
        "t": np.arange(6, dtype=">f4").reshape(2, 3).T,
        "h": np.ones(3, "f2"),
        "z": np.array(2),
    }
    path = save(run, state=state)
    arrays = safetensors.numpy.load_file(path / "state.safetensors")
    assert {name: array.shape for name, array in arrays.items()} == {"z": (), "h": (3,), "t": (24,)}
    rows = safetensors.numpy.load_file(path / "pool" / "r2.safetensors")
    np.testing.assert_array_equal(rows["rows"], rows_of(3))
    assert safetensors.numpy.load_file(save(run, state=1) / "state.safetensors") == {}


def test_the_manifest_digests_every_file_and_commit_the_manifest(run):
    path = save(run)
    manifest = (path / "manifest.json").read_bytes()
    assert (path / "COMMIT").read_text() == hashlib.sha256(manifest).hexdigest()
    for name, entry in json.loads(manifest)["files"].items():
        content = (path / name).read_bytes()
        want = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert entry == want


def test_unchanged_ranges_are_the_same_files(run):
    first = save(run, 1, rows=(1, 2, 3))
    second = save(run, 2, rows=(1, 9, 3), unchanged=(0, 2), previous=first)
    before, after = pool_inodes(first), pool_inodes(second)
    assert {name for name in after if after[name] == before[name]} == {
        "r0.safetensors",
        "r2.safetensors",
    }
    np.testing.assert_array_equal(checkpoint.open_newest(first).rows("r1"), rows_of(2))
    np.testing.assert_array_equal(checkpoint.open_newest(second).rows("r1"), rows_of(9))
    shutil.rmtree(first)
    assert checkpoint.verify(second) == []


def gone(path):
    shutil.rmtree(path)


def shorter(path):
    os.truncate(path / "pool" / "r0.safetensors", 40)


def uncommitted(path):
    (path / "COMMIT").unlink()


def without_the_range(path):
    (path / "pool" / "r0.safetensors").unlink()


@pytest.mark.parametrize("harm", [gone, shorter, uncommitted, without_the_range])
def test_what_cannot_be_linked_is_written(run, harm):
    previous = save(run, 1, rows=[5])
    harm(previous)
    path = save(run, 2, ranges=[Range("r0", lambda: rows_of(5), changed=False)], previous=previous)
    np.testing.assert_array_equal(checkpoint.open_newest(path).rows("r0"), rows_of(5))


def test_a_file_system_without_links_gets_every_range_written(run, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    previous = save(run, 1, rows=[5])
    monkeypatch.setattr(os, "link", refuse)
    path = save(run, 2, ranges=[Range("r0", lambda: rows_of(5), changed=False)], previous=previous)
    assert checkpoint.verify(path) == []
    assert pool_inodes(path) != pool_inodes(previous)


@given(keeps=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_the_newest_stay(tmp_path_factory, keeps):
    run, want = tmp_path_factory.mktemp("keep"), []
    for step, keep in enumerate(keeps):
        want = [save(run, step, rows=[step], keep=keep), *want][:keep]
        assert checkpoint.find(run) == want
    assert names(run) == sorted([".writer-lock", *(path.name for path in want)])


def test_numbers_order_checkpoints_not_steps(run):
    save(run, 900)
    assert save(run, 5, keep=9).name == "000002-step-5"
    os.rename(run / "000002-step-5", run / "999999-step-5")
    assert save(run, 6, keep=9).name == "1000000-step-6"
    found = [path.name for path in checkpoint.find(run)]
    assert found == ["1000000-step-6", "999999-step-5", "000001-step-900"]


def test_only_names_of_ours_are_ever_deleted(run):
    run.mkdir()
    theirs = [".writing-mine", ".deleting-1-step-2", "000001", "000001-step-x", "7-step-7"]
    theirs += [".writing-000001-step-1.mine"]
    for name in theirs:
        (run / name).mkdir()
    (run / ".writing-000007-step-7").write_text("a file, not a directory")
    (run / ".deleting-000008-step-8").symlink_to(run / "000001")
    for stale in (".writing-000001-step-1", ".deleting-000001-step-3"):
        (run / stale / "pool").mkdir(parents=True)
    half = run / "000003-step-3"  # somebody's half copy: ignored, not ours to delete
    half.mkdir()
    path = save(run, 4, keep=1)
    assert path.name == "000004-step-4"
    links = [".writing-000007-step-7", ".deleting-000008-step-8"]
    assert names(run) == sorted([*theirs, *links, half.name, path.name, ".writer-lock"])


def test_progress_names_every_stage(run):
    stages = []
    save(run, rows=(1, 2), progress=stages.append)
    want = ["begin", "range", "range", "state", "manifest", "commit", "rename", "prune", "done"]
    assert stages == want


def test_nothing_has_the_name_before_the_rename_and_nothing_is_pruned_before(run):
    old, seen = save(run, 1), {}
    save(run, 2, keep=1, progress=lambda stage: seen.update({stage: checkpoint.find(run)}))
    new = run / "000002-step-2"
    assert [stage for stage in seen if seen[stage] == [old]][-1] == "commit"
    assert (seen["rename"], seen["prune"]) == ([new, old], [new])


def test_all_is_synced_before_the_rename_and_the_old_one_is_hidden_before_its_files_go(
    run, monkeypatch
):
    first = save(run / "a" / "b", 1, rows=(1, 2))
    calls = []
    real = {name: getattr(os, name) for name in ("fsync", "rename")}
    rmtree = shutil.rmtree

    def fsync(handle):
        calls.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), first.parent))
        real["fsync"](handle)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", lambda a, b: (calls.append("rename"), real["rename"](a, b)))
    monkeypatch.setattr(shutil, "rmtree", lambda path: (calls.append("rmtree"), rmtree(path)))
    save(first.parent, 2, rows=(1, 3), unchanged=[0], previous=first, keep=1)
    draft = ".writing-000002-step-2"
    files = ["pool/r1.safetensors", "state.json", "state.safetensors", "manifest.json", "COMMIT"]
    assert calls == [
        *(f"{draft}/{name}" for name in [*files, "pool"]),  # r0 is a link, synced when it was new
        *(draft, "rename", "."),
        *("rename", ".", "rmtree"),
    ]


def test_a_second_writer_is_told_so(run):
    with pytest.raises(CheckpointError, match="another checkpoint is being written there"):
        save(run, 1, progress=lambda stage: stage == "state" and save(run, 2))
    assert names(run) == [".writer-lock"]
    save(run, 3)


def test_a_forked_child_does_not_hold_the_lock(run):
    children = []

    def fork(stage):
        if stage == "begin":
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(writer)
                os.read(reader, 1)  # until the parent closes its end
                os._exit(0)
            os.close(reader)
            children.append((child, writer))

    save(run, 1, progress=fork)
    save(run, 2)
    for child, writer in children:
        os.close(writer)
        os.waitpid(child, 0)


def test_where_locks_are_missing_writing_goes_on(run, monkeypatch):
    def refuse(handle, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert checkpoint.verify(save(run)) == []


# Failures -----------------------------------------------------------------------------------------


def assert_stands(run, old, action, match=None, kind=CheckpointError):
    """The action fails with the sentence, and leaves exactly the old checkpoint, whole."""
    with pytest.raises(kind, match=match):
        action()
    assert checkpoint.find(run) == [old]
    assert checkpoint.verify(old) == []
    assert names(run) == [".writer-lock", old.name]


def test_what_rows_raises_comes_through_and_leaves_the_old_one(run):
    old = save(run, 1)
    ranges = [Range("a", lambda: rows_of(1)), Range("b", lambda: 1 // 0)]
    assert_stands(run, old, lambda: save(run, 2, ranges=ranges, keep=1), kind=ZeroDivisionError)


def test_ctrl_c_leaves_the_old_one(run):
    def interrupt(stage):
        if stage == "commit":
            raise KeyboardInterrupt

    old = save(run, 1)
    action = partial(save, run, 2, keep=1, progress=interrupt)
    assert_stands(run, old, action, kind=KeyboardInterrupt)


def test_a_file_that_may_not_grow_leaves_the_old_one(run):
    old = save(run, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        match = (
            r"step 2 could not be written into .*: File too large. What stands there is as it "
            r"was, 000001-step-1 is the newest. Free space there"
        )
        ranges = [Range("a", lambda: rows_of(1, size=2_000))]
        assert_stands(run, old, lambda: save(run, 2, ranges=ranges, keep=1), match)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MiB of its own."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount).returncode:
        pytest.skip("mounting a small disk takes root and its leave")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_leaves_the_old_one(small_disk):
    run = small_disk / "run"
    old = save(run, 1, ranges=[Range("a", lambda: rows_of(1, size=50_000))])
    big = [Range(name, lambda: rows_of(2, size=50_000)) for name in "abc"]
    match = "step 2 could not be written into .*: No space left on device"
    assert_stands(run, old, lambda: save(run, 2, ranges=big, keep=1), match)
    save(run, 3, ranges=big[:1], keep=1)  # and with room again it goes on


def test_a_read_only_disk_leaves_the_old_one(small_disk):
    run = small_disk / "run"
    old = save(run, 1)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert_stands(run, old, lambda: save(run, 2, keep=1), "step 2 .*: Read-only file system")
    match = "There is no older one. Save into a directory that can be written"
    with pytest.raises(CheckpointError, match=match):
        save(small_disk / "other")


def test_a_file_in_place_of_the_run_directory(tmp_path):
    (tmp_path / "run").write_text("mine")
    for run in (tmp_path / "run", tmp_path / "run" / "below"):
        with pytest.raises(CheckpointError, match=r"could not be written into .*/run"):
            save(run)
    assert (tmp_path / "run").read_text() == "mine"


def test_an_old_one_that_cannot_be_deleted_is_warned_of(run, monkeypatch):
    def refuse(path):
        raise OSError(errno.EPERM, "Operation not permitted")

    save(run, 1)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.warns(UserWarning, match="000001-step-1 could not be deleted: Operation not perm"):
        new = save(run, 2, keep=1)
    assert checkpoint.find(run) == [new]


WRONG = {
    "a path": ({"ranges": [Range("../r", never)]}, "range '../r': a name is made of letters"),
    "a folder": ({"ranges": [Range("a/b", never)]}, "range 'a/b'"),
    "a hidden name": ({"ranges": [Range(".a", never)]}, r"range '\.a'"),
    "twice": ({"ranges": [Range("a", lambda: rows_of(1))] * 2}, "range 'a': .*comes once"),
    "floats": ({"ranges": [Range("a", lambda: np.zeros((2, 3)))]}, r"float64\[2, 3\]; pass a Num"),
    "a vector": ({"ranges": [Range("a", lambda: np.zeros(2, "u1"))]}, r"came as uint8\[2\]"),
    "a list": ({"ranges": [Range("a", lambda: [1])]}, "came as <class 'list'>"),
    "ours": ({"manifest": {"files": {}}}, r"manifest has \['files'\]"),
    "no JSON": ({"manifest": {"a": object()}}, "manifest is no plain JSON: .*object"),
    "no strict JSON": ({"manifest": {"a": float("nan")}}, "manifest is no plain JSON"),
    "state": ({"state": {"a": {1, object}}}, r"state\['a'\]\[\d\] is a builtins.type"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_leaves_the_old_one(run, name):
    options, match = WRONG[name]
    old = save(run, 1)
    assert_stands(run, old, lambda: save(run, 2, keep=1, **options), match)


@pytest.mark.parametrize("options", [{"keep": 0}, {"step": -1}, {"step": 1.5}])
def test_counts_are_counts(run, options):
    with pytest.raises(ArgumentError, match="pass a whole number"):
        save(run, **options)
    assert not run.exists()


# Reading ------------------------------------------------------------------------------------------


def flip(file):
    """Change the file's last byte."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def rewrite(path, change):
    """Change the manifest and commit it anew, as somebody would who means harm."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    text = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(text)
    (path / "COMMIT").write_text(hashlib.sha256(text).hexdigest())


def replace(path, name, content):
    """Put other content into a file, with the digest to it."""
    (path / name).write_bytes(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    rewrite(path, lambda manifest: manifest["files"].update({name: entry}))


def list_file(name):
    return lambda path: rewrite(
        path, lambda manifest: manifest["files"].update({name: {"bytes": 1, "sha256": ""}})
    )


def link_state(path):
    (path / "state.json").rename(path.parent / "elsewhere.json")
    (path / "state.json").symlink_to(path.parent / "elsewhere.json")


def link_pool(path):
    (path / "pool").rename(path.parent / "elsewhere")
    (path / "pool").symlink_to(path.parent / "elsewhere")


BAD = {
    "manifest": (lambda path: flip(path / "manifest.json"), "manifest.json is damaged: its sha256"),
    "COMMIT": (lambda path: flip(path / "COMMIT"), "manifest.json is damaged"),
    "state": (lambda path: flip(path / "state.json"), "state.json is damaged: its sha256 is"),
    "arrays": (lambda path: flip(path / "state.safetensors"), "state.safetensors is damaged: its"),
    "short": (
        lambda path: os.truncate(path / "state.json", 9),
        "state.json is damaged: it has 9 B",
    ),
    "missing": (lambda path: (path / "state.json").unlink(), "state.json cannot be read: No such"),
    "pool missing": (lambda path: (path / "pool/r1.safetensors").unlink(), "r1.safetensors cannot"),
    "pool short": (lambda path: os.truncate(path / "pool/r1.safetensors", 50), "r1.saf.* has 50 B"),
    "pickle": (
        lambda path: (path / "agent.pkl").touch(),
        "agent.pkl is no part of this checkpoint",
    ),
    "code": (lambda path: (path / "pool" / "x.py").touch(), "pool/x.py is no part.*code, pickles"),
    "listed": (list_file("agent.pkl"), "manifest.json lists 'agent.pkl'; a checkpoint has"),
    "outside": (list_file("../../etc/passwd"), "lists '../../etc/passwd'.*Nothing of it is read"),
    "absolute": (list_file("/etc/passwd"), "lists '/etc/passwd'"),
    "out of the pool": (list_file("pool/../x.safetensors"), "lists 'pool/../x.safetensors'"),
    "another system's path": (list_file("pool/..\\x.safetensors"), "manifest.json lists 'pool/"),
    "a link": (link_state, "state.json is a link or no file"),
    "a linked folder": (link_pool, "/pool is no part of this checkpoint"),
    "no files": (lambda path: rewrite(path, lambda m: m.pop("files")), "is no checkpoint's manif"),
    "no state": (lambda p: rewrite(p, lambda m: m["files"].pop("state.json")), "does not list"),
    "no size": (lambda p: rewrite(p, lambda m: m["files"]["state.json"].pop("bytes")), "'bytes'"),
    "NaN": (lambda path: replace(path, "state.json", b"[NaN]"), "state.json is no strict JSON"),
    "a deep hole": (lambda path: replace(path, "state.json", b"[" * 10**5), "is no strict JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_one_is_refused_by_name_and_the_one_before_it_opened(run, name):
    harm, match = BAD[name]
    old, new = save(run, 1), save(run, 2)
    harm(new)
    assert re.search(match, checkpoint.verify(new)[0])
    with pytest.raises(CheckpointError, match=match):
        checkpoint.open_newest(new)
    with pytest.warns(UserWarning, match=match + ".* Falling back to the checkpoint before it"):
        assert checkpoint.open_newest(run).path == old


@pytest.mark.filterwarnings("ignore:.*Falling back")
def test_where_all_are_bad_the_oldest_is_named(run):
    for path in (save(run, 1), save(run, 2)):
        flip(path / "state.json")
    with pytest.raises(CheckpointError, match=r"000001-step-1/state.json is damaged"):
        checkpoint.open_newest(run)


def test_verify_lists_every_problem_and_rows_names_its_file(run):
    path = save(run, 1)
    flip(path / "pool" / "r2.safetensors")
    flip(path / "state.safetensors")
    (path / "x.so").touch()
    (path / "pool" / "r0.safetensors").unlink()
    problems = "\n".join(checkpoint.verify(path))
    assert len(problems.splitlines()) == 4
    for part in (
        "r2.safetensors is dam",
        "state.safetensors is dam",
        "x.so is no",
        "r0.safetensors",
    ):
        assert part in problems


def test_a_damaged_range_is_found_when_it_is_read(run):
    saved = checkpoint.Saved(save(run, 1))
    flip(saved.path / "pool" / "r2.safetensors")
    with pytest.raises(CheckpointError, match=r"r2.safetensors is damaged: its sha256"):
        saved.rows("r2")
    with pytest.raises(CheckpointError, match="has no range 'r3', only r0, r1, r2"):
        saved.rows("r3")
    replace(saved.path, "pool/r1.safetensors", b"\x02\0\0\0\0\0\0\0{}")
    with pytest.raises(CheckpointError, match=r"r1.safetensors holds no rows: 'rows'"):
        checkpoint.Saved(saved.path).rows("r1")


def test_a_newer_format_is_never_fallen_back_from(run):
    save(run, 1)
    path = save(run, 2)
    rewrite(path, lambda manifest: manifest.update(format=2, versions={"kerasrl_gpu": "9.1"}))
    match = f"by kerasrl-gpu 9.1, format 2; this is {__version__}, which reads format 1: upgrade"
    for place in (run, path):
        with pytest.raises(CheckpointError, match=match):
            checkpoint.open_newest(place)


def test_tags_that_nobody_knows_are_refused(run):
    path = save(run, 1)
    replace(path, "state.json", b'{"a": {"$call": "os.system"}, "b": 1}')
    saved = checkpoint.open_newest(path)
    with pytest.raises(CheckpointError, match=r"000001-step-1: .*unknown tag '\$call'"):
        saved.state  # noqa: B018
    replace(path, "state.json", b"[" * 900 + b"]" * 900)
    with pytest.raises(CheckpointError, match="recursion"):
        checkpoint.open_newest(path).state  # noqa: B018


def test_one_branch_of_the_state_reads_nothing_else(run, monkeypatch):
    path = save(run, 3, state={"net": {"w": np.arange(4.0), "b": 1}, "slots": np.arange(99)})
    saved = checkpoint.open_newest(path)
    shutil.rmtree(path / "pool")
    read = []
    array = codec._read_array
    note = lambda data, get: (read.append(data[0]), array(data, get))[1]  # noqa: E731
    monkeypatch.setitem(codec._DECODERS, "$array", note)
    np.testing.assert_array_equal(saved.state_part("net", "w"), [0, 1, 2, 3])
    assert read == ["net/w"]
    assert saved.state_part("net", "b") == 1
    with pytest.raises(CheckpointError, match=r"step-3: state has no 'x', only \['net', 'slots'\]"):
        saved.state_part("x")


def test_where_there_is_none_the_sentence_says_what_there_is(tmp_path):
    def refused(path, match):
        assert checkpoint.find(path) == []
        with pytest.raises(CheckpointError, match=match):
            checkpoint.open_newest(path)

    refused(tmp_path / "no", "no: there is no such directory; pass a run directory or one check")
    refused(tmp_path, "is empty: no checkpoint has been written into it")
    (tmp_path / "a.h5").touch()
    refused(tmp_path / "a.h5", r"a.h5 is a file; pass the run directory")
    refused(tmp_path, r"has no complete checkpoint, only a.h5; pass the directory that a run was")
    path = save(tmp_path, 1)
    (path / "COMMIT").unlink()
    refused(path, "000001-step-1 is half a checkpoint: it has no COMMIT")
    refused(tmp_path, r"no complete checkpoint, only .writer-lock, 000001-step-1, a.h5")
    assert "half a checkpoint" in checkpoint.verify(path)[0]


def test_a_renamed_copy_is_one_checkpoint(run):
    shutil.copytree(save(run, 7), run / "best")
    assert checkpoint.find(run / "best") == [run / "best"]
    assert checkpoint.open_newest(str(run / "best")).state["step"] == 7


# Cost ---------------------------------------------------------------------------------------------

MEASURE = """
import pathlib, sys
import numpy as np
from kerasrl_gpu import checkpoint

def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024

loaded = {"keras", "tensorflow", "jax", "psutil", "rl", "ml_dtypes"} & sys.modules.keys()
if loaded:
    sys.exit(f"checkpoint imports {loaded}")
pool = np.ones((COUNT, 1024, 16384), np.uint8)  # COUNT ranges of 16 MiB
before = peak()
ranges = [checkpoint.Range(str(i), lambda i=i: pool[i].copy()) for i in range(len(pool))]
path = checkpoint.write("run", step=1, manifest={}, state=[pool[0]], ranges=ranges)
written = peak()
saved = checkpoint.open_newest(path)
for i, name in enumerate(saved.range_names):
    pool[i] = saved.rows(name)
print(written - before, peak() - before)
"""


def test_memory_is_one_range_and_no_backend_is_loaded(tmp_path):
    if not os.path.exists("/proc/self/status"):
        pytest.skip("the peak is read from /proc")
    code = MEASURE.replace("COUNT", os.environ.get("RANGES", "8"))
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    writing, reading = map(int, result.stdout.split())
    assert writing <= 40, result.stdout  # MiB
    assert reading <= 64, result.stdout

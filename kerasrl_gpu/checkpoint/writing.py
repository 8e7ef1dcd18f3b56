"""Writing: complete under its name, or not there; a kill at any moment leaves the older ones."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors

from kerasrl_gpu import __version__
from kerasrl_gpu.checkpoint import codec, files, reading
from kerasrl_gpu.errors import CheckpointError, check_count

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_LOCK = ".writer-lock"
_LEFTOVER = re.compile(r"\.(writing|deleting)-" + reading.NAME.pattern)


class Range(NamedTuple):
    """One range of the replay pool, a file of its own.

    Attributes:
        name: letters, digits, "_", "." and "-".
        rows: called without arguments only if the range has to be written; returns
            u8[n, row bytes].
        changed: False if the previous checkpoint's range of this name holds the same rows.
    """

    name: str
    rows: Callable[[], np.ndarray]
    changed: bool = True


def write(
    run,
    *,
    step: int,
    manifest: dict,
    state,
    ranges: Iterable[Range] = (),
    previous=None,
    keep: int = 2,
    progress: Callable[[str], object] | None = None,
) -> Path:
    """Write a checkpoint. It is on the disk when this returns, and only then old ones are deleted.

    Extra memory: one range's rows, and one array of the state where it is not in C order.

    Args:
        run: directory of the run, made if it is missing. One process at a time writes into it;
            files of other names in it are left alone.
        step: steps done, >= 0; part of the checkpoint's name.
        manifest: plain JSON; "versions" in it is joined with ours, "format" and "files" are ours.
        state: a tree as in `codec.encode`.
        ranges: the pool, one range after the other.
        previous: checkpoint that unchanged ranges are hard-linked from; None, or one that cannot
            be linked from, has all of them written.
        keep: committed checkpoints that stay, >= 1, this one included.
        progress: called with "begin", "range" (after each), "state", "manifest", "commit",
            "rename", "prune" and "done" when that part is done.

    Returns:
        the checkpoint's directory.

    Raises:
        ArgumentError: `step` or `keep` is no such number.
        CheckpointError: the disk is full or refuses, another process writes, or something
            passed cannot be stored. Older checkpoints stand as they were.
    """
    run, step, keep = Path(run), check_count("step", step), check_count("keep", keep, 1)
    note = progress or (lambda stage: None)
    if wrong := {"format", "files"} & manifest.keys():
        raise CheckpointError(f"manifest has {sorted(wrong)}, which are written here; rename them.")
    encoded = codec.encode(state)
    try:
        _make_directory(run)
        with _only_writer(run):
            _clear_leftovers(run)
            path = run / f"{_next_number(run):06}-step-{step}"
            with _draft(path) as draft:
                note("begin")
                _add_ranges(draft, ranges, previous, note)
                _add_state(draft, encoded, note)
                _commit(draft, manifest, note)
            note("rename")
            _prune(run, keep)
            note("prune")
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint at step {step} could not be written into {run}: "
            f"{error.strerror or error}. {_standing(run)} Free space there, or save into another "
            f"directory."
        ) from error
    note("done")
    return path


class _Draft:
    """A checkpoint's files in a directory that no reader looks at.

    Attributes:
        entries: {file: its entry in the manifest}.
    """

    def __init__(self, folder: Path):
        self.entries, self._folder, self._new = {}, folder, []

    def add(self, name: str, pieces) -> None:
        """Write a file of these pieces."""
        self._new.append(name)
        self.entries[name] = files.write(self._folder / name, pieces)

    def link(self, name: str, source: Path, entry: dict) -> bool:
        """Whether `name` now is the file `source` of another checkpoint."""
        try:
            files.check_size(source, entry)
            os.link(source, self._folder / name)
        except (CheckpointError, OSError):  # damaged, or a file system without hard links
            return False
        self.entries[name] = entry
        return True

    def sync(self) -> None:
        """Have all of it on the disk."""
        # Only once all is written, so that the disk takes it in one go. Links are on it already.
        for name in (*self._new, "pool", "."):
            files.sync(self._folder / name)


@contextmanager
def _draft(path):
    """A draft that gets its name when all is in it, or goes."""
    folder = path.with_name(f".writing-{path.name}")
    try:
        folder.mkdir()
        (folder / "pool").mkdir()
        yield _Draft(folder)
        os.rename(folder, path)  # nothing counts before this
        files.sync(path.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _add_ranges(draft, ranges, previous, note):
    before = _entries(previous)
    for name, rows, changed in ranges:
        file = f"pool/{name}.safetensors"
        if not reading.RANGE.fullmatch(name) or file in draft.entries:
            raise CheckpointError(
                f"range {name!r}: a name is made of letters, digits, '_', '.' and '-', begins "
                f"with a letter or digit, and comes once."
            )
        entry = None if changed else before.get(file)
        if not (entry and draft.link(file, Path(previous) / file, entry)):
            draft.add(file, files.tensors({"rows": _check_rows(name, rows())}))
        note("range")


def _entries(previous) -> dict:
    """The files of the checkpoint before, as far as it is one."""
    try:
        return {} if previous is None else reading.read_manifest(Path(previous))["files"]
    except CheckpointError:
        return {}


def _check_rows(name, rows):
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2:
        came = f"{rows.dtype}{list(rows.shape)}" if isinstance(rows, np.ndarray) else type(rows)
        raise CheckpointError(f"range {name!r} came as {came}; pass a NumPy u8[n, row bytes].")
    return rows


def _add_state(draft, encoded, note):
    data, arrays = encoded
    draft.add(reading.STATE, [_json(data)])
    draft.add(reading.ARRAYS, files.tensors(arrays))
    note("state")


def _commit(draft, manifest, note):
    versions = {
        "kerasrl_gpu": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
    }
    text = _json(
        {
            "format": reading.FORMAT,
            **manifest,
            "versions": {**versions, **manifest.get("versions", {})},
            "files": dict(draft.entries),
        },
        indent=1,
    )
    draft.add(reading.MANIFEST, [text])
    note("manifest")
    draft.add(reading.COMMIT, [hashlib.sha256(text).hexdigest().encode()])
    draft.sync()
    note("commit")


def _json(value, indent=None) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, indent=indent).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the manifest is no plain JSON: {error}; pass text, finite numbers, lists and dicts."
        ) from error


def _make_directory(run):
    missing = [folder for folder in (run, *run.parents) if not folder.exists()]
    run.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        files.sync(folder.parent)


@contextmanager
def _only_writer(run):
    """Hold the run's lock. It goes with the process, so a killed writer locks nobody out."""
    handle = os.open(run / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _lock(handle, run)
        yield
    finally:
        if fcntl:
            with suppress(OSError):  # a forked child may have the handle too: closing is not enough
                fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock(handle, run):
    try:
        if fcntl:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            f"{run}: another checkpoint is being written there; give each run a directory of its "
            f"own."
        ) from None
    except OSError:
        pass  # a file system without locks


def _clear_leftovers(run):
    """Remove what killed writers left. Only the holder of the lock may."""
    for entry in list(os.scandir(run)):
        if _LEFTOVER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)


def _next_number(run) -> int:
    taken = reading.numbered(run)
    return int(reading.NAME.fullmatch(taken[0].name)[1]) + 1 if taken else 1


def _prune(run, keep):
    for old in reading.find(run)[keep:]:
        doomed = old.with_name(f".deleting-{old.name}")
        try:
            os.rename(old, doomed)
            files.sync(run)  # before the files go, lest half a checkpoint keeps its name
            shutil.rmtree(doomed)
        except OSError as error:
            warnings.warn(f"{old} could not be deleted: {error.strerror}.", stacklevel=3)


def _standing(run) -> str:
    found = reading.find(run)
    if not found:
        return "There is no older one."
    return f"What stands there is as it was, {found[0].name} is the newest."

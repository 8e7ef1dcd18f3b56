"""Writing: complete under its name, or not there; a kill at any moment leaves the older ones."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors

from kerasrl_gpu import __version__
from kerasrl_gpu.checkpoint import codec, directory, files, manifests
from kerasrl_gpu.errors import CheckpointError, check_count


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
        keep: committed checkpoints that stay, >= 1, this one included. Those whose manifest has
            another "run" neither count nor go.
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
        directory.make(run)
        with directory.only_writer(run):
            directory.clear_leftovers(run)
            path = run / f"{directory.next_number(run):06}-step-{step}"
            with _draft(path) as draft:
                note("begin")
                _add_ranges(draft, ranges, previous, note)
                _add_state(draft, encoded, note)
                _commit(draft, manifest, note)
            note("rename")
            directory.prune(run, keep, manifest.get("run"))
            note("prune")
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint at step {step} could not be written into {run}: "
            f"{error.strerror or error}. {_standing(run)} {_advice(error)}"
        ) from error
    note("done")
    return path


def make_run(run) -> None:
    """Make a run directory, and see that checkpoints can be written into it.

    Raises:
        CheckpointError: it cannot be made, or nothing can be written there.
    """
    run = Path(run)
    try:
        directory.make(run)
        with directory.only_writer(run):
            pass
    except OSError as error:
        raise CheckpointError(
            f"no checkpoint can be written into {run}: {error.strerror or error}. {_advice(error)}"
        ) from error


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
        if not manifests.RANGE.fullmatch(name) or file in draft.entries:
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
        return {} if previous is None else manifests.read(Path(previous))["files"]
    except CheckpointError:
        return {}


def _check_rows(name, rows):
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2:
        came = f"{rows.dtype}{list(rows.shape)}" if isinstance(rows, np.ndarray) else type(rows)
        raise CheckpointError(f"range {name!r} came as {came}; pass a NumPy u8[n, row bytes].")
    return rows


def _add_state(draft, encoded, note):
    data, arrays = encoded
    draft.add(manifests.STATE, [_json(data)])
    draft.add(manifests.ARRAYS, files.tensors(arrays))
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
            "format": manifests.FORMAT,
            **manifest,
            "versions": {**versions, **manifest.get("versions", {})},
            "files": dict(draft.entries),
        },
        indent=1,
    )
    draft.add(manifests.MANIFEST, [text])
    note("manifest")
    draft.add(manifests.COMMIT, [hashlib.sha256(text).hexdigest().encode()])
    draft.sync()
    note("commit")


def _json(value, indent=None) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, indent=indent).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the manifest is no plain JSON: {error}; pass text, finite numbers, lists and dicts."
        ) from error


def _advice(error) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "Free space there, or save into another directory."
    return "Save into a directory that can be written."


def _standing(run) -> str:
    found = directory.find(run)
    if not found:
        return "There is no older one."
    return f"What stands there is as it was, {found[0].name} is the newest."

"""A run's directory: which checkpoints it holds, who may write there, and what goes."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

from kerasrl_gpu.checkpoint import files, manifests
from kerasrl_gpu.errors import CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_LOCK = ".writer-lock"
_LEFTOVER = re.compile(r"\.(writing|deleting)-" + manifests.NAME.pattern)


def find(path) -> list[Path]:
    """The committed checkpoints, newest first; none where there is no such directory.

    Args:
        path: a run directory, or one checkpoint.
    """
    path = Path(path)
    return [found for found in numbered(path) or [path] if (found / manifests.COMMIT).is_file()]


def numbered(run: Path) -> list[Path]:
    """Directories with a checkpoint's name, committed or not, newest first."""
    if not run.is_dir():
        return []
    with os.scandir(run) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    matches = [match for match in map(manifests.NAME.fullmatch, folders) if match]
    matches.sort(key=lambda match: (int(match[1]), int(match[2])), reverse=True)
    return [run / match[0] for match in matches]


def make(run):
    """Make a run directory and what is missing above it, so that it outlasts a power cut."""
    missing = [folder for folder in (run, *run.parents) if not folder.exists()]
    run.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        files.sync(folder.parent)


@contextmanager
def only_writer(run):
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


def clear_leftovers(run):
    """Remove what killed writers left. Only the holder of the lock may."""
    for entry in list(os.scandir(run)):
        if _LEFTOVER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)


def next_number(run) -> int:
    """The number of the checkpoint that comes next."""
    taken = numbered(run)
    return int(manifests.NAME.fullmatch(taken[0].name)[1]) + 1 if taken else 1


def prune(run, keep, name):
    """Delete the oldest checkpoints of the run called `name` until `keep` of them are left."""
    own = [path for path in find(run) if manifests.run_of(path) == name]
    for old in own[keep:]:
        doomed = old.with_name(f".deleting-{old.name}")
        try:
            os.rename(old, doomed)
            files.sync(run)  # before the files go, lest half a checkpoint keeps its name
            shutil.rmtree(doomed)
        except OSError as error:
            warnings.warn(f"{old} could not be deleted: {error.strerror}.", stacklevel=3)

"""Log files that grow while a run goes on: how far they went at a checkpoint, and back to there."""

import hashlib
import itertools
import os
from pathlib import Path

import keras

_TAIL_BYTES = 4096
_EVENTS = "events.out.tfevents"


def of(callback) -> list[str]:
    """The files that a callback appends to; it says so itself by a method `log_files()`."""
    if callable(getattr(callback, "log_files", None)):
        return [os.fspath(path) for path in callback.log_files()]
    if isinstance(callback, keras.callbacks.CSVLogger):
        return [os.fspath(callback.filename)]
    if isinstance(callback, keras.callbacks.TensorBoard):
        for writer in (getattr(callback, "_writers", None) or {}).values():
            writer.flush()
        return [os.fspath(path) for path in _event_files(callback)]
    return []


def marks(callback) -> dict:
    """path -> how far the file goes, and what its end looks like there; None: never to be cut."""
    return {os.path.abspath(path): _mark(path) for path in of(callback) if os.path.exists(path)}


def cut_back(callback, marked: dict) -> None:
    """Cut a callback's files back to their marks, before it opens them.

    A file that is not the one that was marked, by what stands there, is left as it is; where
    nothing stood there, what came since is put aside as "NAME.repeated". TensorBoard starts a file
    a run: one beside marked files that has no mark belongs to what is repeated now, and is renamed
    so that TensorBoard does not show it.
    """
    if isinstance(callback, keras.callbacks.CSVLogger):
        callback.append = True
    by_name = {os.path.basename(path): mark for path, mark in marked.items()}  # a run may move
    paths = [os.path.split(os.path.abspath(path)) for path in of(callback)]
    ours = {folder for folder, name in paths if name in by_name}
    for folder, name in paths:
        path = os.path.join(folder, name)
        if name in by_name:
            _cut(path, marked.get(path, by_name[name]), same_path=path in marked)
        elif folder in ours and isinstance(callback, keras.callbacks.TensorBoard):
            os.replace(path, os.path.join(folder, name.replace(_EVENTS, "repeated")))


def _event_files(callback) -> list[Path]:
    folders = [Path(callback.log_dir) / name for name in ("train", "validation")]
    return [path for folder in folders for path in sorted(folder.glob(f"{_EVENTS}*"))]


def _mark(path) -> dict | None:
    name = os.path.basename(path)
    if name.startswith(_EVENTS) and f".{os.getpid()}." not in name:
        return None  # of an earlier process, which has ended, or of another run beside this one
    size = os.path.getsize(path)
    return {"bytes": size, "tail": _tail(path, size)}


def _tail(path, end: int) -> str:
    """sha256 of the bytes that lead up to `end`."""
    with open(path, "rb") as file:
        file.seek(max(0, end - _TAIL_BYTES))
        return hashlib.sha256(file.read(min(end, _TAIL_BYTES))).hexdigest()


def _cut(path, mark, same_path: bool) -> None:
    if mark is None or not os.path.exists(path) or os.path.getsize(path) <= mark["bytes"]:
        return
    end = mark["bytes"]
    if end and _tail(path, end) == mark["tail"]:
        os.truncate(path, end)
    elif not end and same_path:  # it was empty: nothing tells it from another run's
        os.replace(path, _free(f"{path}.repeated"))
        open(path, "xb").close()


def _free(path) -> str:
    """`path`, or the first of path.1, path.2, ... that is not there."""
    others = (f"{path}.{number}" for number in itertools.count(1))
    return next(name for name in itertools.chain([path], others) if not os.path.exists(name))

"""Log files that grow while a run goes on: how far they went at a checkpoint, and back to there."""

import hashlib
import os
from pathlib import Path

import keras

_TAIL_BYTES = 4096
_EVENTS = "events.out.tfevents"


def of(callback) -> list[str]:
    """The files that a callback appends to; it says so itself by a method `log_files()`."""
    if hasattr(callback, "log_files"):
        return [os.fspath(path) for path in callback.log_files()]
    if isinstance(callback, keras.callbacks.CSVLogger):
        return [os.fspath(callback.filename)]
    if isinstance(callback, keras.callbacks.TensorBoard):
        for writer in (getattr(callback, "_writers", None) or {}).values():
            writer.flush()
        return [os.fspath(path) for path in _event_files(callback)]
    return []


def marks(callback) -> dict:
    """path -> how far the file goes, and what its end looks like there."""
    return {os.path.abspath(path): _mark(path) for path in of(callback) if os.path.exists(path)}


def cut_back(callback, marked: dict) -> None:
    """Cut a callback's files back to their marks, before it opens them.

    A file that is not the one that was marked, by what stands there, is left as it is. TensorBoard
    starts a file a run: one that is younger than the marks belongs to what is repeated now, and is
    renamed so that TensorBoard does not show it.
    """
    if isinstance(callback, keras.callbacks.CSVLogger):
        callback.append = True
    names = {os.path.basename(path): (path, mark) for path, mark in marked.items()}
    for path in of(callback):
        marked_path, mark = names.get(os.path.basename(path), (None, None))
        if mark is not None:
            _cut(path, mark, same_path=marked_path == os.path.abspath(path))
        elif isinstance(callback, keras.callbacks.TensorBoard):
            aside = os.path.basename(path).replace(_EVENTS, "repeated")
            os.replace(path, os.path.join(os.path.dirname(path), aside))


def _event_files(callback) -> list[Path]:
    folders = [Path(callback.log_dir) / name for name in ("train", "validation")]
    return [path for folder in folders for path in sorted(folder.glob(f"{_EVENTS}*"))]


def _mark(path) -> dict:
    size = os.path.getsize(path)
    return {"bytes": size, "tail": _tail(path, size)}


def _tail(path, end: int) -> str:
    """sha256 of the bytes that lead up to `end`."""
    with open(path, "rb") as file:
        file.seek(max(0, end - _TAIL_BYTES))
        return hashlib.sha256(file.read(min(end, _TAIL_BYTES))).hexdigest()


def _cut(path, mark, same_path: bool) -> None:
    end = mark["bytes"]
    if not os.path.exists(path) or os.path.getsize(path) <= end:
        return
    if _tail(path, end) == mark["tail"] and (end or same_path):
        os.truncate(path, end)

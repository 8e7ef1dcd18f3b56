"""Single files: tensors as safetensors writes them, digested on their way to the disk."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kerasrl_gpu.errors import CheckpointError

# What safetensors and its NumPy side have had in common since 0.4.3, all little-endian.
DTYPES = {
    "|b1": "BOOL",
    "|i1": "I8",
    "|u1": "U8",
    "<i2": "I16",
    "<u2": "U16",
    "<i4": "I32",
    "<u4": "U32",
    "<i8": "I64",
    "<u8": "U64",
    "<f2": "F16",
    "<f4": "F32",
    "<f8": "F64",
}

_BLOCK = 1 << 20  # bytes digested and written in one go, while the processor's cache holds them


def raw(array: np.ndarray) -> np.ndarray:
    """u8[array.nbytes], the elements in C order; copies only what is not in that order yet."""
    if not array.nbytes:  # elements of no bytes, such as "U0", have no view
        return np.empty(0, np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def tensors(arrays: dict[str, np.ndarray]) -> Iterator[bytes | np.ndarray]:
    """The content of a safetensors file, piece by piece.

    safetensors' own `save_file` neither digests nor syncs, its older releases copy every array,
    and a transposed view is written reordered, without an error.

    Args:
        arrays: any shape and order, dtypes from DTYPES.
    """
    # The widest elements first: every array is aligned, as the header's length is.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    header, offset = {}, 0
    for name, array in ordered:
        header[name] = {
            "dtype": DTYPES[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, array in ordered:
        yield raw(array)


def write(path: Path, pieces: Iterable[bytes | np.ndarray]) -> dict:
    """Write a new file. It is on the disk for sure only after `sync`.

    Returns:
        {"bytes": its size, "sha256": hex}, its entry in a manifest.

    Raises:
        FileExistsError: there is such a file already.
        OSError: the disk is full, or refuses.
    """
    digest, nbytes = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for piece in pieces:
            view = memoryview(piece)
            for start in range(0, len(view), _BLOCK):
                block = view[start : start + _BLOCK]
                digest.update(block)
                file.write(block)
            nbytes += len(view)
    return {"bytes": nbytes, "sha256": digest.hexdigest()}


def sync(path: Path) -> None:
    """Make a file's content, or a directory's entries, outlast a power cut."""
    directory = path.is_dir()
    if directory and os.name == "nt":
        return  # Windows opens no directories
    handle = os.open(path, os.O_RDONLY if directory else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path, entry: dict | None = None) -> np.ndarray:
    """u8[n], the content of a plain file.

    Args:
        entry: what the manifest says of the file; its size and digest have to be the same.

    Raises:
        CheckpointError: it is missing, a link, unreadable or not what the manifest says.
    """
    check_size(path, entry)
    with _readable(path):
        content = np.fromfile(path, np.uint8)
    if entry:
        _check_digest(path, entry, hashlib.sha256(content))
    return content


def check(path: Path, entry: dict) -> None:
    """Raise as `read` does, without holding the content."""
    check_size(path, entry)
    digest = hashlib.sha256()
    with _readable(path), open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    _check_digest(path, entry, digest)


def check_size(path: Path, entry: dict | None = None) -> None:
    """Raise CheckpointError unless it is a plain file, of the size that the manifest says."""
    with _readable(path):
        status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(
            f"{path} is a link or no file; a checkpoint has only files of its own, none is read "
            f"through a link."
        )
    if entry and status.st_size != entry["bytes"]:
        raise CheckpointError(
            f"{path} is damaged: it has {status.st_size:_} B, the manifest says "
            f"{entry['bytes']:_}. Use another checkpoint."
        )


def _check_digest(path, entry, digest):
    if digest.hexdigest() != entry["sha256"]:
        raise CheckpointError(
            f"{path} is damaged: its sha256 is {digest.hexdigest()[:12]}..., the manifest says "
            f"{entry['sha256'][:12]}.... Use another checkpoint."
        )


@contextmanager
def _readable(path):
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. Use another checkpoint."
        ) from error

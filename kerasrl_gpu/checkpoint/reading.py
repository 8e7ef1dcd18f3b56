"""Finding and reading checkpoints. What is damaged, foreign or half there is never taken over."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import safetensors

from kerasrl_gpu import __version__
from kerasrl_gpu.checkpoint import codec, files
from kerasrl_gpu.errors import CheckpointError

FORMAT = 1
NAME = re.compile(r"(\d{6,})-step-(\d+)")
RANGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
MANIFEST, COMMIT = "manifest.json", "COMMIT"
STATE, ARRAYS = "state.json", "state.safetensors"


class NewerFormat(CheckpointError):
    """A newer release wrote the checkpoint: falling back would lose what that release did."""


def find(path) -> list[Path]:
    """The committed checkpoints, newest first; none where there is no such directory.

    Args:
        path: a run directory, or one checkpoint.
    """
    path = Path(path)
    return [found for found in numbered(path) or [path] if (found / COMMIT).is_file()]


def numbered(run: Path) -> list[Path]:
    """Directories with a checkpoint's name, committed or not, newest first."""
    if not run.is_dir():
        return []
    with os.scandir(run) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    matches = [match for match in map(NAME.fullmatch, folders) if match]
    matches.sort(key=lambda match: (int(match[1]), int(match[2])), reverse=True)
    return [run / match[0] for match in matches]


def open_newest(path, pool: bool = False) -> Saved:
    """The newest checkpoint whose manifest and state are as they were written.

    A damaged one is warned of and the one before it is opened.

    Args:
        path: a run directory, or one checkpoint, which is opened or refused.
        pool: whether the pool's files are digested, too; else they are looked at as far as their
            names and sizes, and `Saved.rows` checks each when it is read.

    Raises:
        CheckpointError: there is none, none is whole, or a newer release wrote it.
    """
    path = Path(path)
    found = find(path)
    if not found:
        raise CheckpointError(_why_none(path))
    *newer, oldest = found
    for candidate in newer:
        try:
            return _checked(candidate, pool)
        except NewerFormat:
            raise
        except CheckpointError as error:
            warnings.warn(f"{error} Falling back to the checkpoint before it.", stacklevel=2)
    return _checked(oldest, pool)


def _checked(path, pool) -> Saved:
    saved = Saved(path)
    if pool:
        saved.check_pool()
    return saved


class Saved:
    """One committed checkpoint, its manifest and state checked against their digests.

    Attributes:
        path: its directory.
        manifest: what the writer's caller stored, with "format", "versions" and "files".

    Raises:
        CheckpointError: from every method, naming the file that is damaged, missing or foreign.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        for problem in _misfits(self.path, self.manifest):
            raise CheckpointError(problem)
        self._tree = _parse(self.path / STATE, files.read(self.path / STATE, self._files[STATE]))
        files.check(self.path / ARRAYS, self._files[ARRAYS])

    @property
    def _files(self):
        return self.manifest["files"]

    @property
    def nbytes(self) -> int:
        """Bytes of all files; those that other checkpoints share are counted too."""
        return sum(entry["bytes"] for entry in self._files.values())

    @property
    def range_names(self) -> list[str]:
        """Names of the pool's ranges, in the order in which they were written."""
        return [Path(name).stem for name in self._files if name.startswith("pool/")]

    @cached_property
    def state(self):
        """The whole state tree; read at the first use and kept."""
        return self.state_part()

    def state_part(self, *keys):
        """One branch of the state, `state[keys[0]][keys[1]]...`; reads no other array."""
        try:
            data = codec.branch(self._tree, keys)
            with safetensors.safe_open(self.path / ARRAYS, framework="numpy") as arrays:
                return codec.decode(data, arrays.get_tensor)
        except (CheckpointError, safetensors.SafetensorError, OSError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: {error}") from error

    def check_pool(self) -> None:
        """Raise CheckpointError unless every file of the pool has its digest; keeps no content."""
        for name in self.range_names:
            file = f"pool/{name}.safetensors"
            try:
                files.check(self.path / file, self._files[file])
            except CheckpointError as error:
                raise CheckpointError(
                    f"{error} The weights can be read without the pool: agent.load_weights(path)."
                ) from error

    def range_shape(self, name: str) -> tuple[int, int]:
        """(n, row bytes) of a range, without reading its rows."""
        with safetensors.safe_open(
            self.path / f"pool/{name}.safetensors", framework="numpy"
        ) as file:
            return tuple(file.get_slice("rows").get_shape())

    def rows(self, name: str) -> np.ndarray:
        """u8[n, row bytes], one range of the pool; its digest is checked."""
        file = f"pool/{name}.safetensors"
        if file not in self._files:
            raise CheckpointError(
                f"{self.path} has no range {name!r}, only {', '.join(self.range_names) or 'none'}."
            )
        content = files.read(self.path / file, self._files[file])
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        try:
            header = _parse(self.path / file, content[8:start])["rows"]
            return content[start:].reshape(header["shape"])
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{self.path / file} holds no rows: {error}. Use another checkpoint."
            ) from error


def verify(path) -> list[str]:
    """Every problem of one checkpoint, a sentence each; none if all of it can be read.

    All digests are checked, the pool's too, and the state is decoded.
    """
    path = Path(path)
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        return [str(error)]
    checks = [partial(files.check, path / name, entry) for name, entry in manifest["files"].items()]
    checks.append(lambda: Saved(path).state_part())
    problems = _misfits(path, manifest)
    for check in checks:
        try:
            check()
        except CheckpointError as error:
            problems.append(str(error))
    return list(dict.fromkeys(problems))  # each file's once


def read_manifest(path: Path) -> dict:
    """A committed checkpoint's manifest.

    Raises:
        CheckpointError: it is damaged, or lists files that a checkpoint does not have.
        NewerFormat: this release does not read its format.
    """
    if not (path / COMMIT).is_file():
        raise CheckpointError(_why_none(path))
    content = files.read(path / MANIFEST)
    commit = files.read(path / COMMIT).tobytes().strip()
    if hashlib.sha256(content).hexdigest().encode() != commit:
        raise CheckpointError(
            f"{path / MANIFEST} is damaged: its sha256 is not the one in COMMIT. Use another "
            f"checkpoint."
        )
    manifest = _parse(path / MANIFEST, content)
    try:
        _check_format(path, manifest)
        _check_files(path, manifest["files"])
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path / MANIFEST} is no checkpoint's manifest: {error!r}. Use another checkpoint."
        ) from None
    return manifest


def _check_format(path, manifest):
    if manifest["format"] > FORMAT:
        raise NewerFormat(
            f"{path} was written by kerasrl-gpu {manifest['versions']['kerasrl_gpu']}, format "
            f"{manifest['format']}; this is {__version__}, which reads format {FORMAT}: upgrade "
            f"with pip install --upgrade kerasrl-gpu."
        )


def _check_files(path, entries):
    if missing := {STATE, ARRAYS} - entries.keys():
        raise CheckpointError(
            f"{path / MANIFEST} does not list {sorted(missing)}. Use another checkpoint."
        )
    for name, entry in entries.items():
        if not _is_ours(name):
            raise CheckpointError(
                f"{path / MANIFEST} lists {name!r}; a checkpoint has state.json, "
                f"state.safetensors and pool/<name>.safetensors. Nothing of it is read."
            )
        if type(entry["bytes"]) is not int or type(entry["sha256"]) is not str:
            raise CheckpointError(
                f"{path / MANIFEST} has no size and digest for {name!r}. Use another checkpoint."
            )


def _is_ours(name):
    folder, _, file = name.rpartition("/")
    stem = file.removesuffix(".safetensors")
    return name in (STATE, ARRAYS) or (
        folder == "pool" and stem != file and RANGE.fullmatch(stem) is not None
    )


def _misfits(path, manifest) -> list[str]:
    """What stands in the directory against the manifest, by names and sizes alone."""
    listed = manifest["files"]
    own = {MANIFEST, COMMIT, *listed, *(["pool"] if _is_plain_folder(path / "pool") else [])}
    found = sorted(os.listdir(path))
    if "pool" in own:
        found += [f"pool/{name}" for name in sorted(os.listdir(path / "pool"))]
    problems = [
        f"{path / name} is no part of this checkpoint: the manifest does not list it, and no "
        f"checkpoint holds code, pickles or links. Move it away if it is yours."
        for name in found
        if name not in own
    ]
    for name, entry in listed.items():
        try:
            files.check_size(path / name, entry)
        except CheckpointError as error:
            problems.append(str(error))
    return problems


def _is_plain_folder(path):
    return path.is_dir() and not path.is_symlink()


def _parse(path, content):
    try:
        return json.loads(content.tobytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no strict JSON: {error}. Use another checkpoint."
        ) from None


def _no_constant(text):
    raise ValueError(f"{text} is no JSON number")


def _why_none(path):
    """A sentence why there is no committed checkpoint at `path`."""
    if not path.exists():
        return f"{path}: there is no such directory; pass a run directory or one checkpoint in it."
    if not path.is_dir():
        return f"{path} is a file; pass the run directory that holds checkpoints, or one of them."
    names = sorted(os.listdir(path))
    if NAME.fullmatch(path.name) or {MANIFEST, STATE} & set(names):
        return f"{path} is half a checkpoint: it has no COMMIT. Use another one."
    if not names:
        return f"{path} is empty: no checkpoint has been written into it."
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    return (
        f"{path} has no complete checkpoint, only {listed}; pass the directory that a run was "
        f"saved into."
    )

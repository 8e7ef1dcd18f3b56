"""Finding and reading checkpoints. What is damaged, foreign or half there is never taken over."""

from __future__ import annotations

import warnings
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import safetensors

from kerasrl_gpu.checkpoint import codec, directory, files, manifests
from kerasrl_gpu.errors import CheckpointError


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
    found = directory.find(path)
    if not found:
        raise CheckpointError(manifests.why_none(path))
    *newer, oldest = found
    for candidate in newer:
        try:
            return _checked(candidate, pool)
        except manifests.NewerFormat:
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
        self.manifest = manifests.read(self.path)
        for problem in manifests.misfits(self.path, self.manifest):
            raise CheckpointError(problem)
        self._tree = manifests.parse(
            self.path / manifests.STATE,
            files.read(self.path / manifests.STATE, self._files[manifests.STATE]),
        )
        files.check(self.path / manifests.ARRAYS, self._files[manifests.ARRAYS])

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
            with safetensors.safe_open(self.path / manifests.ARRAYS, framework="numpy") as arrays:
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
            header = manifests.parse(self.path / file, content[8:start])["rows"]
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
        manifest = manifests.read(path)
    except CheckpointError as error:
        return [str(error)]
    checks = [partial(files.check, path / name, entry) for name, entry in manifest["files"].items()]
    checks.append(lambda: Saved(path).state_part())
    problems = manifests.misfits(path, manifest)
    for check in checks:
        try:
            check()
        except CheckpointError as error:
            problems.append(str(error))
    return list(dict.fromkeys(problems))  # each file's once

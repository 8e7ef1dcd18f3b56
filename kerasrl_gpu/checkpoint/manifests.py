"""A checkpoint's manifest, and whether the files beside it are those that it lists."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from kerasrl_gpu import __version__
from kerasrl_gpu.checkpoint import files
from kerasrl_gpu.errors import CheckpointError

FORMAT = 1
NAME = re.compile(r"(\d{6,})-step-(\d+)")
RANGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
MANIFEST, COMMIT = "manifest.json", "COMMIT"
STATE, ARRAYS = "state.json", "state.safetensors"


class NewerFormat(CheckpointError):
    """A newer release wrote the checkpoint: falling back would lose what that release did."""


def run_of(path: Path):
    """The "run" in a checkpoint's manifest; None where it has none or cannot be read."""
    try:
        return read(path).get("run")
    except CheckpointError:
        return None


def read(path: Path) -> dict:
    """A committed checkpoint's manifest.

    Raises:
        CheckpointError: it is damaged, or lists files that a checkpoint does not have.
        NewerFormat: this release does not read its format.
    """
    if not (path / COMMIT).is_file():
        raise CheckpointError(why_none(path))
    content = files.read(path / MANIFEST)
    commit = files.read(path / COMMIT).tobytes().strip()
    if hashlib.sha256(content).hexdigest().encode() != commit:
        raise CheckpointError(
            f"{path / MANIFEST} is damaged: its sha256 is not the one in COMMIT. Use another "
            f"checkpoint."
        )
    manifest = parse(path / MANIFEST, content)
    try:
        _check_format(path, manifest)
        _check_files(path, manifest["files"])
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path / MANIFEST} is no checkpoint's manifest: {error!r}. Use another checkpoint."
        ) from None
    return manifest


def why_none(path):
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


def misfits(path, manifest) -> list[str]:
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


def parse(path, content):
    """Strict JSON in the content of a file, u8[n]; raises CheckpointError where it is none."""
    try:
        return json.loads(content.tobytes(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is no strict JSON: {error}. Use another checkpoint."
        ) from None


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


def _is_plain_folder(path):
    return path.is_dir() and not path.is_symlink()


def _no_constant(text):
    raise ValueError(f"{text} is no JSON number")

"""Weight files under exactly the name that the user gave, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import h5py

from kerasrl_gpu.errors import ArgumentError

_SUFFIX = ".weights.h5"  # the only ending that Keras 3 writes


def save_weights(model, filepath, overwrite: bool = False) -> None:
    """Write a model's weights to `filepath`, whatever its ending; the format is .weights.h5.

    The file appears under its name only when it is complete.

    Raises:
        FileNotFoundError: its folder is not there.
        FileExistsError: it is there already and `overwrite` is False.
    """
    save_all({filepath: model}, overwrite)


def save_all(models: dict, overwrite: bool = False) -> None:
    """`save_weights` for {filepath: model}: all of them, or none."""
    paths = {Path(filepath): model for filepath, model in models.items()}
    for path in paths:
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"{path}: its folder does not exist; make it first, os.makedirs('{path.parent}')."
            )
        if path.exists() and not overwrite:
            raise FileExistsError(
                f"{path} exists; pass overwrite=True to replace it, or another name to keep it."
            )
    written = {}
    try:
        for path, model in paths.items():
            handle, temporary = tempfile.mkstemp(_SUFFIX, f".{path.name}.", path.parent)
            os.close(handle)
            written[path] = Path(temporary)
            model.save_weights(temporary, overwrite=True)
            os.chmod(temporary, 0o666 & ~_umask())
        for path, temporary in written.items():
            os.replace(temporary, path)
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)


def load_weights(model, filepath) -> None:
    """Read weights that `save_weights`, Keras 3 or Keras 2 wrote, whatever the file's ending.

    Raises:
        FileNotFoundError: there is no such file.
        ArgumentError: it is no weight file.
    """
    load_all({filepath: model})


def load_all(models: dict) -> None:
    """`load_weights` for {filepath: model}; no model is touched unless all files are there."""
    legacy = {Path(filepath): _is_legacy(Path(filepath)) for filepath in models}
    for (path, old), model in zip(legacy.items(), models.values(), strict=True):
        with tempfile.TemporaryDirectory() as folder:  # Keras tells formats by the name alone
            alias = Path(folder) / ("weights.h5" if old else "all" + _SUFFIX)
            alias.symlink_to(path.resolve())
            model.load_weights(alias)


def _is_legacy(path: Path) -> bool:
    """Whether Keras 2 wrote it; raises where it is no weight file."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such weight file.")
    try:
        with h5py.File(path) as file:
            return "layer_names" in file.attrs or "model_weights" in file
    except OSError as error:
        raise ArgumentError(f"{path} is no HDF5 weight file: {error}.") from None


def actor_critic_names(filepath) -> tuple[str, str]:
    """keras-rl's two names: _actor and _critic before the last dot."""
    stem, extension = os.path.splitext(os.fspath(filepath))
    return f"{stem}_actor{extension}", f"{stem}_critic{extension}"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

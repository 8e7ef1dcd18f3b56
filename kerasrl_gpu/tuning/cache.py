"""Choices of earlier runs in one JSON file. A cache that fails costs a search, never a run."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.tuning.choose import Choice, Reading
from kerasrl_gpu.tuning.points import Point

_FORMAT = 1
_MOST = 200  # choices that are kept, a few kB each
_TRIES = 10
# What a file may hold that is no cache: not JSON, nested too deep, of other types.
_DAMAGE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)


def default_path() -> Path:
    """tuning.json in the user's cache directory, $XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the XDG specification has relative ones ignored
        root = Path(base)
    else:
        try:
            root = Path.home() / ".cache"
        except RuntimeError:  # a user without a home, as containers have
            root = Path(tempfile.gettempdir())
    return root / "kerasrl_gpu" / "tuning.json"


def opened(cache) -> Cache | None:
    """The file that an argument names; touches none.

    Args:
        cache: True for `default_path()`, False for none, or a path.

    Raises:
        ArgumentError: anything else.
    """
    if isinstance(cache, bool):
        return Cache() if cache else None
    if isinstance(cache, str | os.PathLike):
        return Cache(cache)
    raise ArgumentError(f"cache={cache!r}; pass True, False or the path of a file.")


class Cache:
    """Choices by what they depend on.

    The file is replaced as a whole, so a reader or a killed writer never sees half of one. Of two
    processes that write in the same instant, one may lose its entry.

    Args:
        path: the file; None takes `default_path()`.
    """

    def __init__(self, path=None):
        self.path = default_path() if path is None else Path(path)

    def get(self, key: Mapping) -> Choice | None:
        """The choice that was put under an equal key, or None; warns where it cannot be read.

        Args:
            key: name -> string, number, bool or None; the order does not matter.

        Raises:
            ArgumentError: the key holds something else.
        """
        name = _name(key)
        try:
            entry = self._entries().get(name)
            return None if entry is None else _choice(entry)
        except _DAMAGE as error:
            return self._warn(f"is no tuning cache ({error!r}) and is written anew")
        except OSError as error:
            return self._warn(f"cannot be read ({error.strerror}); tuning starts from nothing")

    def put(self, key: Mapping, choice: Choice) -> None:
        """Keep a choice; warns where it cannot be written. The oldest of over 200 go.

        Raises:
            ArgumentError: the key holds something else than strings, numbers, bools and None.
        """
        name, entry = _name(key), _plain(choice)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for last in range(_TRIES - 1, -1, -1):
                if self._try_put(name, entry, whatever_comes=not last):
                    return
        except OSError as error:
            self._warn(f"cannot be written ({error.strerror}); the next run tunes again")

    def _try_put(self, name, entry, whatever_comes) -> bool:
        """Add an entry to what is there; False if another process wrote meanwhile."""
        seen = self._stamp()
        try:
            entries = self._entries()
        except _DAMAGE:
            entries = {}
        entries.pop(name, None)
        entries[name] = entry
        kept = dict(list(entries.items())[-_MOST:])
        handle, temporary = tempfile.mkstemp(".tmp", f".{self.path.name}.", self.path.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump({"format": _FORMAT, "choices": kept}, file)
            if not whatever_comes and self._stamp() != seen:
                return False
            os.replace(temporary, self.path)
            return True
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _entries(self) -> dict:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}, this version reads {_FORMAT}")
        return dict(content["choices"].items())

    def _stamp(self):
        """What changes when the file is replaced; None where there is none."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _warn(self, what) -> None:
        warnings.warn(f"{self.path} {what}.", stacklevel=3)


def _name(key) -> str:
    """The key as text, the same for equal keys."""
    for word, value in key.items():
        if not isinstance(word, str) or not isinstance(value, str | int | float | None):
            raise ArgumentError(
                f"the key has {word!r}: {value!r}; pass names with strings, numbers, bools or None."
            )
    return json.dumps(dict(key), sort_keys=True)


def _plain(choice: Choice) -> dict:
    """The choice as JSON; every number comes back exactly."""
    curve = [[list(reading.point), *reading[1:]] for reading in choice.curve]
    return {"point": list(choice.point), "reason": choice.reason, "curve": curve}


def _choice(entry) -> Choice:
    """The way back from `_plain`; raises one of `_DAMAGE` for anything else."""
    curve = [_reading(*row) for row in entry["curve"]]
    return Choice(_point(entry["point"]), _checked(entry["reason"], str), curve)


def _reading(point, samples_per_s, p10, p90, peak_bytes, skipped) -> Reading:
    rates = [_checked(rate, int | float | None) for rate in (samples_per_s, p10, p90)]
    skipped = _checked(skipped, str | None)
    return Reading(_point(point), *rates, _checked(peak_bytes, int), skipped)


def _point(values) -> Point:
    return Point(*(_checked(value, int) for value in values))


def _checked(value, kind):
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is no {kind}")
    return value

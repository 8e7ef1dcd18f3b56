"""What a probe says, and how probes are read so that none of them can stop a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kerasrl_gpu.errors import ArgumentError, in_words


class Reading(NamedTuple):
    """One resource at one time.

    Attributes:
        name: "device" (the framework's allocator), "card" (what the driver says of it), "process"
            (its tree against the smallest limit), "host" (the whole machine), "address space",
            "stalls" or "disk".
        used_bytes: what counts against the limit; None where it is unknown.
        limit_bytes: what may be used in all; None where it is unknown.
        source: the file or the call that the numbers came from.
        others_bytes: of the used ones, other processes'; None where nobody can tell.
        peak_bytes: the most that this process ever used; None where nobody keeps it.
        missing: why there is nothing to read, a sentence; the numbers are None then.
        share: of the time, 0 to 1, that everything waited for memory; in place of bytes.
    """

    name: str
    used_bytes: int | None
    limit_bytes: int | None
    source: str
    others_bytes: int | None = None
    peak_bytes: int | None = None
    missing: str | None = None
    share: float | None = None

    @property
    def fraction(self) -> float | None:
        """used / limit, or the share of the time; None where either number is unknown."""
        if self.share is not None:
            return self.share
        if self.used_bytes is None or not self.limit_bytes:
            return None
        return self.used_bytes / self.limit_bytes


Probe = Callable[[], Reading]


def absent(name: str, source: str, why: str) -> Reading:
    """The reading of something that cannot be read, with a sentence that says why."""
    return Reading(name, None, None, source, missing=why)


def listed(probes) -> list[Probe] | None:
    """A user's probes as a list; None for "auto".

    Raises:
        ArgumentError: anything else than callables.
    """
    if isinstance(probes, str) and probes == "auto":
        return None
    found = list(probes) if isinstance(probes, Iterable) else [probes]
    if not all(map(callable, found)):
        raise ArgumentError(f'probes={probes!r}; pass "auto", or a list of callables.')
    return found


def read(probes: Iterable[Probe]) -> list[Reading]:
    """A reading from each probe; one that fails gives a reading that says so."""
    return [_read_one(probe) for probe in probes]


def _read_one(probe) -> Reading:
    name = _name(probe)
    try:
        found = probe()
    except Exception as error:  # whatever a driver or a user's own probe comes up with
        return absent(name, "probe", f"The probe failed: {in_words(error).rstrip('.')}.")
    if isinstance(found, Reading):
        return found
    return absent(
        name,
        "probe",
        f"The probe returned {type(found).__name__}; a probe returns a probes.Reading.",
    )


def _name(probe) -> str:
    """What a probe's own reading would be called, as far as the probe's name tells."""
    function = getattr(probe, "func", probe)  # functools.partial's
    name = getattr(function, "__name__", type(probe).__name__)
    return str(name).replace("_", " ").lower()

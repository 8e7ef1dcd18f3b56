"""`kerasrl-gpu doctor`: what a run finds on this machine, and what to do about what is wrong."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
from typing import NamedTuple

import numpy as np

from kerasrl_gpu import __version__, probes
from kerasrl_gpu.commands import advice
from kerasrl_gpu.errors import ArgumentError, DeviceInUse, check_count, in_words
from kerasrl_gpu.units import human_bytes

_DISTRIBUTIONS = (
    *("keras", "tensorflow", "jax", "numpy", "gymnasium", "keras-rl2"),
    *("psutil", "nvidia-ml-py"),
)


class Observation(NamedTuple):
    """What one observation is."""

    shape: tuple
    dtype: str


def doctor(path: str, limit: int, observation: Observation | None) -> bool:
    """Print what there is, what binds, and what is wrong.

    Args:
        path: where checkpoints would go.
        limit: rows of the pool that is asked about.
        observation: what it would store; None asks about no pool.

    Returns:
        whether a run could start: the backend is there, and the pool fits.

    Raises:
        ArgumentError, ObservationError: observations that cannot be stored.
    """
    facts = examine(path)
    print(_about(facts))
    print("\n".join(_line(one) for one in facts.readings))
    print(_binding(facts.readings))
    pool = None
    if observation is not None and facts.failure is None:
        pool = price(limit, observation)
        print(pool)
    found = advice.give(facts, pool)
    print("\n".join(f"- {sentence}" for sentence in found) or "Nothing is wrong.")
    return facts.failure is None and (pool is None or pool.fits)


def examine(path: str) -> advice.Facts:
    """Everything that can be known without training."""
    backend, devices, on_cpu, growth, failure = None, [], True, False, None
    try:
        from kerasrl_gpu import engine

        backend, growth = engine.NAME, engine.memory_growth()
        _leave_the_card_alone(engine)
        devices, on_cpu = engine.devices(), engine.on_cpu()
    except Exception as error:  # whatever a broken installation comes up with
        failure = in_words(error)
    return advice.Facts(
        asked=os.environ.get("KERAS_BACKEND"),
        backend=backend,
        failure=failure,
        devices=devices,
        on_cpu=on_cpu,
        growth=growth,
        installed={name: version(name) for name in _DISTRIBUTIONS},
        readings=probes.read(probes.auto(path)),
    )


def _leave_the_card_alone(engine) -> None:
    """A look at the devices starts them, and must not take the card from a run beside it."""
    with contextlib.suppress(DeviceInUse):  # started before this command
        engine.set_memory_growth()


def version(distribution: str) -> str | None:
    """Of an installed distribution; None where it is not there."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        # TensorFlow has several distributions of one module
        there = importlib.util.find_spec(distribution) is not None
        return "installed" if there else None


def rows(text: str) -> int:
    """A number of rows as a command line writes it.

    Raises:
        ArgumentError: no whole number of at least 1.
    """
    try:
        return check_count("--limit", int(text.replace(",", "")), 1)
    except ValueError:
        raise ArgumentError(f"--limit {text}: pass a whole number of at least 1.") from None


def observation(text: str) -> Observation:
    """An observation as a command line writes it: "84x84:uint8", or "17" for 17 floats.

    Raises:
        ArgumentError: another text.
    """
    sizes, _, dtype = text.partition(":")
    try:
        shape = tuple(int(size) for size in sizes.split("x"))
        name = np.dtype(dtype or "float32").name
    except (ValueError, TypeError):
        shape = ()
    if not shape or min(shape) < 1:
        raise ArgumentError(
            f"--observation {text}: pass a shape and a type, such as 84x84:uint8, or 17:float32."
        )
    return Observation(shape, name)


def price(limit: int, seen: Observation) -> advice.Pool:
    """What a pool of so many rows takes, and what there is for it."""
    from kerasrl_gpu.memory import DeviceMemory
    from kerasrl_gpu.planning import room

    told = DeviceMemory(limit).estimate(np.zeros(seen.shape, seen.dtype))
    return advice.Pool(told["limit"], told["row_bytes"], told["nbytes"], room.spendable(None))


def _about(facts: advice.Facts) -> str:
    versions = [f"{name} {number}" for name, number in facts.installed.items() if number]
    lines = [
        f"kerasrl-gpu {__version__}, Python {platform.python_version()}, {', '.join(versions)}",
        f"KERAS_BACKEND: {facts.asked or 'not set'}",
    ]
    if facts.failure is None:
        lines.append(f"backend: {facts.backend}, on {', '.join(facts.devices)}")
        if not facts.on_cpu:
            lines.append(f"memory growth: {'set' if facts.growth else 'not set'}")
    return "\n".join(lines)


def _line(one: probes.Reading) -> str:
    if one.missing is not None:
        return f"  {one.name:<14}-  {one.missing}"
    words = [] if one.fraction is None else [f"{one.fraction:.0%}"]
    if one.used_bytes is not None:
        limit = "" if one.limit_bytes is None else f" of {human_bytes(one.limit_bytes)}"
        words.append(f"{human_bytes(one.used_bytes)}{limit}")
    if one.others_bytes:
        words.append(f"{human_bytes(one.others_bytes)} by others")
    return f"  {one.name:<14}{', '.join(words)}  ({one.source})"


def _binding(readings: list[probes.Reading]) -> str:
    """Which memory would run out first, by the share of it that is in use."""
    memory = (one for one in readings if one.name != "disk" and one.share is None)
    known = [one for one in memory if one.fraction is not None]
    if not known:
        return "No limit on memory could be read."
    first = max(known, key=lambda one: one.fraction)
    return (
        f"closest to its limit: {first.name}, {human_bytes(first.used_bytes)} of "
        f"{human_bytes(first.limit_bytes)} ({first.source})"
    )

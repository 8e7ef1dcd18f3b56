"""What is wrong with an installation, in sentences that name what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kerasrl_gpu.probes import Reading
from kerasrl_gpu.units import human_bytes

_FULL = 0.9  # of the disk
_TIGHT = 0.75  # of memory: where a guard begins to watch
_PACKAGES = {"tensorflow": "tensorflow", "jax": "kerasrl-gpu[jax]"}
_WITH_CUDA = {"tensorflow": "tensorflow[and-cuda]", "jax": "kerasrl-gpu[jax-cuda]"}
_MEMORY = {
    "device": "the device's memory",
    "card": "the GPU's memory",
    "process": "this process's limit",
    "host": "the machine's memory",
    "address space": "the address space",
}
_NAMES = {"tensorflow": "TensorFlow", "jax": "JAX"}


class Facts(NamedTuple):
    """What a run would find.

    Attributes:
        asked: KERAS_BACKEND; None where it is not set.
        backend: the engine that was loaded; None where none could be.
        failure: why not.
        devices: of the backend, as it names them.
        on_cpu: whether pools would lie on a CPU.
        growth: whether memory growth is set (TensorFlow), or preallocation off (JAX).
        installed: {distribution: version, or None where it is not there}.
        readings: of every probe.
    """

    asked: str | None
    backend: str | None
    failure: str | None
    devices: list[str]
    on_cpu: bool
    growth: bool
    installed: dict[str, str | None]
    readings: list[Reading]


class Pool(NamedTuple):
    """A pool that is asked about, and the bytes that there are for it; None: unknown."""

    limit: int
    row_bytes: int
    nbytes: int
    free_bytes: int | None

    @property
    def fits(self) -> bool:
        """Whether it does, beside nothing else."""
        return self.free_bytes is None or self.nbytes <= self.free_bytes

    def __str__(self) -> str:
        free = "nobody knows how much" if self.free_bytes is None else human_bytes(self.free_bytes)
        return (
            f"a pool of {self.limit:,} rows of {self.row_bytes:,} B takes "
            f"{human_bytes(self.nbytes)}; {free} is free for it"
        )


def give(facts: Facts, pool: Pool | None) -> list[str]:
    """A sentence for each thing that is wrong, what keeps a run from starting first."""
    return [*_backend(facts), *_pool(facts, pool), *_card(facts), *_packages(facts), *_full(facts)]


def _backend(facts: Facts) -> Iterator[str]:
    if facts.failure is None:
        return
    wanted = facts.asked or "tensorflow"  # what Keras takes where nobody asks
    if wanted not in _PACKAGES:
        yield (
            f"KERAS_BACKEND={wanted} is no backend of this package: `export "
            "KERAS_BACKEND=tensorflow`, or jax."
        )
        return
    if facts.installed.get(wanted):
        yield f"{_NAMES[wanted]} cannot be loaded: {facts.failure.rstrip('.')}."
        return
    sentence = (
        f"KERAS_BACKEND={facts.asked}, and {_NAMES[wanted]} is not installed: "
        if facts.asked
        else "KERAS_BACKEND is not set, so that Keras takes TensorFlow, which is not installed: "
    )
    sentence += f"`pip install '{_PACKAGES[wanted]}'`"
    other = "jax" if wanted == "tensorflow" else "tensorflow"
    if facts.installed.get(other):
        sentence += f", or take {_NAMES[other]}: `export KERAS_BACKEND={other}`"
    yield f"{sentence}."


def _pool(facts: Facts, pool: Pool | None) -> Iterator[str]:
    if pool is None:
        return
    if not pool.fits:
        yield (
            f"The pool of {human_bytes(pool.nbytes)} does not fit into the "
            f"{human_bytes(pool.free_bytes)} that are free: pass "
            f"limit={pool.free_bytes // pool.row_bytes:_} or less, or store frames as uint8."
        )
    host = _reading(facts, "host")
    if pool.fits and facts.on_cpu and host and pool.nbytes > host.limit_bytes - host.used_bytes:
        yield (
            f"The pool of {human_bytes(pool.nbytes)} is more than the machine has left just now, "
            f"{human_bytes(host.limit_bytes - host.used_bytes)}: end what else runs there, or pass "
            "a smaller limit."
        )
    disk = _reading(facts, "disk")
    if disk is not None and pool.nbytes > disk.limit_bytes - disk.used_bytes:
        yield (
            f"A checkpoint with such a pool takes up to {human_bytes(pool.nbytes)}, and "
            f"{disk.source} has {human_bytes(disk.limit_bytes - disk.used_bytes)} left: save "
            "somewhere else, or make room."
        )


def _card(facts: Facts) -> Iterator[str]:
    if facts.failure is not None:
        return
    name = _NAMES[facts.backend]
    if facts.on_cpu and _reading(facts, "card") is not None:
        yield (
            f"There is a GPU, and {name} sees none: `pip install '{_WITH_CUDA[facts.backend]}'`."
        )
    if not facts.on_cpu and not facts.growth:
        takes = "all" if facts.backend == "tensorflow" else "three quarters"
        yield (
            f"{name} takes {takes} of the GPU's memory at its start, and no other process gets "
            "it: call `kerasrl_gpu.set_memory_growth()` right behind the imports where several "
            "share the GPU."
        )


def _packages(facts: Facts) -> Iterator[str]:
    if not facts.installed.get("psutil"):
        yield (
            "psutil is not installed, so that memory is read from /proc alone, which only Linux "
            "has: `pip install psutil`."
        )
    if not facts.on_cpu and not facts.installed.get("nvidia-ml-py"):
        yield (
            "nvidia-ml-py is not installed, so that nobody sees what other processes take of the "
            "GPU: `pip install nvidia-ml-py`."
        )


def _full(facts: Facts) -> Iterator[str]:
    disk = _reading(facts, "disk")
    if disk is not None and disk.fraction is not None and disk.fraction >= _FULL:
        yield (
            f"The disk is nearly full: {human_bytes(disk.limit_bytes - disk.used_bytes)} of "
            f"{human_bytes(disk.limit_bytes)} are left on {disk.source}; checkpoints need room "
            "for two at a time. Look at `du -sh *` there, or save somewhere else."
        )
    for name, what in _MEMORY.items():
        one = _reading(facts, name)
        if one is not None and one.fraction is not None and one.fraction >= _TIGHT:
            others = (
                f", {human_bytes(one.others_bytes)} of it by others" if one.others_bytes else ""
            )
            yield (
                f"{one.fraction:.0%} of {what} is in use{others}: end what is not needed, or "
                f"pass a `budget=` to the memory ({one.source})."
            )


def _reading(facts: Facts, name: str) -> Reading | None:
    """The reading of this name, where there is something to read."""
    found = (one for one in facts.readings if one.name == name and one.missing is None)
    return next(found, None)

"""Exception classes and shape checks. Every message says what came, what fits, what to type."""

from __future__ import annotations

import numbers

RESTART_STATUS = 75  # EX_TEMPFAIL of sysexits.h: a later try may go well


class KerasRLError(Exception):
    """Base of every error that this package raises on purpose."""


class ShapeError(KerasRLError, ValueError):
    """An array, a network or an observation has a shape that does not fit."""


class ArgumentError(KerasRLError, ValueError):
    """An argument has a value, or arguments stand in a combination, that cannot be honoured."""


class ObservationError(KerasRLError, ValueError):
    """The environment returned an observation or a reward that cannot be stored."""


class PoolTooLarge(KerasRLError, MemoryError):
    """The replay pool asked for does not fit into the memory that is there."""


class SpillFailed(KerasRLError, OSError):
    """Rows of the pool were to move to another tier, and there was no room for them."""


class OutOfMemory(KerasRLError, MemoryError):
    """A device call ran out of memory; nothing was lost, and it can be run again."""


class StateLost(KerasRLError, RuntimeError):
    """A device call ran out of memory and took the training state with it."""


class EmptyPool(KerasRLError, RuntimeError):
    """A batch was asked for while no stored row can start a transition."""


class NotCompiled(KerasRLError, RuntimeError):
    """The agent was used before `compile`."""


class CheckpointError(KerasRLError, RuntimeError):
    """A checkpoint cannot be written, is damaged, or does not fit the agent that it is for."""


class SnapshotError(KerasRLError, RuntimeError):
    """An environment's state cannot be taken, or does not fit the environment it is given to."""


class TuningStopped(KerasRLError, RuntimeError):
    """Tuning was broken off because the run was asked to stop; nothing has changed."""


class BackendError(KerasRLError, RuntimeError):
    """The Keras backend is one that this package has no engine for."""


class DeviceInUse(KerasRLError, RuntimeError):
    """The device has been started already, and what was asked for has to be said before."""


class MemoryExit(SystemExit):
    """The run has saved itself and ends, so that its memory is given back; start it once more.

    Where nobody catches it the process ends with status 75, as a script that knows nothing of it
    does, and `kerasrl-gpu supervise` then starts the script again. It is no KerasRLError and no
    Exception: `except Exception` around a `fit` must not swallow it. A plain `SystemExit(75)` or
    `sys.exit(75)` asks a supervisor for the same.

    Args:
        reason: a sentence for `str(error)`. Nothing prints it when the process ends, so whoever
            raises this says it.
    """

    def __init__(self, reason: str):
        super().__init__(reason)
        self.code = RESTART_STATUS  # a text in here would be printed, and the status be 1


def in_words(error: BaseException) -> str:
    """An error inside another text; its class is named where its message may not say enough."""
    return str(error) if isinstance(error, KerasRLError) else f"{type(error).__name__}: {error}"


def check_count(name: str, value, least: int = 0) -> int:
    """`value` as an int; raises ArgumentError unless it is a whole number of at least `least`."""
    if not _is_number(value) or value != value // 1 or value < least:
        raise ArgumentError(f"{name}={value!r}; pass a whole number of at least {least}.")
    return int(value)


def check_number(name: str, value, fits, what: str):
    """`value`; raises ArgumentError with `what` to pass unless it is a number and `fits(value)`."""
    if not _is_number(value) or not fits(value):
        raise ArgumentError(f"{name}={value!r}; pass {what}.")
    return value


def _is_number(value) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value


def check_shapes(axes: str, *arrays) -> None:
    """Raise ShapeError unless every letter of `axes` stands for one size.

    Args:
        axes: one word an array, one letter an axis: "B B BA" is two vectors and a matrix whose
            first axes agree.
        arrays: anything with a static `shape`.
    """
    words, sizes = axes.split(), {}
    shapes = [tuple(array.shape) for array in arrays]
    for word, shape in zip(words, shapes, strict=True):
        if len(word) != len(shape) or any(
            sizes.setdefault(letter, size) != size for letter, size in zip(word, shape, strict=True)
        ):
            raise ShapeError(
                f"shapes {shapes} do not fit {axes!r}: {word!r} came as {shape}, "
                f"with {sizes} from the arrays before it."
            )

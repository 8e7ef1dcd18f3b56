"""What callbacks hold of a run, for a checkpoint: by their own `get_state`, or what changed.

A callback that has `get_state()` and `set_state(state)`, of plain values and arrays, is asked. Of
Keras' callbacks and a user's own without them, the plain attributes that the run has changed since
it began are taken; what was passed to the constructor is not, so it can be changed on resume.
Bars and printed lines start anew.
"""

from kerasrl_gpu import attributes
from kerasrl_gpu.callbacks import log_files
from kerasrl_gpu.errors import CheckpointError
from kerasrl_gpu.names import class_name, same_class

_NOT_PLAIN = object()
VIEW = "view"  # what stands for Keras' callbacks' view in place of a class
_OF_THE_RUN = ("agent", "env", "model", "params", "validation_data", "_model", "_agent", "_env")


def plain(callback) -> dict:
    """The plain attributes of a callback that has no say of its own; {} of ours and keras-rl's."""
    if has_own(callback) or _is_ours(class_name(callback)):
        return {}
    return {
        name: copy
        for name, value in vars(callback).items()
        if name not in _OF_THE_RUN and (copy := _copied(value)) is not _NOT_PLAIN
    }


def has_own(callback) -> bool:
    """Whether it has a state of its own."""
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def get_state(callback, began: dict) -> dict:
    """One callback as plain data.

    Args:
        began: `plain(callback)` when the run began.
    """
    if has_own(callback):
        state = callback.get_state()
    else:
        state = {
            name: value
            for name, value in plain(callback).items()
            if name not in began or not attributes.same(value, began[name])
        }
    return {"class": class_name(callback), "state": state, "files": log_files.marks(callback)}


def set_state(callback, state, began: dict) -> None:
    """Put a callback where `get_state` was called, after it began its run.

    Args:
        began: as in `get_state`; it forgets what is put back here, so that the next checkpoint
            holds that again, changed or not.
    """
    if has_own(callback):
        callback.set_state(state)
        return
    attributes.restore(callback, state)
    for name in state:
        began.pop(name, None)


def pairs(callbacks, saved: list):
    """(callback, its saved entry): the n-th of a class gets the n-th that was saved of it."""
    left = list(saved)
    for callback in callbacks:
        found = next(
            (entry for entry in left if same_class(entry["class"], class_name(callback))), None
        )
        if found is not None:
            left.remove(found)
            yield callback, found


def unmatched(callbacks, saved: list) -> list[str]:
    """Names of the callbacks that only a checkpoint has; those that merely print are left out."""
    found = {id(entry) for _, entry in pairs(callbacks, saved)}
    return [
        entry["class"].partition(":")[2]
        for entry in saved
        if id(entry) not in found
        and (entry["files"] or (entry["state"] and not _is_ours(entry["class"])))
    ]


def _is_ours(name: str) -> bool:
    return name.startswith(("kerasrl_gpu.", "rl.", VIEW))


def _copied(value):
    try:
        return attributes.copied(value)
    except CheckpointError:
        return _NOT_PLAIN

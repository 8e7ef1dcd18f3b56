"""The objects of an agent that a checkpoint holds: policies, noise, processors, global generators.

A class of the user's own says what it holds by `get_state()` and `set_state(state)`, of plain
values and arrays; without them its plain attributes are taken.
"""

from __future__ import annotations

import inspect
import random
from contextlib import contextmanager

import numpy as np

from kerasrl_gpu import attributes
from kerasrl_gpu.errors import CheckpointError
from kerasrl_gpu.names import class_name, same_class


def get_state(part) -> dict | None:
    """One part as plain data; None of None.

    Returns:
        {"class": "module:name", "state", "missing": what of its attributes could not be taken,
        "description": what `attributes.rebuild` makes a copy of, None for a foreign class}.
    """
    if part is None:
        return None
    saved = {"class": class_name(part), "state": None, "missing": {}, "description": None}
    try:
        return {**saved, "description": attributes.describe(part)}
    except CheckpointError:  # a class of the user's own, or one that holds such
        pass
    if _has_own_state(part):
        return {**saved, "state": part.get_state()}
    state, missing = attributes.capture(part, skip=("agent", "env"))
    return {**saved, "state": state, "missing": missing}


def check(name: str, part, saved: dict | None) -> None:
    """Raise CheckpointError where a part is of another class, or was made with other arguments."""
    theirs = None if saved is None else saved["class"]
    ours = None if part is None else class_name(part)
    if not same_class(theirs, ours):
        raise CheckpointError(
            f"{name} was {_text(theirs)} and is {_text(ours)} here. Pass one like it, or "
            f"allow=({name!r},) to go on with this one as it is."
        )
    there = None if saved is None else saved["description"]
    if there is None:  # what a class of the user's own makes of its arguments is its own affair
        return
    here = attributes.describe(part)["state"]
    for argument in inspect.signature(type(part)).parameters:
        old, new = there["state"].get(argument), here.get(argument)
        if not isinstance(old, dict) and not np.array_equal(old, new):
            raise CheckpointError(
                f"{name}.{argument} was {old!r} in the checkpoint and is {new!r} here. Pass what "
                f"it was, or allow=({name!r},) to go on with this one as it is."
            )


def replaced_arguments(name: str, part, saved: dict) -> list[str]:
    """A line for each argument of a foreign class whose saved value will replace this one."""
    if saved["description"] is not None or _has_own_state(part):
        return []
    here, _ = attributes.capture(part, skip=("agent", "env"))
    return [
        f"{name}.{argument}={here[argument]!r}: {saved['state'][argument]!r} holds, as it was saved"
        for argument in inspect.signature(type(part)).parameters
        if argument in here
        and argument in saved["state"]
        and not attributes.same(here[argument], saved["state"][argument])
    ]


def set_state(part, saved: dict) -> None:
    """Put a part that passed `check` where `get_state` was called."""
    if saved["description"] is not None:
        attributes.restore(part, saved["description"]["state"])
    elif _has_own_state(part):
        part.set_state(saved["state"])
    else:
        attributes.restore(part, saved["state"])


def rebuild(name: str, saved: dict | None):
    """A part made from a checkpoint alone.

    Raises:
        CheckpointError: its class is none of keras-rl's or ours.
    """
    if saved is None:
        return None
    if saved["description"] is None:
        raise CheckpointError(
            f"{name} is of a class of your own, {saved['class']}, which a checkpoint does not "
            f"bring back; make one and pass it as {name}=..."
        )
    return attributes.rebuild(saved["description"])


def get_global_generators() -> dict:
    """NumPy's and Python's global generators, which keras-rl's own objects draw from."""
    return {"numpy": np.random.get_state(legacy=False), "python": random.getstate()}  # noqa: NPY002


def set_global_generators(state: dict) -> None:
    """Put them where `get_global_generators` was called."""
    np.random.set_state(state["numpy"])  # noqa: NPY002
    random.setstate(state["python"])


@contextmanager
def generators_kept():
    """Put them back afterwards: what is drawn inside was not drawn."""
    held = get_global_generators()
    try:
        yield
    finally:
        set_global_generators(held)


def _has_own_state(part) -> bool:
    """Whether a class of the user's own says what it holds.

    What it inherits from ours does not: it knows nothing of the attributes that came on top.
    """
    return all(_is_own(part, name) for name in ("get_state", "set_state"))


def _is_own(part, name) -> bool:
    owner = next((kind for kind in type(part).__mro__ if name in vars(kind)), None)
    return owner is not None and not owner.__module__.startswith("kerasrl_gpu.")


def _text(name: str | None) -> str:
    return "none" if name is None else name.replace(":", ".")

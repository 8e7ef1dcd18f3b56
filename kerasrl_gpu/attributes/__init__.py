"""What an object's attributes hold, as plain data, and back.

Plain data is a tree of None, bool, int, float, str, bytes, list, tuple, dict, deque, set, NumPy
scalars and arrays without objects. What is more than that stands in the tree as a dict with the
key "$": a random generator, a nested object, a dtype, something met before, something left alone.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from kerasrl_gpu.attributes.walks import Capture, Restore, check_rebuildable, made
from kerasrl_gpu.errors import CheckpointError
from kerasrl_gpu.names import class_name

_SEQUENCES = (list, tuple, deque)


def capture(thing, skip=()) -> tuple[dict, dict]:
    """The attributes of `thing`, copied.

    Generators, spaces (their generators) and objects of keras-rl, this package and Gymnasium are
    taken too. Functions, classes, loggers, windows and the like are left alone: whoever restores
    has constructed an object that has them.

    Args:
        skip: names of attributes to leave out, of `thing` and of the objects in it.

    Returns:
        (state: name -> plain data; missing: path of an attribute -> what it is, where it is
        neither taken nor left alone).
    """
    return capture_all([thing], [skip])[0]


def capture_all(things: list, skips: list) -> list[tuple[dict, dict]]:
    """`capture` of several things at once; what they share is taken once, and stays shared."""
    walk = Capture(things)
    return [(walk.attributes(*pair), walk.pop_missing()) for pair in zip(things, skips)]


def restore(thing, state: dict) -> None:
    """Give `thing` the attributes that `capture` took.

    Generators, spaces and nested objects are set in place, since others may share them; everything
    else is replaced by a copy. Attributes that are not in `state` stay.

    Raises:
        CheckpointError: a nested object is not there, or is of another class.
    """
    restore_all([thing], [state])


def restore_all(things: list, states: list) -> None:
    """`restore` for what `capture_all` took."""
    walk = Restore(things)
    for thing, state in zip(things, states, strict=True):
        walk.attributes(thing, state, type(thing).__name__)


def copied(tree):
    """A deep copy of plain data.

    Raises:
        CheckpointError: it holds something else; the message names it.
    """
    walk = Capture([])
    node = walk.value(tree, "it", ())
    for path, what in {**walk.missing, **walk.special}.items():
        raise CheckpointError(
            f"{path} is {what}, which is no plain data: numbers, strings, lists, dicts and arrays."
        )
    return Restore([]).value(node, None, "it")


def told(value):
    """Plain data, copied; of anything else its name, which is the same in every process.

    The module is left out: a script that was run is `__main__`, and has another name elsewhere.
    """
    try:
        return copied(value)
    except CheckpointError:
        return f"<{getattr(value, '__qualname__', type(value).__qualname__)}>"


def same(one, other) -> bool:
    """Whether two trees of plain data hold equal values; NaN is equal to NaN, a list to a tuple."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, _SEQUENCES) and isinstance(other, _SEQUENCES):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        nan_may_be = one.dtype.kind in "fc" and other.dtype.kind in "fc"
        return np.array_equal(one, other, equal_nan=nan_may_be)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other or (one != one and other != other))


def describe(thing) -> dict:
    """{"class": "module:Name", "state": plain data} from which `rebuild` makes the like of `thing`.

    A policy's agent is left out.

    Args:
        thing: a policy, random process or processor of keras-rl or this package.

    Raises:
        CheckpointError: it is of another class, or holds what cannot be rebuilt.
    """
    check_rebuildable(class_name(thing))
    walk = Capture([thing])
    state = walk.attributes(thing, ("agent",))
    for path, what in {**walk.missing, **walk.left}.items():
        raise CheckpointError(
            f"{type(thing).__name__}.{path} is {what}, which cannot be rebuilt from a checkpoint. "
            "Construct the object yourself and pass it."
        )
    for name in walk.classes:
        check_rebuildable(name)
    return {"class": class_name(thing), "state": state}


def rebuild(description: dict):
    """The object that `describe` described, without an agent.

    Its constructor is not called: keras-rl's `get_config` leaves arguments out.

    Raises:
        CheckpointError: its class, or that of an object in it, is none that `describe` takes.
    """
    thing = made(description["class"])
    restore(thing, description["state"])
    return thing

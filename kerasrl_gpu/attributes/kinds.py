"""What kind of value an attribute holds: what can be copied, taken apart, or must be left alone."""

from __future__ import annotations

import enum
import functools
import logging
import types
from collections import deque

import numpy as np
from gymnasium import Space

from kerasrl_gpu.attributes import generators

_BUILT_IN = (int, float, str, bytes, list, dict, set, deque, np.ndarray)
_ATOMS = (type(None), bool, int, float, str, bytes)

# Objects of these packages hold no more than their attributes say, nor do subclasses of theirs.
_OPEN = {"rl", "kerasrl_gpu", "gymnasium", "gym"}

# Made by a constructor, and without a state that the future depends on.
_CONSTANT = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    functools.partial,
    type,
    np.ufunc,
    logging.Logger,
    logging.LoggerAdapter,
)
_CONSTANT_MODULES = (
    "pygame",
    "gym.envs.registration",
    "gymnasium.envs.registration",
    "gymnasium.envs.mujoco.mujoco_rendering",
)


def is_atom(value) -> bool:
    """Whether `value` is plain, immutable and holds nothing."""
    return type(value) in _ATOMS or (isinstance(value, np.generic) and value.dtype.kind not in "OV")


def is_key(value) -> bool:
    """Whether `value` may be the key of a dict or an element of a set."""
    return all(map(is_key, value)) if type(value) is tuple else is_atom(value)


def is_array(value) -> bool:
    """Whether `value` is an array of numbers, strings or records, not of objects."""
    return type(value) is np.ndarray and not value.dtype.hasobject


def is_dtype(value) -> bool:
    """Whether `value` names the type of an array's elements: np.float64, np.dtype("float64")."""
    if isinstance(value, type):
        return issubclass(value, np.generic) and np.dtype(value).type is value
    return isinstance(value, np.dtype) and value.names is None and not value.hasobject


def is_constant(value) -> bool:
    """Whether `value` is part of how an object was constructed: functions, classes, windows.

    A method of a list or an array is not: the copy that is put in its place would not have it.
    """
    if isinstance(getattr(value, "__self__", None), _BUILT_IN) and not isinstance(value, type):
        return False
    home = f"{type(value).__module__}."
    return (
        isinstance(value, _CONSTANT)
        or generators.is_global(value)
        or any(home.startswith(f"{module}.") for module in _CONSTANT_MODULES)
    )


def is_random(value) -> bool:
    """Whether `value` is a random generator, or a space, which has one."""
    return isinstance(value, Space) or generators.is_generator(value)


def is_open(value) -> bool:
    """Whether `value` is an object that its attributes describe in full."""
    if isinstance(value, (enum.Enum, tuple, *_BUILT_IN)):
        return False
    return any(kind.__module__.partition(".")[0] in _OPEN for kind in type(value).__mro__)


def attributes_of(thing) -> dict:
    """Name -> value of an object's attributes, those in slots and its class' spaces included.

    Of a space only what leads to generators: its bounds belong to the constructor.
    """
    found = {}
    for name in ("action_space", "observation_space"):
        if isinstance(getattr(type(thing), name, None), Space):
            found[name] = getattr(type(thing), name)
    for kind in reversed(type(thing).__mro__):
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                found[name] = getattr(thing, name)
    found.update(getattr(thing, "__dict__", {}))
    if isinstance(thing, Space):
        return {name: value for name, value in found.items() if _leads_to_generators(name, value)}
    return found


def _leads_to_generators(name: str, value) -> bool:
    parts = list(value.values()) if isinstance(value, dict) else value
    if isinstance(parts, (list, tuple)):
        return any(isinstance(part, Space) for part in parts)
    return name == "_np_random" or isinstance(value, Space)

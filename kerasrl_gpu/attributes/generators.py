"""States of NumPy's and Python's random generators as plain data, and back.

The generators of a process, which `numpy.random.seed` and `random.seed` set, are left out: they
belong to nobody's attributes.
"""

from __future__ import annotations

import functools
import random
import types

import numpy as np

from kerasrl_gpu.errors import CheckpointError

_STOCK = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_GLOBAL = np.random.mtrand._rand
_PYTHONS = random.random.__self__
_EMPTY = types.CellType()  # equal to another cell without a content, which is not compared


def is_generator(value) -> bool:
    """Whether `value` is a generator whose state can be taken."""
    if isinstance(value, np.random.Generator):
        return type(value.bit_generator).__name__ in _STOCK
    if isinstance(value, np.random.RandomState):
        return value is not _GLOBAL and value.get_state(legacy=False)["bit_generator"] in _STOCK
    return isinstance(value, random.Random) and not is_global(value)


def is_global(value) -> bool:
    """Whether `value` is a generator without a state of its own: the process', or the system's."""
    return value is _GLOBAL or value is _PYTHONS or isinstance(value, random.SystemRandom)


def behind(function) -> list:
    """The generators that a function draws from, as far as it names them, each once.

    Those in its closure, its defaults and its module, in functions among them too; that of a
    generator's method; those among the arguments of a `functools.partial`.
    """
    found, seen, waiting = [], set(), [function]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_generator(value):
            found.append(value)
        elif isinstance(value, functools.partial):
            waiting += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, types.FunctionType):
            waiting += _named_by(value)
        elif isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
            waiting += [getattr(value, "__func__", None), value.__self__]
    return found


def _named_by(function) -> list:
    codes = [function.__code__]
    for code in codes:  # grows: comprehensions and inner functions
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    names = {name for code in codes for name in code.co_names}
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    module = function.__globals__
    return [*cells, *defaults, *(module[name] for name in sorted(names) if name in module)]


def take(generator) -> dict:
    """{"kind": "Generator", "RandomState" or "Random"; "state": plain data, a copy}."""
    if isinstance(generator, np.random.Generator):
        return {"kind": "Generator", "state": generator.bit_generator.state}
    if isinstance(generator, np.random.RandomState):
        return {"kind": "RandomState", "state": generator.get_state(legacy=False)}
    return {"kind": "Random", "state": generator.getstate()}


def put(taken: dict, generator=None):
    """A generator that goes on where `taken` was: `generator` itself if it is of that kind.

    Args:
        taken: what `take` returned.
        generator: set in place, so that whoever shares it follows; a new one is made where it is
            None, of another kind, or runs on another bit generator.

    Raises:
        CheckpointError: `taken` is no state that `take` returns.
    """
    kind, state = taken.get("kind"), taken.get("state")
    try:
        if kind == "Random":
            return _put_python(state, generator)
        return _put_numpy(kind, state, generator)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{taken!r:.200} is no state of a random generator ({error}); take the checkpoint anew."
        ) from None


def _put_python(state, generator):
    if not is_generator(generator) or not isinstance(generator, random.Random):
        generator = random.Random()
    generator.setstate(state)
    return generator


def _put_numpy(kind, state, generator):
    name = state["bit_generator"]
    if name not in _STOCK:
        raise ValueError(f"no bit generator is called {name!r}")
    if (
        not is_generator(generator)
        or take(generator)["kind"] != kind
        or _runs_on(generator) != name
    ):
        make = {"Generator": np.random.Generator, "RandomState": np.random.RandomState}[kind]
        generator = make(getattr(np.random, name)())
    if kind == "Generator":
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
    return generator


def _runs_on(generator) -> str:
    return take(generator)["state"]["bit_generator"]

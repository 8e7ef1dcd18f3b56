"""Brings a processor's `process_state_batch`, written for NumPy, into a compiled function.

The device's version is used only if a probe on the host shows that it gives the same results and
that the method changes nothing but its result; otherwise the caller gets the reason in words, and
the host does the work.
"""

from __future__ import annotations

import copy
import dis
import inspect
import random
import types
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from keras import ops, tree

from kerasrl_gpu.keras_rl import Processor
from kerasrl_gpu.traced_array import NotTraceable, TracedArray, device_dtype

_METHOD = "process_state_batch"
_RTOL = 1e-6  # of each value, and of the largest one for values that cancel
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, type)


def trace_state_batch(processor, example: np.ndarray) -> tuple[Callable | None, str | None]:
    """`processor.process_state_batch` as a function of backend tensors, if that is safe.

    Args:
        processor: a keras-rl Processor; None, or one that leaves the method alone, is the identity.
        example: [B, k, ...], states in the dtype that the host's version would get. The
            probe runs on it and on a second batch of B + 1 of its rows in another order.

    Returns:
        (function, None): tensor[B, k, ...] -> tensor, or a list, tuple or dictionary of tensors,
        with the processor's attributes as they are now: trace again after changing one.
        (None, reason): a sentence that says why the host has to do it.
        The processor and the global random states are left untouched either way.
    """
    if processor is None or _is_identity(processor):
        return (lambda batch: batch), None
    reason = _changing_attribute(processor) or _probe(processor, np.asarray(example))
    if reason is not None:
        return None, f"{type(processor).__name__}.{_METHOD} stays on the host: {reason}."
    return (lambda batch: _call(processor, batch)), None


def attributes_read(processor) -> dict:
    """Copies of the attributes that the method may read: what a traced version depends on."""
    if processor is None or _is_identity(processor):
        return {}
    methods = _methods(type(processor))
    read = {name for used in _reached(methods) for name in _names(methods[used])}
    return copy.deepcopy({name: vars(processor)[name] for name in read & vars(processor).keys()})


def reads_the_same(processor, before: dict) -> bool:
    """Whether those attributes are still what `attributes_read` found."""
    return _same(attributes_read(processor), before)


def _is_identity(processor) -> bool:
    return getattr(
        type(processor), _METHOD, None
    ) is Processor.process_state_batch and _METHOD not in vars(processor)


def _call(processor, tensor):
    """The method's result on a tensor, as tensors in the structure that it returned."""
    return tree.map_structure(_leaf_tensor, processor.process_state_batch(TracedArray(tensor)))


def _leaf_tensor(leaf):
    if isinstance(leaf, TracedArray):
        return leaf.value
    array = np.asarray(leaf)
    if array.dtype.kind not in "biuf":
        raise NotTraceable(f"it returns {type(leaf).__name__}, no array of numbers")
    return ops.convert_to_tensor(array.astype(device_dtype(array.dtype)))


# The probe --------------------------------------------------------------------------------------


def _probe(processor, example: np.ndarray) -> str | None:
    """Why the traced version must not be used, or None. Works on a copy of the processor."""
    try:
        tried = copy.deepcopy(processor)
    except Exception as error:
        return f"the processor cannot be copied for a trial ({_short(error)})"
    states = np.random.get_state(), random.getstate()  # noqa: NPY002 - read to see if it moves
    try:
        return _compare(tried, [example, np.concatenate([example[::-1], example[:1]])]) or (
            _side_effect(processor, tried, states)
        )
    finally:
        np.random.set_state(states[0])  # noqa: NPY002 - and left as it was
        random.setstate(states[1])


def _compare(processor, batches: list[np.ndarray]) -> str | None:
    """Why the results on host and device differ, or None."""
    try:
        # Copies, because a method may work in place.
        on_host = [processor.process_state_batch(batch.copy()) for batch in batches]
    except Exception as error:
        return f"it raised {_short(error)} on stored states"
    for batch, host in zip(batches, on_host):
        try:
            tensor = ops.convert_to_tensor(batch.astype(device_dtype(batch.dtype)))
            traced = tree.map_structure(ops.convert_to_numpy, _call(processor, tensor))
        except NotTraceable as error:
            return str(error)
        except Exception as error:
            return f"it raised {_short(error)} on the device"
        if not _equal_results(host, traced):
            return "host and device gave different results on the same states"
    return None


def _equal_results(host, traced) -> bool:
    """Same structure, shapes and dtypes (64 bits count as 32), and values within _RTOL."""
    if isinstance(host, (dict, list, tuple)):
        keys = list(host) if isinstance(host, dict) else range(len(host))
        return (
            type(host) is type(traced)
            and len(host) == len(traced)
            and all(_equal_results(host[key], traced[key]) for key in keys)
        )
    host = np.asarray(host)
    if not isinstance(traced, np.ndarray) or host.shape != traced.shape:
        return False
    if device_dtype(host.dtype) != device_dtype(traced.dtype):
        return False  # a narrower type may overflow on states that the trial did not see
    finite = np.abs(host[np.isfinite(host)], dtype=np.float64)
    atol = _RTOL * finite.max(initial=0.0)
    return np.allclose(host, traced, rtol=_RTOL, atol=atol, equal_nan=True)


def _side_effect(before, after, states) -> str | None:
    """What the trial changed, or None."""
    if not _same(np.random.get_state(), states[0]):  # noqa: NPY002
        return "it draws from NumPy's global generator"
    if random.getstate() != states[1]:
        return "it draws from Python's global generator"
    for name in vars(before).keys() | vars(after).keys():
        missing = name not in vars(before) or name not in vars(after)
        if missing or not _same(vars(before)[name], vars(after)[name]):
            return f"it changes the attribute {name!r}, or one that cannot be compared"
    return None


def _same(one, other, seen: dict | None = None) -> bool:
    """Deep equality of plain values, arrays, containers, generators and objects made of them."""
    seen = {} if seen is None else seen
    pair = (id(one), id(other))
    if one is other or pair in seen:
        return True
    if type(one) is not type(other):
        return False
    seen[pair] = one, other  # kept alive, so that no later object gets one of these ids
    if isinstance(one, _PLAIN):
        return bool(one == other) or (one != one and other != other)  # NaN is the same as NaN
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.dtype != object and _same_bytes(one, other)
    if isinstance(one, (set, frozenset)):
        return one == other
    if isinstance(one, random.Random):
        return one.getstate() == other.getstate()
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[k], other[k], seen) for k in one)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(_same(a, b, seen) for a, b in zip(one, other))
    parts = _parts(one), _parts(other)
    return None not in parts and _same(*parts, seen)


def _parts(value):
    """What an object is made of, or None where that cannot be seen."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    return getattr(value, "__dict__", None)


def _same_bytes(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def _short(error: Exception) -> str:
    return (
        f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120] if str(error) else ''}"
    )


# What a trial cannot show: attributes that change between two calls -----------------------------


def _changing_attribute(processor) -> str | None:
    """Which attribute the method reads though another method may change it, or None.

    A compiled function keeps the value that an attribute had when it was traced. An attribute that
    the method reads is safe if no method but `__init__` assigns it, and if, where its value can
    change in place, no other method names it.
    """
    if not hasattr(processor, "__dict__") or _METHOD in vars(processor):
        return f"{_METHOD} is no method of its class"
    methods = _methods(type(processor))
    on_path = _reached(methods)
    read = {name for used in on_path for name in _names(methods[used])}
    if _stores(code for used in on_path for code in methods[used]):
        return "it assigns to an attribute or a global variable"
    if "training" in read:
        return "it tells training from testing"
    for other in [name for name in methods if name not in {*on_path, "__init__"}]:
        for name in read & vars(processor).keys() & _names(methods[other]):
            value = vars(processor)[name]
            if name in _stores(methods[other]) or not isinstance(value, _PLAIN):
                return f"it reads the attribute {name!r}, which {other} may change meanwhile"
    return None


def _methods(kind: type) -> dict[str, list[types.CodeType]]:
    """Code of every method below Processor, by name; of overridden ones where they are called."""
    found = {_METHOD: []}
    for owner in kind.__mro__:
        if owner in Processor.__mro__:
            continue
        for name, member in vars(owner).items():
            member = getattr(member, "fget", None) or getattr(member, "__func__", member)
            codes = found.setdefault(name, [])
            overridden = codes and not {"super", name} & _names(codes)
            if callable(member) and not overridden:
                codes.extend(filter(None, [getattr(inspect.unwrap(member), "__code__", None)]))
    return found


def _reached(methods: dict[str, list[types.CodeType]]) -> set[str]:
    """Names of the methods that a call of process_state_batch may run through."""
    reached, new = set(), {_METHOD}
    while new:
        reached |= new
        named = {name for used in new for name in _names(methods[used])}
        new = named & methods.keys() - reached
    return reached


def _all_codes(codes) -> Iterator[types.CodeType]:
    """The codes, and those of functions and comprehensions inside them."""
    for code in codes:
        yield code
        yield from _all_codes(each for each in code.co_consts if isinstance(each, types.CodeType))


def _names(codes) -> set[str]:
    return {name for code in _all_codes(codes) for name in code.co_names}


def _stores(codes) -> set[str]:
    kinds = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL")
    return {
        step.argval
        for code in _all_codes(codes)
        for step in dis.get_instructions(code)
        if step.opname in kinds
    }

"""A tree of plain values and arrays as strict JSON beside a table of arrays, and back, exactly.

What JSON cannot say is an object with one key that starts with "$":

    {"$float": "nan"}                  also "inf" and "-inf"
    {"$int": "0x1f"}                   too long for Python to read as a decimal number
    {"$str": hex}                      text with halves of surrogate pairs, as UTF-8
    {"$bytes": hex or an array}
    {"$list": an array}                many integers, or many floats
    {"$tuple": list}, {"$set": list}, {"$frozenset": list}
    {"$deque": [list, maxlen]}
    {"$dict": [[key, value], ...]}     keys that are not text, or start with "$"
    {"$array": [name, dtype, shape]}   the name is its path in the tree
    {"$scalar": [dtype, hex]}          a NumPy scalar; its text and bytes: "$np.str", "$np.bytes"

No tag names code: reading makes values of these types and nothing else.
"""

from __future__ import annotations

import ast
import math
import re
from collections import deque

import numpy as np

from kerasrl_gpu.checkpoint import files
from kerasrl_gpu.errors import CheckpointError

_MANY = 64  # numbers or bytes from which an array is smaller and faster than text
_DEPTH = 100  # levels of a tree; JSON and Python both end before 1,000
_LONG_BITS = 2048  # Python may be set to refuse decimal numbers of more than 640 digits


# To JSON ------------------------------------------------------------------------------------------


def encode(tree) -> tuple[object, dict[str, np.ndarray]]:
    """Split a tree into JSON and arrays.

    Args:
        tree: None, bool, int, float, str, bytes, NumPy scalars and arrays of every dtype but
            objects, in lists, tuples, dicts, sets, frozensets and deques. Each comes back with
            its exact type; arrays come back in C order.

    Returns:
        (what `json.dumps(..., allow_nan=False)` takes, {name: array of a dtype in files.DTYPES}).
        The arrays are the tree's own, not copies, where their dtype is one that safetensors has.

    Raises:
        CheckpointError: something else stands in it; names the path and the type.
    """
    arrays: dict[str, np.ndarray] = {}
    return _encode(tree, (), arrays), arrays


def _encode(value, path, arrays):
    if value is None or type(value) is bool:
        return value
    encoder = _ENCODERS.get(type(value), _scalar if isinstance(value, np.generic) else None)
    if encoder is None:
        raise CheckpointError(
            f"{_said(path)} is a {type(value).__module__}.{type(value).__qualname__}, which a "
            f"checkpoint cannot hold; pass plain values, lists, tuples, dicts, sets, deques or "
            f"NumPy arrays."
        )
    if len(path) > _DEPTH:
        raise CheckpointError(
            f"{_said(path[:3])}... is nested more than {_DEPTH} levels deep; take out what it "
            f"has of itself."
        )
    return encoder(value, path, arrays)


def _int(value, path, arrays):
    return value if value.bit_length() <= _LONG_BITS else {"$int": hex(value)}


def _float(value, path, arrays):
    return value if math.isfinite(value) else {"$float": repr(value)}


def _str(value):
    if _is_unicode(value):
        return value
    return {"$str": value.encode("utf-8", "surrogatepass").hex()}


def _bytes(value, path, arrays):
    if len(value) > _MANY:
        return {"$bytes": _array(np.frombuffer(value, np.uint8), path, arrays)}
    return {"$bytes": value.hex()}


def _list(value, path, arrays):
    if len(value) > _MANY and len(kinds := set(map(type, value))) == 1 and kinds <= {int, float}:
        try:
            numbers = np.array(value, {int: np.int64, float: np.float64}[kinds.pop()])
            return {"$list": _array(numbers, path, arrays)}
        except OverflowError:
            pass  # an integer of more than 64 bits
    return [_encode(item, (*path, i), arrays) for i, item in enumerate(value)]


def _dict(value, path, arrays):
    if all(type(key) is str and key[:1] != "$" and _is_unicode(key) for key in value):
        return {key: _encode(item, (*path, key), arrays) for key, item in value.items()}
    pairs = []
    for i, (key, item) in enumerate(value.items()):
        step = key if type(key) in (str, int) else i
        pairs.append([_encode(key, (*path, i), arrays), _encode(item, (*path, step), arrays)])
    return {"$dict": pairs}


def _deque(value, path, arrays):
    return {"$deque": [_list(list(value), path, arrays), value.maxlen]}


def _tagged_list(tag):
    return lambda value, path, arrays: {tag: _list(list(value), path, arrays)}


def _array(value, path, arrays):
    description = _describe(value.dtype, path)
    name = base = "/".join(re.sub(r"[^\w.-]", "_", str(step), flags=re.ASCII) for step in path)
    number = 1
    while name in arrays or name in ("", "__metadata__"):  # safetensors keeps that name
        number += 1
        name = f"{base or 'state'}~{number}"
    native = value.dtype.str in files.DTYPES
    arrays[name] = value if native else files.raw(value)
    return {"$array": [name, description, list(value.shape)]}


def _scalar(value, path, arrays):
    return {"$scalar": [_describe(value.dtype, path), np.array(value).tobytes().hex()]}


_ENCODERS = {
    int: _int,
    float: _float,
    str: lambda value, path, arrays: _str(value),
    bytes: _bytes,
    list: _list,
    tuple: _tagged_list("$tuple"),
    set: _tagged_list("$set"),
    frozenset: _tagged_list("$frozenset"),
    deque: _deque,
    dict: _dict,
    np.ndarray: _array,
    np.str_: lambda value, path, arrays: {"$np.str": _str("".join(value))},  # str() drops "\0"
    np.bytes_: lambda value, path, arrays: {"$np.bytes": bytes(value).hex()},
}


# From JSON ----------------------------------------------------------------------------------------


def decode(data, get_array):
    """The tree that `encode` was given.

    Args:
        data: the JSON, parsed.
        get_array: called with an array's name, returns it. It is used as it is, not copied.

    Raises:
        CheckpointError: an unknown "$" tag, or a known one with something else in it.
    """
    if type(data) is list:
        return [decode(item, get_array) for item in data]
    if type(data) is not dict:
        return data
    tags = [key for key in data if key[:1] == "$"]
    if not tags:
        return {key: decode(item, get_array) for key, item in data.items()}
    if len(data) != 1 or tags[0] not in _DECODERS:
        raise CheckpointError(
            f"the state has an unknown tag {tags[0]!r}; it was changed, or a newer release wrote "
            f"it. Nothing of it is taken over."
        )
    content = data[tags[0]]
    try:
        return _DECODERS[tags[0]](content, get_array)
    except CheckpointError:
        raise
    except Exception as error:  # what a stranger wrote goes wrong in any way
        raise CheckpointError(
            f"the state's {tags[0]} {content!r:.80} is wrong: {error}. Use another checkpoint."
        ) from error


def branch(data, keys: tuple):
    """The JSON of `tree[keys[0]][keys[1]]...`, found without decoding the rest.

    Raises:
        CheckpointError: there is no such branch; names those that there are.
    """
    for depth, key in enumerate(keys):
        children = _children(data)
        if key not in children:
            raise CheckpointError(
                f"{_said(keys[:depth])} has no {key!r}, only {sorted(map(str, children))}."
            )
        data = children[key]
    return data


def _children(data):
    if isinstance(data, dict) and len(data) == 1:
        ((tag, content),) = data.items()
        if tag == "$dict":
            return {decode(key, None): item for key, item in content}
        data = content if tag == "$tuple" else data
    if isinstance(data, list):
        return dict(enumerate(data))
    return data if isinstance(data, dict) and not any(key[:1] == "$" for key in data) else {}


def _read_array(data, get_array):
    name, description, shape = data["$array"] if isinstance(data, dict) else data
    dtype = _dtype(description)
    stored = files.raw(get_array(name))
    if stored.size != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{stored.size} B stand for {shape} elements of {dtype.itemsize} B")
    return np.ndarray(tuple(shape), dtype, stored)


def _read_scalar(data, get_array):
    description, content = data
    return np.ndarray((), _dtype(description), bytearray.fromhex(content))[()]


def _read_bytes(data, get_array):
    return bytes.fromhex(data) if type(data) is str else _read_array(data, get_array).tobytes()


_DECODERS = {
    "$float": lambda data, get: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[data],
    "$int": lambda data, get: int(data, 16),
    "$str": lambda data, get: bytes.fromhex(data).decode("utf-8", "surrogatepass"),
    "$bytes": _read_bytes,
    "$list": lambda data, get: _read_array(data, get).tolist(),
    "$tuple": lambda data, get: tuple(decode(data, get)),
    "$set": lambda data, get: set(decode(data, get)),
    "$frozenset": lambda data, get: frozenset(decode(data, get)),
    "$deque": lambda data, get: deque(decode(data[0], get), data[1]),
    "$dict": lambda data, get: {decode(k, get): decode(item, get) for k, item in data},
    "$array": _read_array,
    "$scalar": _read_scalar,
    "$np.str": lambda data, get: np.str_(decode(data, get)),
    "$np.bytes": lambda data, get: np.bytes_(bytes.fromhex(data)),
}


# Both ways ----------------------------------------------------------------------------------------


def _describe(dtype, path) -> str:
    """A text that `_dtype` makes the same dtype of."""
    try:
        if dtype.type.__module__ == "ml_dtypes":
            description = dtype.name
        else:
            description = "|O" if dtype.hasobject else str(np.lib.format.dtype_to_descr(dtype))
        if _dtype(description) == dtype:
            return description
    except ValueError:
        pass  # objects, or fields that overlap
    raise CheckpointError(
        f"{_said(path)} has dtype {dtype}, which a checkpoint cannot hold; pass numbers, or text "
        f"of a fixed width."
    )


def _dtype(description: str) -> np.dtype:
    if description[0] == "[":
        dtype = np.lib.format.descr_to_dtype(ast.literal_eval(description))
    elif description[0] in "<>|":
        dtype = np.dtype(description)
    elif re.fullmatch(r"(bfloat|float|u?int)\d[0-9a-z_]*", description):
        import ml_dtypes  # Keras brings it; only a state that has such numbers needs it

        dtype = np.dtype(getattr(ml_dtypes, description))
    else:
        raise ValueError(f"{description!r} is no dtype")
    if dtype.hasobject:
        raise ValueError(f"{description!r} has objects")
    return dtype


def _is_unicode(text) -> bool:
    # JSON would join two halves of a surrogate pair to one character.
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


def _said(path) -> str:
    return "state" + "".join(f"[{step!r}]" for step in path)

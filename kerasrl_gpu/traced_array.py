"""An array type that answers NumPy's methods and functions with `keras.ops`.

Code written for NumPy runs on it inside a compiled function. What a device cannot do raises
NotTraceable; nothing is ever turned into a host array.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import ops, tree

_MAX_UNROLLED = 16  # rows that a Python loop may walk: each becomes operations of its own

# NumPy's name -> keras.ops' name, where they differ; every other name is looked up as it is.
_RENAMED = {
    "around": "round",
    "degrees": "rad2deg",
    "invert": "bitwise_not",
    "positive": "copy",
    "radians": "deg2rad",
    "remainder": "mod",
    "rint": "round",
}
_SHAPED_BY_VALUES = {"argwhere", "bincount", "extract", "nonzero", "unique"}
_METHODS = set(dir(np.ndarray)) & set(dir(ops))


class NotTraceable(TypeError):
    """The code does what a compiled function cannot do; the message goes on after its name."""


def device_dtype(dtype) -> np.dtype:
    """The dtype that a device holds instead: 64 bits become 32."""
    dtype = np.dtype(dtype)
    narrow = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
    return np.dtype(narrow.get(dtype.name, dtype))


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """A backend tensor behind NumPy's interface; `value` is the tensor."""

    def __init__(self, value):
        self.value = value

    shape = property(lambda self: tuple(ops.shape(self.value)))
    ndim = property(lambda self: len(self.value.shape))
    dtype = property(lambda self: np.dtype(keras.backend.standardize_dtype(self.value.dtype)))
    size = property(lambda self: int(np.prod(self.shape)))
    T = property(lambda self: self.transpose())

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        if method != "__call__":
            raise NotTraceable(f"np.{ufunc.__name__}.{method} is not known on the device")
        inputs = [np.asarray(each) if isinstance(each, list) else each for each in inputs]
        asked = kwargs.get("dtype") or _result_dtype(ufunc, inputs)
        result = _astype(_apply(_bool_name(ufunc.__name__, inputs), inputs, kwargs), asked)
        if out is None:
            return result
        (target,) = out  # `batch /= 255.` arrives here with batch as its own output
        if not isinstance(target, TracedArray):
            raise NotTraceable("it writes a result into a NumPy array")
        target.value = ops.cast(result.value, target.dtype.name)
        return target

    def __array_function__(self, func, kinds, args, kwargs):
        return _apply(func.__name__, args, dict(kwargs))

    def __getattr__(self, name):
        if name not in _METHODS:
            raise AttributeError(f"a batch on the device has no attribute {name!r}")
        return lambda *args, **kwargs: _apply(name, (self, *args), kwargs)

    def astype(self, dtype, **_):
        return _astype(self, dtype)

    def copy(self, order="C"):
        return TracedArray(self.value)

    def flatten(self, order="C"):
        return _reshape(self, -1, order=order)

    def reshape(self, *shape, order="C"):
        return _reshape(self, shape[0] if len(shape) == 1 else shape, order=order)

    def transpose(self, *axes):
        axes = axes[0] if len(axes) == 1 else axes
        return TracedArray(ops.transpose(self.value, axes or None))

    def __getitem__(self, key):
        return TracedArray(_take(self.value, key if isinstance(key, tuple) else (key,)))

    def __len__(self):
        if not isinstance(self.shape[0], int):
            raise NotTraceable("it asks for the length of an axis that varies")
        return self.shape[0]

    def __iter__(self):
        if len(self) > _MAX_UNROLLED:
            raise NotTraceable(f"it loops in Python over {len(self)} rows")
        return (self[row] for row in range(len(self)))

    def _refuse(self, *_, **__):
        raise NotTraceable("it needs a value on the host: a branch, an item, or a plain array")

    __array__ = __bool__ = __float__ = __index__ = __int__ = _refuse

    def __setitem__(self, key, value):
        raise NotTraceable("it assigns into the batch")


def _result_dtype(ufunc, inputs) -> np.dtype:
    """NumPy's dtype of the result; keras.ops' differs now and then, and then wraps elsewhere."""
    weak = [type(each) for each in inputs]  # Python numbers take the other side's precision
    kinds = [getattr(each, "dtype", kind) for each, kind in zip(inputs, weak)]
    kinds = [np.dtype(bool) if kind is bool else kind for kind in kinds]
    return ufunc.resolve_dtypes((*kinds, None))[-1]


def _bool_name(name: str, inputs) -> str:
    """NumPy's bitwise functions take booleans; TensorFlow's do not."""
    if all(getattr(each, "dtype", type(each)) == np.dtype(bool) for each in inputs):
        return _RENAMED.get(name, name).replace("bitwise_", "logical_")
    return name


def _unwrap(value):
    """What keras.ops take; constants of the host in the dtype that a device holds."""
    if isinstance(value, TracedArray):
        return value.value
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value, dtype=device_dtype(value.dtype))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_unwrap, value))
    return value


def _apply(name: str, args, kwargs: dict):
    """NumPy's function `name` by keras.ops, on TracedArrays and constants."""
    if name in _SPECIAL:
        return _SPECIAL[name](*args, **kwargs)
    if name in _SHAPED_BY_VALUES or (name == "where" and len(args) != 3):
        raise NotTraceable(f"the shape of np.{name}'s result depends on values")
    function = getattr(ops, _RENAMED.get(name, name), None)
    if function is None:
        raise NotTraceable(f"np.{name} is not known on the device")
    if kwargs.get("dtype") is not None and not name.endswith("_like"):
        dtype = kwargs.pop("dtype")
        args = [_astype(each, dtype) if isinstance(each, TracedArray) else each for each in args]
    elif kwargs.get("dtype") is not None:
        kwargs["dtype"] = device_dtype(kwargs["dtype"]).name
    result = function(*_unwrap(list(args)), **{key: _unwrap(kwargs[key]) for key in kwargs})
    return tree.map_structure(TracedArray, result)


def _astype(array: TracedArray, dtype, **_) -> TracedArray:
    return TracedArray(ops.cast(array.value, device_dtype(dtype).name))


def _reshape(array: TracedArray, shape, order="C") -> TracedArray:
    if order != "C":
        raise NotTraceable(f"it reshapes in order {order!r}")
    return TracedArray(ops.reshape(array.value, shape if np.ndim(shape) else (shape,)))


def _clip(array, a_min=None, a_max=None, *, min=None, max=None) -> TracedArray:
    low = a_min if min is None else min
    high = a_max if max is None else max
    array = array if low is None else np.maximum(array, low)
    return array if high is None else np.minimum(array, high)


# Functions whose arguments differ from those of keras.ops, or that give plain values.
_SPECIAL = {
    "astype": _astype,
    "clip": _clip,
    "copy": lambda array, **_: array.copy(),
    "ndim": lambda array: array.ndim,
    "ravel": lambda array, order="C": array.flatten(order),
    "reshape": _reshape,
    "shape": lambda array: array.shape,
    "size": lambda array: array.size,
}


def _take(tensor, key: tuple):
    """tensor[key] for numbers, slices, None, an Ellipsis and at most one list of indices."""
    key = tuple(int(part) if isinstance(part, np.integer) else part for part in key)
    lists = [place for place, part in enumerate(key) if isinstance(part, (list, np.ndarray))]
    if any(isinstance(part, TracedArray) for part in key) or len(lists) > 1:
        raise NotTraceable("it indexes the batch with values, or with several lists")
    if not lists:
        return tensor[key]
    (place,) = lists
    if any(isinstance(part, int) for part in key):
        raise NotTraceable("it indexes the batch with a list and a number together")
    index = np.asarray(key[place])
    index = index.nonzero()[0] if index.dtype == bool else index
    axis = place
    if any(part is Ellipsis for part in key[:place]):
        axis += len(tensor.shape) + sum(part is None for part in key) - len(key)
    part = tensor[(*key[:place], slice(None), *key[place + 1 :])]
    return ops.take(part, (index % part.shape[axis]).astype("int32"), axis=axis)

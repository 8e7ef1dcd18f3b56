"""Pools, their rows and bytes, random numbers, and the device that they are on."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context
from tensorflow.python.framework.config import is_op_determinism_enabled

_EXHAUSTED = ("bad_alloc", "Cannot allocate memory")  # under a status that names something else


def zeros(shape, dtype):
    """A pool of zeros on the default device."""
    if "GPU" in device() and is_op_determinism_enabled():
        warnings.warn(
            "TensorFlow's op determinism is on: every row that is stored takes the whole pool "
            "through the host's memory. Leave tf.config.experimental.enable_op_determinism() out; "
            "one run's draws and updates repeat without it where the kernels do.",
            stacklevel=4,
        )
    return tf.Variable(tf.zeros(shape, dtype), trainable=False)


def check_storable(dtype: str) -> None:
    """Nothing: TensorFlow has every dtype that a pool stores."""


def put_rows(pool, slots, rows):
    """Replace rows i32[K] of the pool, in place; returns the same pool."""
    tf.raw_ops.ResourceScatterUpdate(resource=pool.handle, indices=slots, updates=rows)
    return pool


def take_rows(pool, slots):
    """Rows of a pool; every slot lies inside it."""
    return tf.gather(pool, slots)


def take_byte(pool, slots, place: int):
    """One byte of rows: u8 of the shape of `slots`; nothing else of them is touched."""
    # XLA, which compiles every read, has no ResourceGatherNd; its read_value copies nothing
    places = tf.stack([slots, tf.fill(tf.shape(slots), place)], axis=-1)
    return tf.gather_nd(pool.read_value(), places)


def bitcast(array, dtype):
    """The same bits under a dtype of the same width."""
    return array if array.dtype == dtype else tf.bitcast(array, dtype)


def to_bytes(words):
    """u32[n] as u8[4 n], lowest byte first."""
    return tf.reshape(tf.bitcast(words, tf.uint8), [-1])


def from_bytes(array, dtype, shape):
    """u8[..., n] as `dtype`[..., *shape], where n bytes hold that shape."""
    dtype, lead = tf.as_dtype(dtype), tf.shape(array)[:-1]
    if array.shape[:-1].is_fully_defined():
        lead = array.shape[:-1].as_list()
    tail = [*shape] if dtype.size == 1 else [*shape, dtype.size]
    array = tf.reshape(array, tf.concat([lead, tail], 0) if tf.is_tensor(lead) else [*lead, *tail])
    if dtype == tf.bool:
        return tf.cast(array, tf.bool)
    return array if dtype == tf.uint8 else tf.bitcast(array, dtype)


def counter(word, offset):
    """A u32 counter read from a wire, moved on by `offset`; wraps."""
    return (tf.cast(word, tf.int64) + tf.cast(offset, tf.int64)) % 2**32


def random_int(seed, draw, stream, shape, high):
    """i32 `shape` drawn uniformly from 0..high-1, a pure function of u32 seed, draw and stream."""
    seed, draw, stream = (tf.cast(word, tf.int64) for word in (seed, draw, stream))
    counter = tf.stack([seed, draw * 2**16 + stream])
    # 64 random bits a draw: 32 would favour low rows by up to high / 2**32
    drawn = tf.random.stateless_uniform(
        shape, counter, minval=0, maxval=tf.cast(high, tf.int64), dtype=tf.int64, alg="philox"
    )
    return tf.cast(drawn, tf.int32)


def leaves(state) -> list:
    """Every variable of a state."""
    return tf.nest.flatten(state)


def to_host(array) -> np.ndarray:
    """A NumPy array of the values; waits for the device."""
    return array.numpy()


def is_exhausted(error: BaseException) -> bool:
    """Whether it says that memory ran out, the device's or the host's."""
    if isinstance(error, tf.errors.OpError):
        is_named = isinstance(error, tf.errors.ResourceExhaustedError)
        return is_named or any(text in str(error) for text in _EXHAUSTED)
    return isinstance(error, MemoryError)


def device() -> str:
    """The device that pools are allocated on, as TensorFlow names it."""
    return tf.zeros((), tf.uint8).device


def on_cpu() -> bool:
    """Whether that device is a CPU."""
    return "cpu" in device().lower()


def device_memory() -> tuple | None:
    """(limit, used, peak) of a GPU's allocator, bytes; None on a CPU. A limit may be unknown: None.

    Used and peak are what arrays take, not what the allocator holds.
    """
    name = device()
    if "GPU" not in name:
        return None
    told = tf.config.experimental.get_memory_info(name)
    return _limit_bytes(name), told["current"], told["peak"]


def devices() -> list[str]:
    """What TensorFlow may compute on, as it names it."""
    return [device.name for device in tf.config.list_logical_devices()]


@functools.cache  # it stays what it was when the device was started
def _limit_bytes(name: str) -> int | None:
    """What the allocator of a logical device may take at most.

    Only the device's attributes tell, and no public function shows those of the devices in use.
    """
    try:
        listed = pywrap_tfe.TFE_ContextListDevices(context.context()._handle)
    except (AttributeError, AssertionError):
        return None
    try:
        for index in range(pywrap_tfe.TF_DeviceListCount(listed)):
            if pywrap_tfe.TF_DeviceListName(listed, index) == name:
                return pywrap_tf_session.TF_DeviceListMemoryBytes(listed, index) or None
        return None
    finally:
        pywrap_tfe.TF_DeleteDeviceList(listed)

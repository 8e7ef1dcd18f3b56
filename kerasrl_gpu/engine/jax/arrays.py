"""Pools, their rows and bytes, random numbers, and the device that they are on."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from kerasrl_gpu.errors import ArgumentError

# the status of an allocation that failed; what the compiler says, which passes on others' words
_EXHAUSTED = ("RESOURCE_EXHAUSTED", "bad_alloc", "Cannot allocate memory")


def zeros(shape, dtype):
    """A pool of zeros on the default device."""
    return jnp.zeros(shape, dtype)


def check_storable(dtype: str) -> None:
    """Raise ArgumentError unless a field can have this dtype; 64 bits only on request."""
    if np.dtype(dtype).itemsize == 8 and not jax.config.jax_enable_x64:
        raise ArgumentError(
            f"keep_dtype=True asks JAX to store {dtype}, which it holds as 32 bits. Leave "
            "keep_dtype out, or call jax.config.update('jax_enable_x64', True) first."
        )


def put_rows(pool, slots, rows):
    """`pool` with rows i32[K] replaced, in place when the pool is donated."""
    if slots.shape[0] == 1:
        return jax.lax.dynamic_update_slice_in_dim(pool, rows, slots[0], axis=0)
    return pool.at[slots].set(rows, mode="promise_in_bounds", unique_indices=True)


def take_rows(pool, slots):
    """Rows of a pool; every slot lies inside it."""
    return pool.at[slots].get(mode="promise_in_bounds")


def take_byte(pool, slots, place: int):
    """One byte of rows: u8 of the shape of `slots`; nothing else of them is touched."""
    return pool.at[slots, place].get(mode="promise_in_bounds")


def bitcast(array, dtype):
    """The same bits under a dtype of the same width."""
    return array if array.dtype == dtype else jax.lax.bitcast_convert_type(array, dtype)


def to_bytes(words):
    """u32[n] as u8[4 n], lowest byte first."""
    return jax.lax.bitcast_convert_type(words, jnp.uint8).reshape(-1)


def from_bytes(array, dtype, shape):
    """u8[..., n] as `dtype`[..., *shape], where n bytes hold that shape."""
    array = array.reshape(*array.shape[:-1], *shape, np.dtype(dtype).itemsize)
    if np.dtype(dtype).itemsize == 1:
        array = array[..., 0]
    if np.dtype(dtype) == bool:
        return array.astype(bool)
    return jax.lax.bitcast_convert_type(array, dtype)


def counter(word, offset):
    """A u32 counter read from a wire, moved on by `offset`; wraps."""
    return word + jnp.asarray(offset, jnp.uint32)


def random_int(seed, draw, stream, shape, high):
    """i32 `shape` drawn uniformly from 0..high-1, a pure function of u32 seed, draw and stream.

    Philox, of which XLA makes one kernel; jax.random's threefry is four loops on a CPU, 30 us.
    """
    seed, stream, draw, high = (
        jnp.asarray(word).astype(jnp.uint32) for word in (seed, stream, draw, high)
    )
    # the generator counts its blocks up from the third word, so draw stands in the fourth
    counter = jnp.stack([seed, stream, jnp.zeros_like(draw), draw])
    algorithm = jax.lax.RandomAlgorithm.RNG_PHILOX
    _, bits = jax.lax.rng_bit_generator(counter, (2, *shape), jnp.uint32, algorithm=algorithm)
    # high times a 64-bit fraction: 32 random bits would favour some rows by up to high / 2**32
    carry = _multiply_high(bits[1], high)
    low = bits[0] * high + carry
    return (_multiply_high(bits[0], high) + (low < carry)).astype(jnp.int32)


def _multiply_high(a, b):
    """The upper 32 bits of a product of u32 words, in 32-bit arithmetic."""
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    middle = a_high * b_low + (a_low * b_low >> 16)
    other = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (other >> 16)


def leaves(state) -> list:
    """Every array of a state, packed or not."""
    return jax.tree.leaves(state)


def to_host(array) -> np.ndarray:
    """A NumPy array of the values; waits for the device."""
    return np.asarray(array)


def is_exhausted(error: BaseException) -> bool:
    """Whether it says that memory ran out, the device's or the host's."""
    if isinstance(error, (jax.errors.JaxRuntimeError, ValueError)):
        return any(text in str(error) for text in _EXHAUSTED)
    return isinstance(error, MemoryError)


def device() -> str:
    """The device that pools are allocated on, as JAX names it."""
    return str(_default_device())


def _default_device():
    named = jax.config.jax_default_device
    if isinstance(named, str):
        return jax.local_devices(backend=named)[0]
    return named or jax.local_devices()[0]


def on_cpu() -> bool:
    """Whether that device is a CPU."""
    return "cpu" in device().lower()


def device_memory() -> tuple | None:
    """(limit, used, peak) of the device's allocator, bytes; None where it does not say (CPU).

    Used and peak are what arrays take, not what the allocator holds. A peak may be unknown: None.
    """
    default = _default_device()
    if default.platform == "cpu":
        return None
    stats = default.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return stats["bytes_limit"], stats.get("bytes_in_use", 0), stats.get("peak_bytes_in_use")


def devices() -> list[str]:
    """What JAX may compute on, as it names it."""
    return [str(device) for device in jax.local_devices()]

"""The engine on JAX: state and pool are arrays, donated to every call that writes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np

from kerasrl_gpu.errors import ArgumentError

NAME = "jax"


# Variables -------------------------------------------------------------------------------------


def adopt(variables) -> list:
    """Own copies of what Keras variables hold; donation deletes what it is given."""
    return [jnp.array(variable.value, copy=True) for variable in variables]


def clone(leaves) -> list:
    """A second set of the same values."""
    return [jnp.array(leaf, copy=True) for leaf in leaves]


def overwrite(target, source) -> list:
    """The leaves that `target` is from now on: the values of `source`."""
    return clone(source)


def publish(leaves, variables) -> list:
    """Give Keras variables the values of `leaves`.

    Returns:
        what the variables hold now, object by object: a variable that holds another object later
        was set by somebody else.
    """
    for leaf, variable in zip(leaves, variables, strict=True):
        variable.assign(jnp.array(leaf, copy=True))
    return [variable.value for variable in variables]


class Optimizer:
    """A Keras optimizer as a pure function of gradients, weights and slots.

    Args:
        optimizer: an unbuilt keras.optimizers.Optimizer; stays the user's object.
        variables: the trainable Keras variables, in the order that `apply` gets their values.
    """

    def __init__(self, optimizer, variables):
        self.keras = optimizer
        optimizer.build(variables)
        # as they are now: a schedule that somebody sets takes the learning rate out of Keras' list
        self._variables = optimizer.variables
        self.slots = adopt(self._variables)
        # training never changes a learning rate; the user may, on the Keras object
        self._rates = {
            index: variable.value
            for index, variable in enumerate(self._variables)
            if variable.name == "learning_rate"
        }

    def refresh(self, slots) -> list:
        """`slots` with the learning rates that somebody set on the Keras object since."""
        for index, seen in self._rates.items():
            if self._variables[index].value is not seen:
                self._rates[index] = self._variables[index].value
                slots = [
                    *slots[:index],
                    jnp.array(self._rates[index], copy=True),
                    *slots[index + 1 :],
                ]
        return slots

    def publish(self, slots) -> None:
        """Give the Keras optimizer's variables the values of `slots`, learning rates apart."""
        kept = [index for index in range(len(slots)) if index not in self._rates]
        publish([slots[index] for index in kept], [self._variables[index] for index in kept])

    def scale(self, loss, slots):
        """The loss times what a LossScaleOptimizer asks for; f32[] in, f32[] out."""
        mapping = list(zip(self.keras.variables, slots, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return self.keras.scale_loss(loss)

    def apply(self, gradients, trainable, slots) -> tuple[list, list]:
        """(trainable, slots) after one step."""
        return self.keras.stateless_apply(slots, gradients, trainable)


def value_and_grad(function):
    """`function(trainable) -> (loss, aux)` as `(loss, aux), gradients`."""
    return jax.value_and_grad(function, has_aux=True)


# Arrays ----------------------------------------------------------------------------------------


def zeros(shape, dtype):
    """A pool of zeros on the default device."""
    return jnp.zeros(shape, dtype)


def check_storable(dtype: str) -> None:
    """Raise ArgumentError unless a column can have this dtype; 64 bits only on request."""
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


def to_host(array) -> np.ndarray:
    """A NumPy array of the values; waits for the device."""
    return np.asarray(array)


# Compiled calls --------------------------------------------------------------------------------


class Program:
    """A compiled function that counts how often it was traced."""

    def __init__(self, function, donate=()):
        self.traces = 0

        def traced(*args):
            self.traces += 1
            return function(*args)

        self._call = jax.jit(traced, donate_argnums=donate)

    def __call__(self, *args):
        return self._call(*args)


class _WireProgram(Program):
    """A program whose last argument is a wire: what travels is its one buffer."""

    def __call__(self, *args):
        return self._call(*args[:-1], args[-1].buffer)


def compile_step(update, act, row, updates=1, convolutional=False):
    """One call a step: write the row, learn `updates` times, act.

    Args:
        update: (state, pool, message, draw offset) -> (state, f32[M] metrics).
        act: (state, message) -> f32[A].
        row: message -> (slots i32[K], rows u8[K, row bytes]).
        updates: how often to learn in this call; 0 writes and acts only.
        convolutional: unrolls the updates on a CPU, where XLA convolves six times slower inside
            a loop.

    Returns:
        program(state, pool, wire) -> (state, pool, f32[A + M]); metrics are means over the
        updates. State and pool are consumed.
    """

    unroll = convolutional and jax.default_backend() == "cpu"

    def step(state, pool, message):
        pool = put_rows(pool, *row(message))
        if not updates:
            return state, pool, act(state, message)
        if updates == 1:
            state, metrics = update(state, pool, message, 0)
        else:
            state, every = jax.lax.scan(
                lambda s, offset: update(s, pool, message, offset),
                state,
                jnp.arange(updates, dtype=jnp.uint32),
                unroll=unroll,
            )
            metrics = jnp.mean(every, axis=0)
        return state, pool, jnp.concatenate([act(state, message), metrics])

    return _WireProgram(step, donate=(0, 1))


def compile_act(act, convolutional=False):
    """program(state, wire) -> f32[A]; consumes nothing."""
    return _WireProgram(act)


class _Put(Program):
    """Nobody waits for a write, so it gets a buffer of its own: the host may fill the next one."""

    def __call__(self, pool, wire):
        return self._call(pool, wire.buffer.copy())


def compile_put(row):
    """program(pool, wire) -> pool with the wire's row written; consumes them."""
    return _Put(lambda pool, message: put_rows(pool, *row(message)), donate=(0,))


def compile_learn(update, convolutional=False):
    """program(state, batch of host arrays) -> (state, f32[M] metrics); consumes the state."""
    return Program(update, donate=(0,))


def compile_infer(act, convolutional=False):
    """program(state, seen as host arrays) -> f32[B, A]; consumes nothing."""
    return Program(act)


def compile_read(read):
    """program(pool, *arrays) -> what `read` returns; consumes nothing."""
    return Program(read)


def cluster(function):
    """`function`: what JAX compiles is one kernel already."""
    return function


# Devices ---------------------------------------------------------------------------------------


def device() -> str:
    """The device that pools are allocated on, as JAX names it."""
    default = jax.config.jax_default_device or jax.local_devices()[0]
    return str(default)


def device_budget_bytes() -> int | None:
    """Bytes that can still be allocated there; None where the device does not say (CPU)."""
    default = jax.config.jax_default_device or jax.local_devices()[0]
    if default.platform == "cpu":
        return None
    stats = default.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)

"""The engine on TensorFlow: state and pool are variables that compiled calls read and assign.

A pool is touched by two operations only, ResourceGather and ResourceScatterUpdate: they alone work
in place, copy nothing and have GPU kernels for uint8. Rows are written in front of the compiled
call, because XLA copies a captured variable that it writes.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

NAME = "tensorflow"


# Variables -------------------------------------------------------------------------------------


def adopt(variables) -> list:
    """The variables behind Keras variables: the state is what the Keras model holds, not a copy."""
    return [variable.value for variable in variables]


def clone(leaves) -> list:
    """A second set of the same values."""
    return [tf.Variable(leaf, trainable=False) for leaf in leaves]


def overwrite(target, source) -> list:
    """The leaves that `target` is from now on: its own variables, with the values of `source`."""
    for variable, value in zip(target, source, strict=True):
        variable.assign(value)
    return target


def publish(leaves, variables) -> list:
    """Nothing to do: `adopt` handed out the Keras variables' own storage."""
    return [variable.value for variable in variables]


class Optimizer:
    """A Keras optimizer as a function of gradients, weights and slots.

    Keras refuses `stateless_apply` on TensorFlow, so `apply` assigns the variables it was made
    with and returns them.

    Args:
        optimizer: an unbuilt keras.optimizers.Optimizer; stays the user's object.
        variables: the trainable Keras variables, in the order that `apply` gets their values.
    """

    def __init__(self, optimizer, variables):
        self.keras = optimizer
        self._variables = list(variables)
        optimizer.build(self._variables)
        self.slots = adopt(optimizer.variables)

    def refresh(self, slots) -> list:
        """`slots`: a learning rate that somebody sets is set in the variable itself."""
        return slots

    def publish(self, slots) -> None:
        """Nothing to do: the slots are the Keras optimizer's variables."""

    def scale(self, loss, slots):
        """The loss times what a LossScaleOptimizer asks for; f32[] in, f32[] out."""
        return self.keras.scale_loss(loss)

    def apply(self, gradients, trainable, slots) -> tuple[list, list]:
        """(trainable, slots) after one step: the variables, already assigned."""
        self.keras.apply(gradients, self._variables)
        return [variable.value for variable in self._variables], slots


def value_and_grad(function):
    """`function(trainable) -> (loss, aux)` as `(loss, aux), gradients`."""

    def with_gradients(trainable):
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            loss, aux = function(trainable)
        zero = tf.UnconnectedGradients.ZERO
        return (loss, aux), tape.gradient(loss, trainable, unconnected_gradients=zero)

    return with_gradients


def _snapshot(state):
    """The tensors that the variables hold now; slots stay variables, only `apply` uses them."""
    slots = state.slots
    tensors = tf.nest.map_structure(lambda variable: variable.value(), state._replace(slots=()))
    return tensors._replace(slots=slots)


def _store(state, new) -> None:
    for variable, value in zip(tf.nest.flatten(state), tf.nest.flatten(new), strict=True):
        if value is not variable:
            variable.assign(value)


# Arrays ----------------------------------------------------------------------------------------


def zeros(shape, dtype):
    """A pool of zeros on the default device."""
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


def to_host(array) -> np.ndarray:
    """A NumPy array of the values; waits for the device."""
    return array.numpy()


# Compiled calls --------------------------------------------------------------------------------


def _same_variables(ours, theirs) -> bool:
    """Whether a trace that captured `ours` serves `theirs`; a tuple made anew does not matter."""
    return all(a is b for a, b in zip(ours, theirs, strict=True)) or all(
        a is b for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True)
    )


class _Program:
    """A tf.function of one host buffer over captured variables; counts how often it was traced."""

    def __init__(self, convolutional):
        self.traces = 0
        self._compiled = not convolutional or "GPU" in device()
        self._captured = self._call = None

    def _run(self, captured, build, *inputs):
        if self._call is None or not _same_variables(self._captured, captured):
            self._call = self._trace(build, inputs)
        self._captured = captured
        return self._call(*inputs)

    def _trace(self, build, inputs):
        def traced(*tensors):
            self.traces += 1
            return build(*tensors)

        function = tf.function(traced, jit_compile=self._compiled, autograph=False)
        return function.get_concrete_function(
            *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs)
        )


class _Step(_Program):
    def __init__(self, update, act, row, updates, convolutional):
        super().__init__(convolutional)
        self._update, self._act, self._row, self._updates = update, act, row, updates

    def __call__(self, state, pool, wire):
        put_rows(pool, wire.view["slot"], wire.view["row"])

        def build(message):
            if not self._updates:
                return self._act(_snapshot(state), message)
            metrics = self._learn(state, pool, message)
            return tf.concat([self._act(_snapshot(state), message), metrics], 0)

        return state, pool, self._run((state, pool), build, tf.constant(wire.buffer))

    def _learn(self, state, pool, message):
        def one(offset):
            new, metrics = self._update(_snapshot(state), pool, message, offset)
            _store(state, new)
            return metrics

        if self._updates == 1:
            return one(0)
        total = one(0)
        _, total = tf.while_loop(
            lambda offset, total: offset < self._updates,
            lambda offset, total: (offset + 1, total + one(offset)),
            (1, total),
            maximum_iterations=self._updates - 1,
        )
        return total / self._updates


def compile_step(update, act, row, updates=1, convolutional=False):
    """One call a step: write the row, learn `updates` times, act.

    Args:
        update: (state, pool, message, draw offset) -> (state, f32[M] metrics).
        act: (state, message) -> f32[A].
        row: nothing to TensorFlow, which writes the wire's row in front of the call.
        updates: how often to learn in this call; 0 writes and acts only.
        convolutional: on a CPU True leaves the call to TensorFlow's own kernels instead of XLA,
            whose convolutions are slower there.

    Returns:
        program(state, pool, wire) -> (state, pool, f32[A + M]); metrics are means over the
        updates. State and pool are consumed.
    """
    return _Step(update, act, row, updates, convolutional)


class _Act(_Program):
    def __init__(self, act, convolutional):
        super().__init__(convolutional)
        self._act = act

    def __call__(self, state, wire):
        def build(message):
            return self._act(_snapshot(state), message)

        return self._run((state,), build, tf.constant(wire.buffer))


def compile_act(act, convolutional=False):
    """program(state, wire) -> f32[A]; consumes nothing."""
    return _Act(act, convolutional)


class _Put:
    """Row writes are eager operations: nothing to compile, nothing to trace."""

    traces = 0

    def __call__(self, pool, wire):
        return put_rows(pool, wire.view["slot"], wire.view["row"])


def compile_put(row):
    """program(pool, wire) -> pool with the wire's row written; consumes them."""
    return _Put()


class _OnBatch(_Program):
    """A program over a state and a structure of host arrays; another shape is another trace."""

    def __init__(self, function, convolutional):
        super().__init__(convolutional)
        self._function = function
        self._shapes = None

    def _on(self, state, batch, finish):
        flat = [tf.constant(array) for array in tf.nest.flatten(batch)]
        shapes = [(tensor.shape, tensor.dtype) for tensor in flat]
        if shapes != self._shapes:
            self._shapes, self._call = shapes, None

        def build(*tensors):
            packed = tf.nest.pack_sequence_as(batch, tensors)
            return finish(self._function(_snapshot(state), packed))

        return self._run((state,), build, *flat)


class _Learn(_OnBatch):
    def __call__(self, state, batch):
        def finish(result):
            new, metrics = result
            _store(state, new)
            return metrics

        return state, self._on(state, batch, finish)


class _Infer(_OnBatch):
    def __call__(self, state, seen):
        return self._on(state, seen, lambda result: result)


def compile_learn(update, convolutional=False):
    """program(state, batch of host arrays) -> (state, f32[M] metrics); consumes the state."""
    return _Learn(update, convolutional)


def compile_infer(act, convolutional=False):
    """program(state, seen as host arrays) -> f32[B, A]; consumes nothing."""
    return _Infer(act, convolutional)


def compile_read(read):
    """program(pool, *arrays) -> what `read` returns; consumes nothing."""
    return tf.function(read, autograph=False, jit_compile=True)


def cluster(function):
    """`function` of tensors as one XLA kernel, also inside a call that is left to TensorFlow.

    Reading a batch is a hundred small operations: 3.8 ms one by one, 0.8 ms as one kernel.
    """
    return tf.function(function, autograph=False, jit_compile=True)


# Devices ---------------------------------------------------------------------------------------


def device() -> str:
    """The device that pools are allocated on, as TensorFlow names it."""
    return tf.zeros((), tf.uint8).device


def device_budget_bytes() -> int | None:
    """Bytes that can still be allocated there; None on a CPU and where nobody can say."""
    name = device()
    if "GPU" not in name:
        return None
    limits = [config.memory_limit for config in _logical_gpus() if config.memory_limit]
    if not limits:
        return None
    in_use = tf.config.experimental.get_memory_info("GPU:0")["current"]
    return limits[0] * 2**20 - in_use


def _logical_gpus():
    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.get_logical_device_configuration(gpus[0]) or [] if gpus else []

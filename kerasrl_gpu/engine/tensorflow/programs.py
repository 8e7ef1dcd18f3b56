"""Compiled calls: concrete functions over captured variables, fed with one buffer."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.compiler.tf2xla.python import xla

from kerasrl_gpu.engine.tensorflow.arrays import device, put_rows
from kerasrl_gpu.engine.tensorflow.variables import snapshot, store


def _same_variables(ours, theirs) -> bool:
    """Whether a trace that captured `ours` serves `theirs`; a tuple made anew does not matter."""
    return all(a is b for a, b in zip(ours, theirs, strict=True)) or all(
        a is b for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True)
    )


HOLDS_POOL = True  # its variables are captured


class _Program:
    """A tf.function of host arrays over captured variables; counts how often it was traced."""

    def __init__(self, convolutional=False):
        self.traces = 0
        self._compiled = not convolutional or "GPU" in device()
        self._calls = {}  # shapes of the arrays -> (captured variables, concrete function)

    def _run(self, captured, build, *inputs, shapes=None):
        held, call = self._calls.get(shapes, (None, None))
        if call is None or not _same_variables(held, captured):
            call = self._trace(build, inputs)
        self._calls[shapes] = captured, call
        return call(*inputs)

    def _trace(self, build, inputs):
        def traced(*tensors):
            self.traces += 1
            return build(*tensors)

        function = tf.function(traced, jit_compile=self._compiled, autograph=False)
        return function.get_concrete_function(
            *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs)
        )


class _Twin:
    """A program's own call, with a second hold on what the state's variables hold meanwhile.

    XLA writes a variable's new value over the old one where nobody else holds that, and leaves
    freed memory in the variable when it runs out of memory afterwards; the process dies with it.
    A value that is held stays, and the new one gets memory of its own. What TensorFlow's own
    kernels have assigned before they fail is taken back.
    """

    traces = 0  # it is the program's

    def __init__(self, call):
        self._call = call

    def __call__(self, state, *args):
        leaves = tf.nest.flatten(state)
        held = [leaf.read_value() for leaf in leaves]
        try:
            return state, self._call(state, *args)
        except BaseException:
            for leaf, value in zip(leaves, held, strict=True):
                leaf.assign(value)
            raise


class _Step(_Program):
    def __init__(self, update, act, updates, convolutional, writes):
        super().__init__(convolutional)
        self._update, self._act, self._updates, self._writes = update, act, updates, writes
        self.twin = _Twin(self._compute)

    def __call__(self, state, pool, wire):
        if self._writes:
            put_rows(pool, wire.view["slot"], wire.view["row"])
        return state, pool, self._compute(state, pool, wire)

    def _compute(self, state, pool, wire):
        def build(message):
            if not self._updates:
                return self._act(snapshot(state), message)
            metrics = self._learn(state, pool, message)
            return tf.concat([self._act(snapshot(state), message), metrics], 0)

        return self._run((state, pool), build, tf.constant(wire.buffer))

    def extra_bytes(self, state, pool, wire) -> int | None:
        """What a call takes beside state and pool, by running it; None on a CPU: nobody counts."""
        if "GPU" not in device():
            return None
        before = tf.config.experimental.get_memory_info("GPU:0")["current"]
        tf.config.experimental.reset_memory_stats("GPU:0")
        self(state, pool, wire)[2].numpy()
        return tf.config.experimental.get_memory_info("GPU:0")["peak"] - before

    def _learn(self, state, pool, message):
        def one(offset):
            new, metrics = self._update(snapshot(state), pool, message, offset)
            store(state, new)
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
        row: None writes nothing; TensorFlow writes the wire's row in front of the call.
        updates: how often to learn in this call; 0 writes and acts only.
        convolutional: on a CPU True leaves the call to TensorFlow's own kernels instead of XLA,
            whose convolutions are slower there.

    Returns:
        program(state, pool, wire) -> (state, pool, f32[A + M]); metrics are means over the
        updates. State and pool are consumed.

        program.twin(state, pool, wire) -> (state, f32[A + M]): the same numbers, and no row is
        written. Where it raises, nothing has changed.
    """
    return _Step(update, act, updates, convolutional, writes=row is not None)


class _Act(_Program):
    def __init__(self, act, convolutional):
        super().__init__(convolutional)
        self._act = act

    def __call__(self, state, wire):
        def build(message):
            return self._act(snapshot(state), message)

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


def compile_fill():
    """program(pool, slot, rows u8[K, row bytes]) -> pool with K rows from that slot on replaced."""

    def fill(pool, slot, rows):
        return put_rows(pool, tf.range(slot, slot + len(rows)), tf.constant(rows))

    return fill


class _OnArrays(_Program):
    """A program over variables and a structure of host arrays; another shape is another trace."""

    def __init__(self, function, convolutional=False):
        super().__init__(convolutional)
        self._function = function

    def _on(self, captured, arrays, build):
        flat = [tf.constant(array) for array in tf.nest.flatten(arrays)]
        shapes = tuple((*tensor.shape, tensor.dtype) for tensor in flat)

        def packed(*tensors):
            return build(tf.nest.pack_sequence_as(arrays, tensors))

        return self._run(captured, packed, *flat, shapes=shapes)


class _Learn(_OnArrays):
    def __init__(self, function, convolutional):
        super().__init__(function, convolutional)
        self.twin = _Twin(self._compute)

    def __call__(self, state, batch):
        return state, self._compute(state, batch)

    def _compute(self, state, batch):
        def build(batch):
            new, metrics = self._function(snapshot(state), batch)
            store(state, new)
            return metrics

        return self._on((state,), batch, build)


class _Infer(_OnArrays):
    def __call__(self, state, seen):
        return self._on((state,), seen, lambda seen: self._function(snapshot(state), seen))


class _Read(_OnArrays):
    def __call__(self, pool, *arrays):
        return self._on((pool,), arrays, lambda arrays: self._function(pool, *arrays))


def compile_learn(update, convolutional=False):
    """program(state, batch of host arrays) -> (state, f32[M] metrics); consumes the state.

    program.twin is called alike and consumes nothing; see `compile_step`.
    """
    return _Learn(update, convolutional)


def compile_infer(act, convolutional=False):
    """program(state, seen as host arrays) -> f32[B, A]; consumes nothing."""
    return _Infer(act, convolutional)


def compile_read(read):
    """program(pool, *arrays) -> what `read` returns; consumes nothing."""
    return _Read(read)


def survived(given) -> bool:
    """False: nobody can tell what a call that ran out of memory left in the variables."""
    return False


def cluster(function):
    """`function` of tensors as one XLA kernel, also inside a call that is left to TensorFlow.

    Reading a batch is a hundred small operations: 3.8 ms one by one, 0.8 ms as one kernel.
    """
    return tf.function(function, autograph=False, jit_compile=True)


def fence(array):
    """`array`; nothing that makes it is compiled together with what is made of it.

    Inside what XLA compiles, as every read of a pool is.
    """
    return xla.optimization_barrier(array)[0]


def repeat(body, count: int, carry, unroll: bool = False):
    """`body(index i32[], carry) -> carry` for index 0 .. count-1, one after the other.

    Args:
        unroll: nothing to TensorFlow, whose loops cost nothing.
    """
    _, carry = tf.while_loop(
        lambda index, carry: index < count,
        lambda index, carry: (index + 1, body(index, carry)),
        (tf.constant(0), carry),
        parallel_iterations=1,  # else a part begins before the one before it gave its memory back
    )
    return carry

"""Compiled calls. State and pool are donated to every one that writes them, its twin apart."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from kerasrl_gpu.engine.jax.arrays import leaves, put_rows
from kerasrl_gpu.engine.jax.packing import Packed, pack

HOLDS_POOL = False  # it is handed in
_UNROLLED = 32  # repetitions; more take too long to compile


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

    def extra_bytes(self, *args) -> int:
        """What a call takes beside its arguments, by the compiler's own account."""
        told = self._call.lower(*args).compile().memory_analysis()
        return told.temp_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes


class _Step:
    """A step's program; between two of them the state stays packed."""

    def __init__(self, step, donate, twin=None):
        self._step, self._plan, self._program, self._donate = step, None, None, donate
        self.twin = twin

    @property
    def traces(self) -> int:
        return 0 if self._program is None else self._program.traces

    def __call__(self, state, pool, wire):
        arrays = self._prepared(state)
        arrays, pool, out = self._program(arrays, pool, wire.buffer)
        return Packed(arrays, self._plan), pool, out

    def extra_bytes(self, state, pool, wire) -> int:
        """What a call takes beside state and pool; consumes and runs nothing."""
        arrays = self._prepared(state)
        return self._program.extra_bytes(arrays, pool, wire.buffer)

    def _prepared(self, state):
        arrays, plan = pack(state)
        if plan is not self._plan and plan != self._plan:
            self._plan, self._program = plan, self._compile(plan)
        return arrays

    def _compile(self, plan):
        def on_arrays(arrays, pool, message):
            state, pool, out = self._step(plan.split(arrays), pool, message)
            return plan.join(state), pool, out

        return Program(on_arrays, donate=self._donate)


class _StepTwin(_Step):
    """Donates nothing, and has ended when it returns, so that a failure is seen while the state
    that it was given is still the one that counts."""

    def __call__(self, state, pool, wire):
        state, _, out = super().__call__(state, pool, wire)
        jax.block_until_ready((state.arrays, out))
        return state, out


class _Learn(Program):
    def __init__(self, update):
        super().__init__(update, donate=(0,))
        self.twin = _LearnTwin(update)


class _LearnTwin(Program):
    """As `_StepTwin`."""

    def __call__(self, state, batch):
        return jax.block_until_ready(super().__call__(state, batch))


class _WireProgram(Program):
    """A program whose last argument is a wire: what travels is its one buffer."""

    def __call__(self, *args):
        return self._call(*args[:-1], args[-1].buffer)


def compile_step(update, act, row, updates=1, convolutional=False):
    """One call a step: write the row, learn `updates` times, act.

    Args:
        update: (state, pool, message, draw offset) -> (state, f32[M] metrics).
        act: (state, message) -> f32[A].
        row: message -> (slots i32[K], rows u8[K, row bytes]); None writes nothing, and the pool
            is only read.
        updates: how often to learn in this call; 0 writes and acts only.
        convolutional: unrolls the updates on a CPU, where XLA convolves six times slower inside
            a loop.

    Returns:
        program(state, pool, wire) -> (state, pool, f32[A + M]); metrics are means over the
        updates. State and pool are consumed; the state may come packed, and comes back so. Where
        no row is written the pool stays, and None is returned in its place.

        program.twin(state, pool, wire) -> (state, f32[A + M]): the same numbers, but it consumes
        nothing and writes no row. Where it raises, nothing has changed.
    """

    unroll = convolutional and jax.default_backend() == "cpu"

    def step(state, pool, message):
        if not updates:
            return state, act(state, message)
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
        return state, jnp.concatenate([act(state, message), metrics])

    def reading(state, pool, message):
        state, out = step(state, pool, message)
        return state, None, out  # a pool that is not donated would be copied to be returned

    def writing(state, pool, message):
        pool = put_rows(pool, *row(message))
        state, out = step(state, pool, message)
        return state, pool, out

    twin = _StepTwin(reading, donate=())
    if row is None:
        return _Step(reading, donate=(0,), twin=twin)
    return _Step(writing, donate=(0, 1), twin=twin)


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


@functools.cache  # one for all pools: it knows none of them, and each K is compiled once
def compile_fill():
    """program(pool, slot, rows u8[K, row bytes]) -> pool with K rows from that slot on replaced.

    Consumes the pool; each K compiles once.
    """
    return Program(
        lambda pool, slot, rows: jax.lax.dynamic_update_slice_in_dim(pool, rows, slot, axis=0),
        donate=(0,),
    )


def compile_learn(update, convolutional=False):
    """program(state, batch of host arrays) -> (state, f32[M] metrics); consumes the state.

    program.twin is called alike and consumes nothing; see `compile_step`.
    """
    return _Learn(update)


def compile_infer(act, convolutional=False):
    """program(state, seen as host arrays) -> f32[B, A]; consumes nothing."""
    return Program(act)


def compile_read(read):
    """program(pool, *arrays) -> what `read` returns; consumes nothing."""
    return Program(read)


def survived(given) -> bool:
    """Whether a donating call that raised left what it was given: it did not get to its start."""
    arrays = [leaf for leaf in leaves(given) if isinstance(leaf, jax.Array)]
    return not any(array.is_deleted() for array in arrays)


def cluster(function):
    """`function`: what JAX compiles is one kernel already."""
    return function


def fence(array):
    """`array`; nothing that makes it is compiled together with what is made of it."""
    return jax.lax.optimization_barrier(array)


def repeat(body, count: int, carry, unroll: bool = False):
    """`body(index i32[], carry) -> carry` for index 0 .. count-1, one after the other.

    Args:
        unroll: writes a few repetitions out on a CPU, where XLA convolves six times slower inside
            a loop. None begins before the one before it has ended: they share its memory.
    """
    if not (unroll and count <= _UNROLLED and jax.default_backend() == "cpu"):
        return jax.lax.fori_loop(0, count, body, carry)
    for index in range(count):
        carry = body(jnp.int32(index) + _zero_after(carry), carry)
    return carry


def _zero_after(carry):
    """0 i32[], known only when every array of `carry` is.

    XLA drops optimization_barrier before it orders a CPU's work, and would run the first halves
    of all parts before the second half of any, each with its activations.
    """
    words = [
        jax.lax.bitcast_convert_type(leaf.reshape(-1)[0], jnp.uint32)
        for leaf in jax.tree.leaves(carry)
        if leaf.dtype == jnp.float32 and leaf.size
    ]
    return jax.lax.bitcast_convert_type(sum(words) >> 31 >> 1, jnp.int32)

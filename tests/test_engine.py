"""Both engines by the same tests: rows in and out, numbers, compiled calls, memory."""

import os
import subprocess
import sys
from functools import partial

import gymnasium
import keras
import numpy as np
import pytest
from keras import ops

from kerasrl_gpu import DeviceMemory, DQNAgent, engine, losses
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.inputs import Inputs
from kerasrl_gpu.learner import Learner
from kerasrl_gpu.mirror import Mirror
from kerasrl_gpu.policy import EpsGreedyQPolicy
from kerasrl_gpu.pool.layout import Field, Layout
from kerasrl_gpu.pool.transitions import Rule
from kerasrl_gpu.state import Network, TrainState, Weights
from kerasrl_gpu.updates.dqn import DQNRule, dqn_update
from kerasrl_gpu.wire import Wire

BACKEND = os.environ["KERAS_BACKEND"]
WIDE = ["float64", "int64", "uint64"]  # JAX holds them only where it was told to
DTYPES = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32"]
DTYPES += ["float16", "bfloat16", "float32"] + (WIDE if BACKEND == "tensorflow" else [])
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="about TensorFlow")


def values_of(dtype, shape, seed=0):
    """Numbers of a dtype: three special ones first, then random ones, integers of any size."""
    dtype, random = np.dtype(dtype), np.random.default_rng(seed)
    if dtype.kind == "b":
        return random.integers(2, size=shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        special = [info.min, info.max, 1]
        values = random.integers(info.min, info.max, shape, dtype, endpoint=True)
    else:
        special = [-0.0, np.inf, -1e-3]
        values = random.normal(size=shape).astype(dtype)
    values.reshape(-1)[: len(special)] = special[: values.size]
    return values


# Arrays -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_come_back_as_they_were_written(rows):
    leaves = {dtype: Field(dtype, (2, 2)) for dtype in DTYPES} | {"scalar": Field("int32", ())}
    layout = Layout(leaves, Field("uint8", ()), limit=5)
    wire = Wire({"slot": ("int32", (rows,)), "row": ("uint8", (rows, layout.row_bytes))})
    pool, put = engine.zeros((5, layout.row_bytes), "uint8"), engine.compile_put(wire.row)
    want = {name: np.zeros((5, *leaf.shape), leaf.dtype) for name, leaf in leaves.items()}
    for seed, slots in enumerate(([4, 0, 2], [2, 1, 3])):  # row 2 is written twice
        wire.view["slot"][:] = slots[:rows]
        for name, leaf in leaves.items():
            want[name][slots[:rows]] = values_of(leaf.dtype, (rows, *leaf.shape), seed)
            for row, slot in zip(wire.view["row"], slots, strict=False):
                layout.view(row, f"leaf/{name}")[...] = want[name][slot]
        pool = put(pool, wire)

    def take(pool, slots):
        taken = engine.take_rows(pool, slots)
        return taken, {name: layout.read(taken, f"leaf/{name}") for name in leaves}

    order = np.array([3, 1, 4, 0, 2, 2], np.int32)
    raw, got = engine.compile_read(take)(pool, order)
    unpacked = layout.unpack(engine.to_host(raw))
    for name in leaves:
        for array in (engine.to_host(got[name]), unpacked[f"leaf/{name}"]):
            assert array.dtype == want[name].dtype
            assert array.tobytes() == want[name][order].tobytes()  # the bits, -0.0 and all


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_from_bytes_is_what_the_bytes_say(shape):
    want = {dtype: values_of(dtype, (2, 2, *shape)) for dtype in DTYPES}
    raw = {dtype: values.reshape(2, 2, -1).view(np.uint8) for dtype, values in want.items()}

    def read(pool, raw):
        return {dtype: engine.from_bytes(raw[dtype], dtype, shape) for dtype in DTYPES}

    got = engine.compile_read(read)({}, raw)
    for dtype in DTYPES:
        array = engine.to_host(got[dtype])
        assert (array.dtype, array.shape) == (np.dtype(dtype), (2, 2, *shape))
        assert array.tobytes() == want[dtype].tobytes()


def test_a_wire_is_read_as_it_was_written():
    fields = {dtype: (dtype, (3,)) for dtype in DTYPES} | {"one": ("uint32", ())}
    wire = Wire(fields)
    for name, (dtype, shape) in fields.items():
        wire.view[name][...] = values_of(dtype, (3,)) if shape else 7
    got = engine.compile_read(
        lambda pool, message: {name: wire.read(message, name) for name in fields}
    )({}, wire.buffer)
    for name in fields:
        assert engine.to_host(got[name]).tobytes() == wire.view[name].tobytes()


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_keep_dtype_keeps_all_bits_or_says_that_it_cannot(dtype):
    memory = DeviceMemory(limit=8, keep_dtype=True)
    rows = [np.array([2**40 + step, -step]).astype(dtype) for step in range(4)]
    if BACKEND == "jax":
        with pytest.raises(ArgumentError, match=r"(?i)jax_enable_x64"):
            memory.append(rows[0], 0, 0.0, False)
        return
    for row in rows:
        memory.append(row, 0, 0.0, False)
    np.testing.assert_array_equal(memory.observations, rows)
    assert memory.observations[0].dtype == dtype


# Random numbers -----------------------------------------------------------------------------------

SHAPE = (60_000,)
_draw = engine.compile_read(
    lambda pool, seed, draw, stream, high: engine.random_int(seed, draw, stream, SHAPE, high)
)


def draw(seed=5, draw=9, stream=2, high=6):
    drawn = _draw({}, np.uint32(seed), np.uint32(draw), np.int32(stream), np.int32(high))
    drawn = engine.to_host(drawn)
    assert (drawn.dtype, drawn.shape) == (np.int32, SHAPE)
    return drawn


def test_a_draw_is_a_function_of_its_three_counters():
    first = draw()
    np.testing.assert_array_equal(draw(), first)
    others = [{"seed": 6}, {"draw": 10}, {"stream": 3}, {"seed": 9, "draw": 5}, {"draw": 2**32 - 1}]
    for changed in others:
        # of two unrelated draws of 0..5 one in six agrees; 60,000 leave 0.0015 for chance
        agree = np.mean(draw(**changed) == first)
        assert agree == pytest.approx(1 / 6, abs=0.01), changed


def test_draws_are_uniform_over_their_range():
    counts = np.bincount(draw(), minlength=6)
    assert len(counts) == 6
    # 5 degrees of freedom: one draw in 1,000 exceeds 20.5, and this draw is always the same
    assert np.sum((counts - 10_000) ** 2 / 10_000) < 20.5
    assert not draw(high=1).any()
    wide = draw(high=2**31 - 1) / (2**31 - 1)
    assert 0 <= wide.min() < 1e-3
    assert 1 - 1e-3 < wide.max() <= 1
    assert wide.mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.skipif(BACKEND != "jax", reason="TensorFlow computes with 64 bits itself")
@pytest.mark.parametrize("a", [0, 1, 0xFFFF, 0x1_0000, 0x9E37_79B9, 0xFFFF_FFFF])
@pytest.mark.parametrize("b", [1, 6, 0xFFFF, 0x1_0001, 1_000_000, 0x7FFF_FFFF, 0xFFFF_FFFF])
def test_jax_multiplies_32_bits_by_32_bits(a, b):
    from kerasrl_gpu.engine.jax import arrays

    words = ops.convert_to_tensor(np.uint32([a, b]))
    assert int(arrays._multiply_high(words[0], words[1])) == a * b >> 32


# Gradients and compiled calls ---------------------------------------------------------------------


def test_value_and_grad_hand_computed():
    # d/dw of 3 * (1 + 4) is 6 * w = (6, -12); what the loss does not see has gradient 0
    def loss(trainable):
        return 3 * ops.sum(trainable[0] ** 2), trainable[0] + 1

    weights = [ops.convert_to_tensor(np.float32([1, -2])), ops.ones((3,))]
    (value, aux), gradients = engine.value_and_grad(loss)(weights)
    assert float(value) == 15
    np.testing.assert_array_equal(engine.to_host(aux), [2, -1])
    np.testing.assert_array_equal(engine.to_host(gradients[0]), [6, -12])
    np.testing.assert_array_equal(engine.to_host(gradients[1]), [0, 0, 0])


def counting(updates):
    """A program whose one weight adds up what it meets, a state, a pool of 4 rows, and its wire."""
    wire = Wire({"slot": ("int32", (1,)), "draw": ("uint32", ()), "row": ("uint8", (1, 1))})

    def update(state, pool, message, offset):
        (weight,) = state.online["w"].trainable
        drawn = ops.cast(engine.counter(wire.read(message, "draw"), offset), "float32")
        row = engine.take_rows(pool, wire.read(message, "slot"))
        newest = ops.cast(row[0, 0], "float32") / 8
        weight = weight + drawn + newest
        return state._replace(online={"w": Weights([weight], [])}), ops.stack([weight, newest])

    def act(state, message):
        return ops.stack([state.online["w"].trainable[0] * 2])

    program = engine.compile_step(update if updates else None, act, wire.row, updates=updates)
    weights = Weights(engine.adopt([keras.Variable(np.float32(0))]), [])
    return program, TrainState({"w": weights}, {}, {}), engine.zeros((4, 1), "uint8"), wire


def odd_state(fill, units=3):
    """A state of small and large arrays of three dtypes, scalars and an empty list."""
    shapes = [(2, units), (units,), (200, 200), ()]
    leaves = [keras.ops.full(shape, fill + i, "float32") for i, shape in enumerate(shapes)]
    seeds = [keras.ops.full((2,), 7, "uint32"), keras.ops.full((), fill, "int32")]
    weights = Weights(leaves, seeds)
    return TrainState({"a": weights, "b": weights}, {"a": Weights(leaves, [])}, {"a": [*leaves]})


@pytest.mark.skipif(BACKEND != "jax", reason="TensorFlow packs nothing")
def test_a_packed_state_comes_back_bit_for_bit():
    from kerasrl_gpu.engine.jax.packing import pack

    packed = pack(odd_state(1))
    # online: f32 and u32 joined, two large, two times two scalars; target, slots: f32, large, one
    assert len(packed.arrays) == (2 + 2 + 4) + 3 + 3
    assert pack(packed) is packed
    for fill in (1, 5):
        state, packed = odd_state(fill), pack(odd_state(fill))
        got, want = keras.tree.flatten(engine.unpack(packed)), keras.tree.flatten(state)
        for one, other in zip(got, want, strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_array_equal(one, other)
    assert pack(odd_state(1)).plan == packed.plan != pack(odd_state(1, units=4)).plan
    assert hash(pack(odd_state(1)).plan) == hash(packed.plan)


@pytest.mark.parametrize("updates", [1, 4])
def test_a_step_writes_then_learns_then_acts(updates):
    program, state, pool, wire = counting(updates)
    weight = 0.0
    for call in range(50):
        wire.view["slot"][0], wire.view["row"][0, 0] = call % 4, call
        wire.view["draw"][...] = 10 * call
        seen = []
        for offset in range(updates):
            weight += 10 * call + offset + call / 8
            seen.append(weight)
        state, pool, out = program(state, pool, wire)
        # first what acting makes of the new weight, then the metrics' means
        np.testing.assert_allclose(
            engine.to_host(out), [2 * weight, np.mean(seen), call / 8], rtol=1e-6
        )
    assert program.traces == 1
    stored = engine.to_host(engine.take_rows(pool, np.arange(4, dtype=np.int32)))
    np.testing.assert_array_equal(stored[:, 0], [48, 49, 46, 47])


def test_without_updates_a_step_writes_and_acts():
    program, state, pool, wire = counting(0)
    wire.view["slot"][0], wire.view["row"][0, 0] = 2, 5
    state, pool, out = program(state, pool, wire)
    np.testing.assert_array_equal(engine.to_host(out), [0])
    stored = engine.to_host(engine.take_rows(pool, np.arange(4, dtype=np.int32)))
    np.testing.assert_array_equal(stored[:, 0], [0, 0, 5, 0])


def test_a_counter_wraps_with_its_word():
    # a word of 2**32 - 1 moved on by 1 is the counter 0: the same draws as of the word 0
    drawn = engine.compile_read(
        lambda pool, word, offset: engine.random_int(5, engine.counter(word, offset), 0, (8,), 1000)
    )
    wrapped = drawn({}, np.uint32(2**32 - 1), np.uint32(1))
    np.testing.assert_array_equal(
        engine.to_host(wrapped), engine.to_host(drawn({}, np.uint32(0), np.uint32(0)))
    )


def leaves_of(state):
    """Every array of a state with the network "model", on the host."""
    state = engine.unpack(state)
    online, target = state.online["model"], state.target["model"]
    every = [*online.trainable, *online.non_trainable, *target.trainable]
    every += [*target.non_trainable, *state.slots["model"]]
    return [np.array(engine.to_host(leaf)) for leaf in every]


class Learning:
    """A DQN over a pool of 30 rows, by the parts that an agent puts together."""

    def __init__(self, updates):
        random = np.random.default_rng(1)
        kernels = [random.normal(size=shape).astype(np.float32) for shape in [(2, 8), (8, 3)]]
        self.model = keras.Sequential(
            [
                keras.Input((2,)),
                keras.layers.Dense(8, "tanh"),
                keras.layers.BatchNormalization(),
                keras.layers.Dense(3),
            ]
        )
        for index, kernel in zip((0, 2), kernels, strict=True):
            self.model.layers[index].kernel.assign(kernel)
        self.memory = DeviceMemory(limit=40)
        self.memory.bind(Field("uint8", ()))
        for step in range(30):
            observation = random.normal(size=2).astype(np.float32)
            self.memory.append(observation, step % 3, random.normal(), terminal=step % 7 == 6)
        mirror = Mirror({"model": self.model}, ("model",), {"model": keras.optimizers.Adam(0.01)})
        self.state = mirror.start()
        net = Network(self.model, Inputs(self.model, observation[None, None], 1))
        rule = DQNRule(
            double=True, delta=1.0, tau=0.1, measures=[("mean_q", losses.mean_q)], nb_actions=3
        )
        update = partial(dqn_update, net=net, optimizer=mirror.optimizers["model"], rule=rule)
        self.learner = Learner(
            update=lambda what: update,
            act=lambda state, seen: net(state.online["model"], seen, training=False)[0],
            rule=Rule(gamma=0.9),
            batch_size=8,
            updates=updates,
            process=lambda seen: seen,
            nb_metrics=2,
            convolutional=False,
        )
        self.memory.stage(observation, 0, 1.0)
        self.memory.see(observation)
        self.memory.wire.view["seed"][...] = 11

    def step(self, draw):
        """Values and metrics of one call; the staged row goes to the same place each time."""
        self.memory.wire.view["draw"][...] = draw
        program = self.learner.step(self.memory, ("model",))
        self.state, self.memory.pool, out = program(self.state, self.memory.pool, self.memory.wire)
        return engine.to_host(out)


def test_four_updates_in_one_call_are_four_calls():
    together, single = Learning(updates=4), Learning(updates=1)
    for first in (0, 4):
        outs = [single.step(first + draw) for draw in range(4)]
        out = together.step(first)
        np.testing.assert_allclose(out[:3], outs[-1][:3], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(out[3:], np.mean(outs, axis=0)[3:], rtol=1e-6, atol=1e-6)
    # bit for bit on this network; XLA may fuse a larger one differently
    for got, want in zip(leaves_of(together.state), leaves_of(single.state), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert list(together.learner.traces.values()) == list(single.learner.traces.values()) == [1]


# Determinism --------------------------------------------------------------------------------------


class Walk(gymnasium.Env):
    """Three places in a row and the time; 7 steps an episode, cut after the last."""

    observation_space = gymnasium.spaces.Box(0, 7, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self):
        self.actions = []

    def reset(self, *, seed=None, options=None):
        self.at, self.time = 0, 0
        return np.float32([0, 0]), {}

    def step(self, action):
        self.actions.append(int(action))
        self.at, self.time = (self.at + action) % 3, self.time + 1
        observation = np.float32([self.at, self.time / 7])
        return observation, float(self.at), False, self.time == 7, {}


WARMUP = 15


def run(seed, nb_steps):
    """(actions, every array of the state) of a short training."""
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(8, "tanh", kernel_initializer=keras.initializers.GlorotUniform(1)),
            keras.layers.Dropout(0.2, seed=1),
            keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(2)),
        ]
    )
    agent = DQNAgent(
        model=model,
        nb_actions=3,
        policy=EpsGreedyQPolicy(eps=0.5),
        memory=DeviceMemory(limit=100),
        batch_size=8,
        nb_steps_warmup=WARMUP,
        target_model_update=0.1,
        seed=seed,
    )
    agent.compile(keras.optimizers.Adam(0.01))
    env = Walk()
    agent.fit(env, nb_steps=nb_steps, verbose=0)
    return env.actions, leaves_of(agent.state)


def test_the_same_seed_gives_the_same_run_bit_for_bit():
    (actions, leaves), (again, others) = run(seed=3, nb_steps=60), run(seed=3, nb_steps=60)
    assert actions == again
    for mine, theirs in zip(leaves, others, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # before the first update only exploration can differ
    assert run(seed=4, nb_steps=WARMUP)[0] != actions[:WARMUP]


# TensorFlow's kernels -----------------------------------------------------------------------------


def on_variables(function, *args):
    """{(operation, dtype, index dtype)} that a function does on variables, nested calls and all."""
    import tensorflow as tf

    graph = tf.function(function, autograph=False).get_concrete_function(*args).graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return {
        (node.op, node.attr["dtype"].type, node.attr["Tindices"].type)
        for node in nodes
        if node.op.startswith("Resource") or node.op.endswith("VariableOp")
    }


def has_gpu_kernel(operation, dtype, indices=None):
    from tensorflow.python.framework import kernels

    for kernel in kernels.get_registered_kernels_for_op(operation).kernel:
        allowed = {c.name: list(c.allowed_values.list.type) for c in kernel.constraint}
        if (
            kernel.device_type in ("GPU", "DEFAULT")
            and dtype in allowed.get("dtype", [dtype])
            and indices in allowed.get("Tindices", [indices])
            and "resource" in kernel.host_memory_arg
        ):
            return True
    return False


@on_tensorflow
def test_every_operation_on_a_pool_has_a_gpu_kernel():
    import tensorflow as tf

    pool = engine.zeros((4, 2), "uint8")
    wire = Wire({"slot": ("int32", (1,)), "row": ("uint8", (1, 2))})
    put = engine.compile_put(wire.row)
    writes = on_variables(lambda: (put(pool, wire), ())[1])
    reads = on_variables(lambda: engine.take_rows(pool, wire.view["slot"]))
    code, index = tf.uint8.as_datatype_enum, tf.int32.as_datatype_enum
    assert writes == {("ResourceScatterUpdate", code, index)}
    assert reads == {("ResourceGather", code, index)}
    for operation in (*writes, *reads):
        assert has_gpu_kernel(*operation), operation
    assert has_gpu_kernel("AssignVariableOp", code)  # what makes a pool


@on_tensorflow
def test_sampling_only_gathers_from_the_pool():
    import tensorflow as tf

    memory = DeviceMemory(limit=20, window_length=3)
    for step in range(8):
        memory.append({"a": np.zeros((2, 2), np.uint8), "b": step}, 0, 0.0, step == 5)
    live = memory.ring.live()
    found = on_variables(
        memory.reader._read(Rule()),
        memory.pool,
        live.tail,
        live.size,
        np.uint32(0),
        np.uint32(0),
        np.full(4, -1, np.int32),
    )
    code, index = tf.uint8.as_datatype_enum, tf.int32.as_datatype_enum
    # XLA, which compiles it, hands the value of a variable over as it lies
    assert found == {("ResourceGather", code, index), ("ReadVariableOp", code, 0)}
    assert has_gpu_kernel("ResourceGather", code, index)
    assert has_gpu_kernel("ReadVariableOp", code)


@on_tensorflow
def test_op_determinism_on_a_gpu_is_told_of(monkeypatch):
    from kerasrl_gpu.engine.tensorflow import arrays

    arrays.zeros((2, 2), "uint8")  # neither is there
    monkeypatch.setattr(arrays, "device", lambda: "/job:localhost/device:GPU:0")
    arrays.zeros((2, 2), "uint8")
    monkeypatch.setattr(arrays, "is_op_determinism_enabled", lambda: True)
    with pytest.warns(UserWarning, match="op determinism is on"):
        arrays.zeros((2, 2), "uint8")


@on_tensorflow
def test_the_kernel_check_knows_what_is_missing():
    # int32 variables have no gather on a GPU: one reason for a pool of bytes
    import tensorflow as tf

    assert not has_gpu_kernel("ResourceGather", tf.int32.as_datatype_enum, 3)
    assert has_gpu_kernel("ResourceGather", tf.uint8.as_datatype_enum, 3)


# Processes of their own ---------------------------------------------------------------------------


def child(code, backend=BACKEND):
    """What a fresh Python prints."""
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


TORCH = """
import keras
keras.backend.backend = lambda: "torch"  # torch itself is not needed to be refused
try:
    from kerasrl_gpu import DQNAgent
except Exception as error:
    print(type(error).__name__, error)
"""


def test_pytorch_gets_a_sentence():
    said = child(TORCH, backend="jax")
    assert said.startswith("BackendError kerasrl_gpu has no engine for the Keras backend 'torch'")
    assert "Set KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax" in said


MEMORY = """
import numpy as np
from kerasrl_gpu import DeviceMemory, probes

def use(memory, calls):
    for step in range(calls):
        memory.append(frame, step % 4, 1.0, step % 100 == 99)
        if step > 10:
            memory.read_batch(8)

frame = np.full((84, 84), 7, np.uint8)
use(DeviceMemory(limit=64), 80)
before = probes.process_rss()
memory = DeviceMemory(limit=300_000_000 // 7_062)
use(memory, 200)
settled = probes.process_rss()
use(memory, 2_000)
print(memory.nbytes, probes.max_rss_bytes() - before, probes.process_rss() - settled)
"""


def test_a_pool_costs_its_bytes_and_nothing_each_call():
    pool, peak, growth = map(int, child(MEMORY).split())
    assert pool == pytest.approx(300e6, rel=0.01)
    # 64 MiB over the pool: less than any copy of it, and than what XLA would add to write in place
    assert peak < pool + 64 * 2**20, f"{peak / 2**20:.0f} MiB for a pool of {pool / 2**20:.0f}"
    assert growth < 5e6, f"{growth / 1e6:.1f} MB more after 2,000 calls"

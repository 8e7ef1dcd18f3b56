"""The bytes of a run, line by line, against sums by hand."""

import json
import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, engine
from kerasrl_gpu.errors import ArgumentError, NotCompiled, ShapeError
from kerasrl_gpu.keras_rl import Memory
from kerasrl_gpu.planning import engines, graph, passes
from kerasrl_gpu.planning.engines import Engine
from kerasrl_gpu.planning.passes import Pass

F = 4  # bytes of a float32
LEARNING = Pass("model", keeps=True, learns=True)
XLA = engines.TENSORFLOW_XLA


def small():
    """3 numbers, 4 hidden, 2 actions: 3 * 4 + 4 and 4 * 2 + 2 are 26 weights."""
    return keras.Sequential([
        keras.Input((1, 3)),
        keras.layers.Flatten(),
        keras.layers.Dense(4, activation="relu"),
        keras.layers.Dense(2),
    ])  # fmt: skip


def dqn(model=None, optimizer="adam", batch_size=5, **arguments):
    memory = arguments.pop("memory", None) or DeviceMemory(limit=10)
    agent = DQNAgent(
        model or small(), nb_actions=2, memory=memory, batch_size=batch_size,
        target_model_update=0.01, **arguments,
    )  # fmt: skip
    agent.compile(optimizer)
    return agent


def ddpg():
    seen, action = keras.Input((1, 3)), keras.Input((2,))
    flat = keras.layers.Flatten()(seen)
    actor = keras.Model(seen, keras.layers.Dense(2)(keras.layers.Dense(8, "relu")(flat)))
    both = keras.layers.Concatenate()([action, flat])
    critic = keras.Model([action, seen], keras.layers.Dense(1)(keras.layers.Dense(4, "relu")(both)))
    agent = DDPGAgent(2, actor, critic, action, DeviceMemory(limit=10), batch_size=5)
    agent.compile("sgd")
    return agent


def lines(plan, group):
    return {line.what: line.bytes for line in plan.lines if line.group == group}


SEEN = np.zeros(3, np.float32)


# Lines --------------------------------------------------------------------------------------------


def test_networks_and_slots_by_hand(backend):
    plan = dqn(optimizer=keras.optimizers.SGD(0.1, momentum=0.9)).plan(SEEN)
    assert lines(plan, "networks") == {"model: weights": 26 * F, "model: target": 26 * F}
    # a momentum for each weight, the learning rate, and the iterations, i64 on TensorFlow
    slots = 26 * F + F + (8 if backend == "tensorflow" else 4)
    assert lines(plan, "optimizer") == {"model: slots": slots}
    held = 26 * F + 26 * F + slots
    copies = {"model: weights and slots": 26 * F + slots} if backend == "jax" else {}
    assert lines(plan, "Keras' copies") == copies
    assert plan.persistent_bytes == held + sum(copies.values())


def test_the_pool_by_hand():
    plan = dqn().plan(SEEN)
    pool = {"observation": 10 * 3 * F, "action": 10, "reward": 10 * F, "flags": 10}
    assert lines(plan, "pool") == pool
    assert plan.pool_bytes == sum(pool.values())
    assert dqn().plan(SEEN, limit=1_000_000).pool_bytes == 100_000 * plan.pool_bytes


def test_structured_observations_have_a_column_a_leaf():
    frame, speed = keras.Input((1, 4, 4), name="frame"), keras.Input((1, 2), name="speed")
    parts = [keras.layers.Flatten()(ops.cast(part, "float32")) for part in (frame, speed)]
    model = keras.Model([frame, speed], keras.layers.Dense(2)(keras.layers.Concatenate()(parts)))
    seen = {"frame": np.zeros((4, 4), np.uint8), "speed": np.zeros(2)}  # f64 is stored as f32
    pool = lines(dqn(model).plan(seen), "pool")
    assert pool == {"frame": 160, "speed": 80, "action": 10, "reward": 40, "flags": 10}


def test_gradients_and_batch_by_hand(backend):
    update = lines(dqn(optimizer="sgd").plan(SEEN), "update")
    assert update["model: gradients"] == 26 * F
    # a row of the pool is 12 + 1 + 4 + 1 bytes; two are read for a transition, and make the
    # observation, the action, reward, discount, and one byte; on JAX the next observation, too
    seen = 2 * 12 if backend == "jax" else 12
    assert update["batch"] == 5 * (2 * 18 + seen + 1 + 4 + 4 + 1)
    assert "model: gradients, summed so far" not in update


def test_micro_batches_take_rows_and_give_one_set_of_gradients():
    whole, parts = dqn().plan(SEEN), dqn().plan(SEEN, micro_batch=1)
    before, after = lines(whole, "update"), lines(parts, "update")
    assert after.pop("model: gradients, summed so far") == 26 * F
    assert after.pop("which rows are drawn") == 5 * _compiled().draw_bytes
    assert before.pop("batch") * 2 == after.pop("batch") * 5  # one part, and the next one
    for what in after:
        assert before[what] == after[what] * (5 if what.startswith("activations") else 1)


def test_the_agents_own_micro_batch_is_planned():
    agent = dqn()
    agent.set_micro_batch(2)
    assert agent.plan(SEEN) == dqn().plan(SEEN, micro_batch=2)
    assert agent.plan(SEEN, batch_size=1).micro_batch == 1


def test_a_plan_counts_everything_once():
    plan = dqn().plan(SEEN, micro_batch=2, budget=10**9)
    parts = plan.persistent_bytes + plan.pool_bytes + plan.step_bytes + plan.of("margin")
    assert plan.peak_bytes == parts == sum(line.bytes for line in plan.lines)
    assert plan.of("margin") == math.ceil(0.05 * plan.step_bytes) + _compiled().code_bytes


def _compiled():
    return engines.compiled_by(convolutional=False)


def test_both_networks_of_a_ddpg_have_their_lines():
    plan = ddpg().plan(SEEN)
    actor, critic = 3 * 8 + 8 + 8 * 2 + 2, 5 * 4 + 4 + 4 + 1
    assert lines(plan, "networks") == {
        "actor: weights": actor * F,
        "critic: weights": critic * F,
        "actor: target": actor * F,
        "critic: target": critic * F,
    }
    assert lines(plan, "update")["critic: gradients"] == critic * F


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(),
    "adamw": lambda: keras.optimizers.AdamW(),
    "amsgrad": lambda: keras.optimizers.Adam(amsgrad=True, clipnorm=1.0),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "centered": lambda: keras.optimizers.RMSprop(centered=True, momentum=0.5),
    "adafactor": lambda: keras.optimizers.Adafactor(),
    "lion": lambda: keras.optimizers.Lion(),
    "nadam": lambda: keras.optimizers.Nadam(),
    "ftrl": lambda: keras.optimizers.Ftrl(use_ema=True),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 9)),
    "accumulating": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(use_ema=True)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizers_slots_are_what_it_built(name):
    agent = dqn(optimizer=OPTIMIZERS[name]())
    built = sum(ops.convert_to_numpy(one).nbytes for one in agent.optimizer.variables)
    held = sum(engine.to_host(slot).nbytes for slot in agent.state.slots["model"])
    assert lines(agent.plan(SEEN), "optimizer") == {"model: slots": built} == {"model: slots": held}


@settings(max_examples=8)
@given(units=st.integers(1, 9), features=st.integers(1, 9), rows=st.integers(4, 99))
def test_sums_hold_for_any_size(units, features, rows):
    model = keras.Sequential([
        keras.Input((features,)), keras.layers.Dense(units, use_bias=False), keras.layers.Dense(2)
    ])  # fmt: skip
    plan = dqn(model, memory=DeviceMemory(rows), batch_size=3).plan(np.zeros(features, np.float32))
    numbers = features * units + units * 2 + 2
    assert plan.of("networks") == 2 * numbers * F
    assert plan.pool_bytes == rows * (features * F + 6)


# Activations --------------------------------------------------------------------------------------


def held(model, engine_=XLA, stages=None):
    return passes.rows(
        stages or [[Pass("model"), LEARNING]], {"model": graph.trace(model)}, engine_
    )


def test_dense_layers_by_hand():
    # XLA keeps what the relu takes and what it gives, 4 floats each. Beside them lies the target's
    # widest output, 4 floats; or, on the way back, the gradients of the 2 outputs and the 4 hidden
    # numbers: 6 floats. (The input is the batch, a view of it no array.)
    assert held(small()) == (8 * F, 6 * F)


def test_what_an_activation_keeps():
    def net(activation):
        return keras.Sequential([
            keras.Input((3,)), keras.layers.Dense(4, activation), keras.layers.Dense(2)
        ])  # fmt: skip

    assert held(net(None)).kept == 4 * F  # the next kernel's input
    assert held(net("tanh")).kept == 4 * F  # its gradient is computed from the same
    assert held(net("relu")).kept == 8 * F
    assert held(net("gelu")).kept == 16 * F
    assert held(net("softplus")).kept == 12 * F  # one that was not measured
    layer = keras.Sequential([
        keras.Input((3,)), keras.layers.Dense(4), keras.layers.ReLU(), keras.layers.Dense(2)
    ])  # fmt: skip
    assert held(layer).kept == 8 * F


def test_a_network_that_is_only_gone_through_keeps_no_inputs_of_kernels():
    through = [[Pass("model", keeps=True)]]

    def net(activation):
        return keras.Sequential([
            keras.Input((50,)), keras.layers.Dense(4, activation), keras.layers.Dense(2)
        ])  # fmt: skip

    # what the relu takes is kept; its worst moment has the gradient behind it and in front of it,
    # too. Nobody asks for the gradient of the 50 inputs
    assert held(net("relu"), stages=through) == (4 * F, 8 * F)
    assert held(net("tanh"), stages=through).kept == 4 * F  # its result
    assert held(net(None), stages=through).kept == 0


def test_light_layers_are_written_where_they_are_not_fused():
    model = keras.Sequential([
        keras.Input((2,)),
        keras.layers.RepeatVector(8),
        keras.layers.Cropping1D(3),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ])  # fmt: skip
    # the dense layer reads 4 numbers, which are kept; to make them, 16 are written
    assert held(model, Engine(fuses=False)) == (4 * F, (16 + 4) * F)
    assert held(model, Engine(fuses=True)) == (4 * F, (4 + 1) * F)


def conv_net():
    """u8[6, 6, 2] -> 5 x 5 x 3 -> 2."""
    return keras.Sequential([
        keras.Input((2, 6, 6), dtype="uint8"),
        keras.layers.Permute((2, 3, 1)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(3, 2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    ])  # fmt: skip


def test_convolutions_by_hand():
    image, maps = 6 * 6 * 2 * F, 5 * 5 * 3 * F
    patches = 5 * 5 * (2 * 2 * 2) * F
    alone = Engine(activations={"relu": 0}, fuses=False)
    # the scaled image and the maps are kept. The target's pass has both once more, and the maps
    # before the relu; the way back has less: without the maps, which the dense layer was the last
    # to need, but the relu's result, and its gradient in front of it and behind it, 2 maps more.
    assert held(conv_net(), alone) == (image + maps, image + 2 * maps)
    unfolding = Engine(activations={"relu": 1}, unfolds=True)
    assert held(conv_net(), unfolding) == (image + 2 * maps, image + 2 * maps + patches)


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("strides", [1, 2])
def test_the_gradients_of_convolutions_by_hand(activation, strides):
    model = keras.Sequential([
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(2, 1),
        keras.layers.Conv2D(1, 3, strides, padding="same", activation=activation),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ])  # fmt: skip
    places = 36 // strides**2
    wide, narrow, relu = 36 * 2 * F, places * F, activation == "relu"
    # a place reads 3 x 3 x 2 numbers for the weights' gradient, and 3 x 3 x 1 for the input's,
    # which with strides are not written out
    patches = places * 18 * F + (36 * 9 * F if strides == 1 else 0)
    found = held(model, Engine(unfolds=True, activations={"relu": 1}), [[LEARNING]])
    assert found.kept == wide + narrow + narrow * relu
    # Of that only `wide` is left when the dense layer and the relu are done. The gradients of the
    # convolution's output and input are there, the patches, and output's gradient and input turned
    # round.
    assert sum(found) == wide + (narrow + wide) + patches + (narrow + wide)


def test_what_a_pooling_takes_is_kept():
    def net(pooling):
        return keras.Sequential([
            keras.Input((6, 6, 1)), keras.layers.Conv2D(2, 1), pooling(2), keras.layers.Flatten(),
            keras.layers.Dense(1),
        ])  # fmt: skip

    apart = Engine()
    difference = (
        held(net(keras.layers.MaxPooling2D), apart).kept
        - held(net(keras.layers.AveragePooling2D), apart).kept
    )
    assert difference == 6 * 6 * 2 * F  # which number was the largest is found there


@pytest.mark.parametrize("layer", [keras.layers.LSTM, keras.layers.GRU])
def test_each_time_step_of_a_recurrent_layer_keeps_its_arrays(layer):
    model = keras.Sequential([keras.Input((7, 3)), layer(5), keras.layers.Dense(2)])
    engine_ = Engine(recurrent={layer.__name__: 6})
    assert held(model, engine_).kept == 7 * 6 * 5 * F + 5 * F  # and the dense layer's input


def test_networks_that_overlap_hold_what_each_keeps():
    agent = ddpg()
    graphs = {name: graph.trace(model) for name, model in agent.networks().items()}
    # the critic's relu keeps 4 and 4 floats, and the joined input of 5; the actor's 8 and 8; the
    # critic that the actor learns through keeps only what its relu took, 4
    apart = Engine(activations={"relu": 1})
    rows = passes.rows(agent.passes(), graphs, Engine(**{**vars(apart), "overlaps": True}))
    assert rows == ((13 + 20) * F, 0)
    # apart, the critic's step has more: its 13, and beside them the target actor's input of 3, and
    # its 8 hidden numbers before and after the relu
    assert passes.rows(agent.passes(), graphs, apart) == (13 * F, (3 + 8 + 8) * F)


def test_half_precision_counts_as_the_engine_keeps_it():
    policy = keras.mixed_precision.DTypePolicy("mixed_bfloat16")
    model = keras.Sequential([
        keras.Input((3,)),
        keras.layers.Dense(4, "tanh", dtype=policy),
        keras.layers.Dense(2, dtype=policy),
    ])  # fmt: skip
    assert held(model, Engine(activations={"tanh": 0})).kept == 4 * 2
    wide = Engine(activations={"tanh": 0}, half_bytes={"bfloat16": 4})
    assert held(model, wide).kept == 4 * F


@settings(max_examples=5)  # building a model takes longer than planning it
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=4), wider=st.integers(1, 9))
def test_a_wider_layer_never_takes_less(sizes, wider):
    def of(units):
        layers = [keras.layers.Dense(one, "relu") for one in units]
        return sum(held(keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2)])))

    assert of([*sizes[:-1], sizes[-1] + wider]) > of(sizes)


# Graphs -------------------------------------------------------------------------------------------


def names(model):
    return [node.name for node in graph.trace(model).nodes if node.inputs]


def test_nested_and_shared_layers_are_unfolded():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="in")], name="inner")
    shared = keras.layers.Dense(4, name="shared")
    seen = keras.Input((4,))
    x = inner(shared(inner(shared(seen))))
    assert names(keras.Model(seen, x)) == ["shared", "inner/in", "shared", "inner/in"]


def test_branches_come_before_what_joins_them():
    seen = keras.Input((4,))
    first = keras.layers.Dense(3, name="first")(seen)
    second = keras.layers.Dense(3, name="second")(first)
    joined = keras.layers.Add(name="joined")([second, first])
    assert names(keras.Model(seen, joined)) == ["first", "second", "joined"]


def test_operations_and_lambdas_are_nodes():
    seen = keras.Input((4,))
    x = keras.layers.Lambda(lambda t: t * 2, output_shape=(4,), name="twice")(seen)
    value, advantage = ops.split(keras.layers.Dense(3, name="head")(x), [1], axis=-1)
    found = graph.trace(keras.Model(seen, value + advantage))
    assert [tensor.shape for node in found.nodes[-2:] for tensor in found.made(node)] == [
        (1,), (2,), (2,)
    ]  # fmt: skip


def test_a_dueling_head_is_planned():
    assert dqn(enable_dueling_network=True).plan(SEEN).step_bytes > dqn().plan(SEEN).step_bytes


# The agent ----------------------------------------------------------------------------------------


def test_planning_allocates_nothing():
    agent = dqn()
    agent.plan(SEEN)
    assert agent.memory.pool is None
    assert not agent.prepared


def test_an_observation_that_was_seen_serves():
    agent = dqn()
    with pytest.raises(ArgumentError, match=r"no observation was seen yet.*pass plan\(observation"):
        agent.plan()
    agent.forward(SEEN)
    assert agent.plan() == agent.plan(SEEN)


def test_an_agent_with_a_memory_of_the_users_own_has_no_pool():
    plan = dqn(memory=Memory(window_length=1)).plan()
    assert plan.pool_bytes == 0
    assert lines(plan, "update")["batch"] == 5 * 2 * 3 * F  # what the networks take, twice


def test_errors_say_what_is_missing():
    agent = DQNAgent(small(), nb_actions=2, memory=DeviceMemory(10), batch_size=5)
    with pytest.raises(NotCompiled):
        agent.plan(SEEN)
    free = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
    with pytest.raises(ShapeError, match=r"not built.*keras.Input\(shape\)"):
        dqn(free).plan(SEEN)
    seen = keras.Input((None, 3))
    loose = keras.Model(seen, keras.layers.GlobalAveragePooling1D()(keras.layers.Dense(2)(seen)))
    with pytest.raises(ShapeError, match=r"\(None, None, 3\): an axis besides the batch"):
        dqn(loose).plan(SEEN)
    with pytest.raises(ArgumentError, match=r"micro_batch=6 is more than the batch has; pass 5"):
        dqn().plan(SEEN, micro_batch=6)
    with pytest.raises(ArgumentError, match=r"micro_batch=0"):
        dqn().plan(SEEN, micro_batch=0)


def test_a_plan_is_read_beside_its_budget():
    agent = dqn()
    small_, large = agent.plan(SEEN, budget="1MB"), agent.plan(SEEN, budget="2GiB")
    assert not small_.fits
    assert small_.budget_bytes == 10**6
    assert large.fits
    assert "does not fit" in str(small_)
    text = str(large)
    assert "batch of 5" in text
    for what in (
        "model: weights",
        "observation",
        "activations kept",
        "at most at once",
        "2.00 GiB",
    ):
        assert what in text
    assert json.loads(json.dumps(large.as_dict()))["peak_bytes"] == large.peak_bytes
    assert "5, 2 at a time" in str(agent.plan(SEEN, micro_batch=2))


def test_a_batch_that_is_left_open_has_to_be_named():
    agent = dqn(batch_size="auto")
    for ask in (lambda: agent.plan(SEEN), agent.report):
        with pytest.raises(ArgumentError, match="chosen at the first observation"):
            ask()
    assert agent.plan(SEEN, batch_size=4).batch_size == 4
    assert agent.report(batch_size=4).batch_size == 4

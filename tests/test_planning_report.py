"""Parameters and FLOPs of layers, against sums by hand and against XLA's own account."""

import json

import keras
import numpy as np
import pytest
from keras import layers as kl
from keras import ops

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent
from kerasrl_gpu.planning import flops, graph
from kerasrl_gpu.planning.flops import Flops
from kerasrl_gpu.updates.batches import Batch


def dense_net(hidden=8, activation="relu"):
    return keras.Sequential([
        keras.Input((1, 3)), kl.Flatten(), kl.Dense(hidden, activation), kl.Dense(2)
    ])  # fmt: skip


def dqn(model, seen, batch_size=4, **arguments):
    memory = DeviceMemory(batch_size + 10, window_length=arguments.pop("window", 1))
    agent = DQNAgent(
        model, nb_actions=2, memory=memory, batch_size=batch_size, target_model_update=0.01,
        **arguments,
    )  # fmt: skip
    agent.compile("sgd")
    agent.prepare(seen)
    return agent


SEEN = np.zeros(3, np.float32)

# One layer ----------------------------------------------------------------------------------------

LAYERS = {
    # 2 * in * out, and a bias and a relu for each output
    "dense": (kl.Dense(5, "relu"), (3,), Flops(2 * 3 * 5, 10)),
    "dense without bias": (kl.Dense(5, use_bias=False), (3,), Flops(2 * 3 * 5, 0)),
    "dense over places": (kl.Dense(5), (7, 3), Flops(2 * 3 * 35, 35)),
    # 10 wide, a window of 3 every 2: 4 places
    "conv1d": (kl.Conv1D(5, 3, strides=2), (10, 2), Flops(4 * 2 * 3 * 2 * 5, 20)),
    # 8 x 6, 3 x 2, same, every 2: 4 x 3 places
    "conv2d": (
        kl.Conv2D(5, (3, 2), strides=2, padding="same"), (8, 6, 2), Flops(12 * 2 * 12 * 5, 60),
    ),
    # each of 2 groups sees 2 of 4 channels and makes 3 of 6: half of 2 * 4 * 6
    "groups": (kl.Conv2D(6, 1, groups=2), (2, 2, 4), Flops(4 * 2 * 2 * 6, 24)),
    "conv3d": (kl.Conv3D(3, 2), (3, 3, 3, 2), Flops(8 * 2 * 16 * 3, 24)),
    # 3 x 3 places, 4 channels with 2 filters each of 4 numbers
    "depthwise": (
        kl.DepthwiseConv2D(2, depth_multiplier=2), (4, 4, 4), Flops(9 * 2 * 8 * 4, 72),
    ),
    # the same, and then 8 channels to 5
    "separable": (
        kl.SeparableConv2D(5, 2, depth_multiplier=2), (4, 4, 4),
        Flops(9 * 2 * 8 * 4 + 9 * 2 * 8 * 5, 45),
    ),
    # each of 4 x 4 x 3 numbers goes into 2 x 2 places of 5 filters
    "transposed": (kl.Conv2DTranspose(5, 2, strides=2), (4, 4, 3), Flops(2 * 48 * 4 * 5, 320)),
    # 6 steps, 4 gates of 5 units that see 3 numbers and 5 states
    "lstm": (kl.LSTM(5), (6, 3), Flops(2 * 6 * 20 * 8, 10)),
    "gru": (kl.GRU(5), (6, 3), Flops(2 * 6 * 15 * 8, 10)),
    "max": (kl.MaxPooling2D(2), (4, 4, 3), Flops(0, 4 * 12)),
    "global": (kl.GlobalAveragePooling2D(), (4, 4, 3), Flops(0, 48)),
    "batch": (kl.BatchNormalization(), (7,), Flops(0, 14)),
    "layer": (kl.LayerNormalization(), (7,), Flops(0, 56)),
    "scaling": (kl.Rescaling(0.5), (7,), Flops(0, 7)),
    "relu": (kl.ReLU(), (7,), Flops(0, 7)),
    "flatten": (kl.Flatten(), (7, 2), Flops(0, 0)),
    "permute": (kl.Permute((2, 1)), (7, 2), Flops(0, 0)),
    "attention": (kl.MultiHeadAttention(1, 2), (7, 2), None),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_by_hand(name):
    layer, shape, wanted = LAYERS[name]
    seen = keras.Input(shape)
    made = layer(seen, seen) if isinstance(layer, kl.MultiHeadAttention) else layer(seen)
    found = graph.trace(keras.Model(seen, made))
    assert flops.forward(found, found.nodes[-1]) == wanted


def test_merges_and_operations_count_one_a_number():
    one, two = keras.Input((4,)), keras.Input((4,))
    found = graph.trace(keras.Model([one, two], ops.tanh(kl.Add()([one, two]))))
    assert [flops.forward(found, node) for node in found.nodes[-2:]] == [Flops(0, 4), Flops(0, 4)]


# Whole updates ------------------------------------------------------------------------------------


def test_an_update_of_a_dqn_by_hand():
    report = dqn(dense_net(), SEEN).report()
    first, second = report.layers[1:]
    assert (first.parameters, second.parameters) == (3 * 8 + 8, 8 * 2 + 2)
    assert (first.output_bytes, second.output_bytes) == (32, 8)
    # kernel 48; bias and relu 16
    assert first.acting_flops == 48 + 16
    # the target's pass, the way there, the weights' gradient; nothing in front of it learns
    assert first.update_flops == 3 * 48 + 3 * 16
    # kernel 32, bias 2; four times, because the hidden layer wants a gradient, too
    assert second.update_flops == 4 * 32 + 3 * 2
    assert report.update_flops == 4 * (192 + 134)
    assert report.parameters == 50
    double = dqn(dense_net(), SEEN, enable_double_dqn=True).report()
    assert double.update_flops - report.update_flops == 4 * report.acting_flops


def test_an_update_of_a_ddpg_by_hand():
    seen, action = keras.Input((1, 3)), keras.Input((2,))
    flat = kl.Flatten()(seen)
    actor = keras.Model(seen, kl.Dense(2, use_bias=False)(flat))
    critic = keras.Model(
        [action, seen], kl.Dense(1, use_bias=False)(kl.Concatenate()([action, flat]))
    )
    agent = DDPGAgent(2, actor, critic, action, DeviceMemory(20), batch_size=4)
    agent.compile("sgd")
    of = {one.network: one for one in agent.report().layers if one.kind == "Dense"}
    # actor, kernel 12: the target's pass; then there, and its weights' gradient
    assert (of["actor"].acting_flops, of["actor"].update_flops) == (12, 3 * 12)
    # critic, kernel 10: the target's pass; there and its gradient; there and the action's gradient
    assert (of["critic"].acting_flops, of["critic"].update_flops) == (0, 5 * 10)


def test_a_shared_layer_is_held_once_and_run_twice():
    shared, seen = kl.Dense(3, use_bias=False), keras.Input((3,))
    model = keras.Model(seen, kl.Dense(2)(shared(shared(seen))))
    first, second, _ = [one for one in dqn(model, SEEN).report().layers if one.kind == "Dense"]
    assert (first.parameters, second.parameters) == (9, 0)
    assert first.acting_flops == second.acting_flops == 18


def test_what_is_not_counted_is_named():
    seen = keras.Input((1, 3))
    x = kl.Flatten()(kl.MultiHeadAttention(1, 2, name="look")(seen, seen))
    report = dqn(keras.Model(seen, kl.Dense(2)(x)), SEEN).report()
    assert report.not_counted == ["model/look (MultiHeadAttention)"]
    assert "FLOPs not counted: model/look (MultiHeadAttention)." in str(report)


def test_a_report_is_read():
    report = dqn(dense_net(), SEEN).report()
    text = str(report)
    for what in ("batch of 4", "(Dense)", "FLOPs acting", "FLOPs an update", "1.30 k"):
        assert what in text
    assert json.loads(json.dumps(report.as_dict()))["update_flops"] == 1304


# Against XLA's account ----------------------------------------------------------------------------


def nature():
    return keras.Sequential([
        keras.Input((4, 84, 84), dtype="uint8"),
        kl.Permute((2, 3, 1)),
        kl.Rescaling(1 / 255),
        kl.Conv2D(32, 8, strides=4, activation="relu"),
        kl.Conv2D(64, 4, strides=2, activation="relu"),
        kl.Conv2D(64, 3, activation="relu"),
        kl.Flatten(),
        kl.Dense(512, activation="relu"),
        kl.Dense(2),
    ])  # fmt: skip


def deep():
    return keras.Sequential([
        keras.Input((1, 3)), kl.Flatten(), kl.Dense(128, "relu"), kl.Dense(128, "relu"), kl.Dense(2)
    ])  # fmt: skip


CASES = {
    "dense": (deep, SEEN, 1, 512),
    "nature": (nature, np.zeros((84, 84), np.uint8), 4, 64),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("double", [False, True])
def test_xla_counts_the_same(name, double, backend):
    if backend != "jax":
        pytest.skip("only JAX tells what XLA counts")
    import jax

    make, seen, window, batch_size = CASES[name]
    agent = dqn(make(), seen, batch_size, window=window, enable_double_dqn=double)
    learn = agent.trainer.learner._update(("model",))
    shape = (batch_size, window, *seen.shape)
    observed = jax.ShapeDtypeStruct(shape, seen.dtype)
    number = jax.ShapeDtypeStruct((batch_size,), "float32")
    batch = {
        "observation": observed, "next_observation": observed, "reward": number,
        "discount": number, "action": jax.ShapeDtypeStruct((batch_size,), "uint8"),
    }  # fmt: skip
    whole = lambda state, batch: learn(state, Batch.of(batch, batch_size))  # noqa: E731
    counted = jax.jit(whole).lower(agent.state, batch).compile().cost_analysis()["flops"]
    assert agent.report().update_flops == pytest.approx(counted, rel=0.03)

"""Who holds the newest weights: the state or the user's Keras objects."""

import keras
import numpy as np
import pytest

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.mirror import Mirror, with_weights
from kerasrl_gpu.state import Weights

NAMES = ("one", "two")


def model(start):
    """One weight, and the statistics of one input: mean 0 and variance 1."""
    kernel = keras.initializers.Constant(start)
    return keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.BatchNormalization(center=False, scale=False),
            keras.layers.Dense(1, use_bias=False, kernel_initializer=kernel),
        ]
    )


def on_host(leaves):
    return [float(np.reshape(engine.to_host(leaf), ())) for leaf in leaves]


def numbers(weights):
    """[weight, mean, variance] of a network's Weights."""
    return on_host([*weights.trainable, *weights.non_trainable])


def held(keras_model):
    """The same of the Keras model."""
    variables = [*keras_model.trainable_variables, *keras_model.non_trainable_variables]
    return [float(keras.ops.convert_to_numpy(variable).reshape(())) for variable in variables]


class Pair:
    """Two models that learn, "one" with a target, and what stands for training."""

    def __init__(self):
        self.models = {"one": model(10), "two": model(20)}
        self.optimizers = {name: keras.optimizers.SGD(0.5, momentum=0.9) for name in NAMES}
        self.mirror = Mirror(self.models, ("one",), self.optimizers)
        self.state = self.mirror.start()
        self._train = engine.compile_learn(_add_one)

    def train(self):
        """Add 1 to all of "one" and "two", to nothing else; consumes the state."""
        self.state, _ = self._train(self.state, {"by": np.float32(1)})

    @property
    def traces(self):
        return self._train.traces

    def online(self, name):
        return numbers(self.state.online[name])

    def target(self):
        return numbers(self.state.target["one"])


def _add_one(state, batch):
    online = {
        name: Weights(*([leaf + batch["by"] for leaf in leaves] for leaves in weights))
        for name, weights in state.online.items()
    }
    return state._replace(online=online), batch["by"][None]


def test_the_first_state_is_what_the_models_hold():
    pair = Pair()
    assert pair.online("one") == pair.target() == [10, 0, 1]
    assert pair.online("two") == [20, 0, 1]
    assert list(pair.state.target) == ["one"]
    for name in NAMES:
        slots = pair.state.slots[name]
        assert len(slots) == len(pair.optimizers[name].variables) == 3
        assert on_host(slots) == [0, 0.5, 0]  # updates, rate, momentum


def test_publish_tells_the_models_and_training_goes_on():
    pair = Pair()
    pair.train()
    pair.mirror.publish(pair.state)
    assert held(pair.models["one"]) == pair.online("one") == [11, 1, 2]
    assert held(pair.models["two"]) == pair.online("two") == [21, 1, 2]
    pair.train()  # consumes the state; what was published is a copy, or TensorFlow's one variable
    assert held(pair.models["one"]) in ([11, 1, 2], [12, 2, 3])
    assert pair.online("one") == [12, 2, 3]
    pair.mirror.publish(pair.state)
    assert held(pair.models["one"]) == [12, 2, 3]
    assert pair.target() == [10, 0, 1]


def test_publish_tells_the_optimizers():
    pair = Pair()

    def move(state, batch):
        slots = pair.mirror.optimizers["one"]
        moved = slots.apply([batch["g"]], state.online["one"].trainable, state.slots["one"])
        one = state.online["one"]._replace(trainable=moved[0])
        state = state._replace(
            online={**state.online, "one": one}, slots={**state.slots, "one": moved[1]}
        )
        return state, batch["g"][0]

    gradient = np.full((1, 1), 2, np.float32)
    pair.state, _ = engine.compile_learn(move)(pair.state, {"g": gradient})
    pair.mirror.publish(pair.state)
    # one update; momentum -0.5 * 2 = -1, and the weight 10 - 1
    assert on_host(v.value for v in pair.optimizers["one"].variables) == [1, 0.5, -1]
    assert held(pair.models["one"]) == [9, 0, 1]
    assert on_host(v.value for v in pair.optimizers["two"].variables) == [0, 0.5, 0]


def test_publish_overwrites_nothing_that_the_models_have_already():
    pair = Pair()
    pair.train()
    pair.mirror.publish(pair.state)
    pair.models["one"].layers[1].kernel.assign([[7]])  # set by the user
    pair.mirror.publish(pair.state)
    assert held(pair.models["one"]) == [7, 1, 2]


def test_take_leaves_alone_what_nobody_changed():
    pair = Pair()
    assert pair.mirror.take(pair.state) is pair.state
    pair.train()
    pair.mirror.publish(pair.state)
    assert pair.mirror.take(pair.state) is pair.state


def test_take_takes_a_changed_model_and_keeps_the_other_ones_training():
    pair = Pair()
    pair.train()
    pair.mirror.publish(pair.state)
    pair.train()  # the state is ahead of the models: 12 and 22
    pair.models["one"].layers[1].kernel.assign([[7]])
    pair.state = pair.mirror.take(pair.state)
    assert pair.online("one")[0] == 7
    assert pair.online("two") == [22, 2, 3]
    assert pair.target() == [10, 0, 1]
    assert pair.mirror.take(pair.state) is pair.state  # once is enough
    pair.mirror.publish(pair.state)
    assert held(pair.models["one"])[0] == 7
    assert held(pair.models["two"]) == [22, 2, 3]


def test_take_takes_statistics_too_and_they_are_copies():
    pair = Pair()
    pair.models["two"].layers[0].moving_mean.assign([5])
    pair.state = pair.mirror.take(pair.state)
    assert pair.online("two") == [20, 5, 1]
    pair.train()
    assert pair.online("two") == [21, 6, 2]
    assert held(pair.models["two"])[0] in (20, 21)  # still there after its copy was consumed


def test_refresh_takes_a_learning_rate_that_was_set():
    pair = Pair()
    assert not pair.mirror.rates_changed()
    pair.optimizers["two"].learning_rate = 0.25
    # on TensorFlow the slot is the variable that was set
    assert pair.mirror.rates_changed() == (engine.NAME == "jax")
    pair.state = pair.mirror.refresh(pair.state)
    assert [on_host(pair.state.slots[name])[1] for name in NAMES] == [0.5, 0.25]
    assert not pair.mirror.rates_changed()
    pair.train()
    pair.mirror.publish(pair.state)
    assert float(keras.ops.convert_to_numpy(pair.optimizers["two"].learning_rate)) == 0.25


def test_copied_targets_equal_their_networks_and_go_their_own_way():
    pair = Pair()
    pair.train()
    pair.state = pair.mirror.copy_targets(pair.state)
    assert pair.target() == pair.online("one") == [11, 1, 2]
    pair.train()
    assert pair.online("one") == [12, 2, 3]
    assert pair.target() == [11, 1, 2]


def test_copying_targets_costs_no_trace():
    pair = Pair()
    for _ in range(5):
        pair.train()
        pair.state = pair.mirror.copy_targets(pair.state)
    assert pair.target() == [15, 5, 6]
    assert pair.traces == 1


def test_with_weights_is_a_model_of_its_own():
    original = model(10)
    weights = Weights([np.float32([[3]])], [np.float32([4]), np.float32([5])])
    copy = with_weights(original, Weights(*(_on_device(leaves) for leaves in weights)))
    assert held(copy) == [3, 4, 5]
    assert held(original) == [10, 0, 1]
    # (x - 4) / sqrt(5 + 0.001) * 3 for x = 9
    got = keras.ops.convert_to_numpy(copy(np.float32([[9]])))
    np.testing.assert_allclose(got, [[15 / np.sqrt(5.001)]], rtol=1e-6)


def _on_device(leaves):
    return engine.adopt([keras.Variable(leaf) for leaf in leaves])


def test_networks_that_share_variables_are_refused():
    shared = model(10)
    with pytest.raises(ArgumentError, match=r"the one and the two share the variable.*clone_model"):
        Mirror({"one": shared, "two": shared}, (), {})


def test_with_weights_shares_the_function_of_a_lambda():
    original = keras.Sequential(
        [keras.Input((1,)), keras.layers.Lambda(lambda inputs: 3 * inputs), keras.layers.Dense(1)]
    )
    weights = Weights(_on_device([np.float32([[2]]), np.float32([1])]), [])
    copy = with_weights(original, weights)
    assert float(copy(np.float32([[5]]))[0, 0]) == 2 * 3 * 5 + 1
    assert copy.layers[-1] is not original.layers[-1]

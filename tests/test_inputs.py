"""What a model takes, what a memory gives, and the sentence where they differ."""

import warnings

import keras
import numpy as np
import pytest

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent
from kerasrl_gpu.errors import ArgumentError, ShapeError
from kerasrl_gpu.inputs import Inputs, build_on

Dense = keras.layers.Dense


def dqn(model, **options):
    return DQNAgent(model=model, nb_actions=2, memory=DeviceMemory(40), **options)


def test_a_fixed_batch_size_is_named():
    model = keras.Sequential([keras.Input((4,), batch_size=8), Dense(2)])
    with pytest.raises(ShapeError, match=r"fixed batch size. Leave batch_size out"):
        dqn(model)


def test_a_sequential_without_input_takes_one_array():
    with pytest.raises(ShapeError, match="one array; the memory gives 2"):
        build_on(keras.Sequential([Dense(2)]), {"a": np.zeros((1, 1)), "b": np.zeros((1, 1))})


def test_an_input_of_scalars_for_a_window_is_told_the_shape():
    model = keras.Sequential([keras.Input(()), keras.layers.Reshape((1,)), Dense(2)])
    with pytest.raises(ShapeError, match=r"keras.Input\(\(3,\)\)"):
        Inputs(model, np.zeros((1, 3), np.float32), window=3)


def test_a_critic_has_to_be_built():
    actor = keras.Sequential([keras.Input((1, 3)), keras.layers.Flatten(), Dense(1)])
    with pytest.raises(ArgumentError, match="the critic is not built"):
        DDPGAgent(
            nb_actions=1,
            actor=actor,
            critic=keras.Sequential([Dense(1)]),
            critic_action_input=keras.Input((1,)),
            memory=DeviceMemory(40),
        )


def test_a_model_of_one_layer_gets_a_dueling_head():
    agent = dqn(keras.Sequential([keras.Input((4,)), Dense(2)]), enable_dueling_network=True)
    assert agent.model.output_shape == (None, 2)
    assert [layer.units for layer in agent.model.layers if isinstance(layer, Dense)] == [3]


@pytest.mark.parametrize("nb_actions, dtype", [(2, "uint8"), (256, "uint8"), (257, "uint16")])
def test_actions_take_the_smallest_type_that_holds_them(nb_actions, dtype):
    model = keras.Sequential([keras.Input((4,)), Dense(nb_actions)])
    agent = DQNAgent(model=model, nb_actions=nb_actions, memory=DeviceMemory(40))
    agent.memory.allocate(np.zeros(4, np.float32))
    assert agent.memory.layout.action.dtype == dtype


@pytest.mark.parametrize("window", [1, 2])
def test_a_model_with_a_dict_of_inputs_gets_a_dict(window):
    shapes = {"z": (window, 2), "a": (window, 1)}
    inputs = {name: keras.Input(shape, name=name) for name, shape in shapes.items()}
    flat = [keras.layers.Flatten()(inputs[name]) for name in ("z", "a")]
    model = keras.Model(inputs, Dense(2)(keras.layers.Concatenate()(flat)))
    seen = {"a": np.ones((1, window, 1), np.float32), "z": np.zeros((1, window, 2), np.float32)}
    given = Inputs(model, seen, window)(seen)
    assert {name: tuple(array.shape) for name, array in given.items()} == {
        name: (1, *shape) for name, shape in shapes.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(given)

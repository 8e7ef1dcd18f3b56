"""Output layers put on a model by an agent."""

from __future__ import annotations

import keras
from keras import ops

from kerasrl_gpu.errors import ArgumentError

DUELING_TYPES = ("avg", "max", "naive")


def dueling(model, dueling_type: str):
    """`model` with its last layer replaced by a value and an advantage for each action.

        avg    Q = V + A - mean A        max    Q = V + A - max A        naive    Q = V + A

    Stock layers and keras.ops only, so that it saves to .keras and loads without this package.

    Source: arXiv:1511.06581, equations 7 to 9.
    """
    if dueling_type not in DUELING_TYPES:
        raise ArgumentError(f"dueling_type={dueling_type!r}; pass one of {DUELING_TYPES}.")
    nb_actions = model.outputs[0].shape[-1]
    both = keras.layers.Dense(nb_actions + 1, activation="linear")(model.layers[-1].input)
    value, advantage = ops.split(both, [1], axis=-1)
    if dueling_type == "avg":
        advantage = advantage - ops.mean(advantage, axis=-1, keepdims=True)
    elif dueling_type == "max":
        advantage = advantage - ops.max(advantage, axis=-1, keepdims=True)
    inputs = model.inputs[0] if len(model.inputs) == 1 else model.inputs
    return keras.Model(inputs, value + advantage)

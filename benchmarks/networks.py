"""The networks that are measured."""

import keras


def mlp(inputs, hidden, outputs, activation=None):
    """Dense layers of `hidden` units over a tensor, then `outputs` of them."""
    x = inputs
    for units in hidden:
        x = keras.layers.Dense(units, activation="relu")(x)
    return keras.layers.Dense(outputs, activation=activation)(x)

"""The networks that are measured."""

import keras


def mlp(inputs, hidden, outputs, activation=None):
    """Dense layers of `hidden` units over a tensor, then `outputs` of them."""
    x = inputs
    for units in hidden:
        x = keras.layers.Dense(units, activation="relu")(x)
    return keras.layers.Dense(outputs, activation=activation)(x)


def nature_cnn(nb_actions, window=4):
    """The network of doi:10.1038/nature14236 for frames u8[B, window, 84, 84]."""
    conv = keras.layers.Conv2D
    return keras.Sequential(
        [
            keras.Input((window, 84, 84), dtype="uint8"),
            keras.layers.Permute((2, 3, 1)),  # from the window first, as in keras-rl, to last
            keras.layers.Rescaling(1 / 255),
            conv(32, 8, strides=4, activation="relu"),
            conv(64, 4, strides=2, activation="relu"),
            conv(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(nb_actions),
        ]
    )

"""The networks that the field's papers use, in the shapes that the agents take."""

from __future__ import annotations

import keras
import numpy as np

from kerasrl_gpu.errors import ArgumentError, check_count


def q_network(observation_shape, nb_actions: int, *, window_length: int = 1, hidden=(64, 64)):
    """Dense layers from a window of observations to a value for each action.

    Args:
        observation_shape: of one observation.
        hidden: units of each layer in between.

    Returns:
        keras.Model: [B, window, *shape] -> f32[B, A].

    Raises:
        ArgumentError: a hidden layer of no units.
    """
    seen = keras.Input((window_length, *observation_shape))
    return keras.Model(seen, keras.layers.Dense(nb_actions)(_dense(_flat(seen), hidden)))


def nature_cnn(frame_shape, nb_actions: int, *, window_length: int = 4):
    """The convolutional network of doi:10.1038/nature14236, scaling included.

    Args:
        frame_shape: (height, width) of one gray frame u8, 36 by 36 at least.

    Returns:
        keras.Model: u8[B, window, height, width] -> f32[B, A].

    Raises:
        ArgumentError: smaller frames, or frames of colour.
    """
    if len(frame_shape) != 2 or min(frame_shape) < 36:
        raise ArgumentError(
            f"frames of shape {tuple(frame_shape)}; pass (height, width) of gray ones of 36 by 36 "
            "at least: gymnasium.wrappers.AtariPreprocessing makes such."
        )
    conv = keras.layers.Conv2D
    seen = keras.Input((window_length, *frame_shape), dtype="uint8")
    x = keras.layers.Permute((2, 3, 1))(seen)  # from the window first, as in keras-rl, to last
    x = keras.layers.Rescaling(1 / 255)(x)
    x = conv(32, 8, strides=4, activation="relu")(x)
    x = conv(64, 4, strides=2, activation="relu")(x)
    x = conv(64, 3, activation="relu")(x)
    x = keras.layers.Dense(512, activation="relu")(keras.layers.Flatten()(x))
    return keras.Model(seen, keras.layers.Dense(nb_actions)(x))


def actor_critic(observation_shape, low, high, *, window_length: int = 1, hidden=(256, 256)):
    """An actor and a critic of dense layers, for actions between two bounds.

    Args:
        low, high: f32[A], the least and the largest action; finite.
        hidden: units of each layer in between, of either network.

    Returns:
        (actor: [B, window, *shape] -> f32[B, A]; critic: [action, observation] -> f32[B, 1]; the
        critic's action input).

    Raises:
        ArgumentError: bounds that are not finite, or a hidden layer of no units.
    """
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ArgumentError(f"actions between {low} and {high}; pass finite bounds.")
    shape = (window_length, *observation_shape)
    seen = keras.Input(shape)
    squashed = keras.layers.Dense(low.size, activation="tanh")(_dense(_flat(seen), hidden))
    scaled = squashed * ((high - low) / 2) + (high + low) / 2
    actor = keras.Model(seen, scaled)
    action, seen = keras.Input((low.size,)), keras.Input(shape)
    both = keras.layers.Concatenate()([action, _flat(seen)])
    value = keras.layers.Dense(1)(_dense(both, hidden))
    return actor, keras.Model([action, seen], value), action


def _flat(seen):
    return keras.layers.Flatten()(seen)


def _dense(x, hidden):
    for units in hidden:
        x = keras.layers.Dense(check_count("hidden", units, 1), activation="relu")(x)
    return x

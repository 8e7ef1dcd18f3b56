"""Optimizers as `compile` takes them: by name, as objects, one for two networks, used before."""

from __future__ import annotations

import weakref

import keras

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError

_IN_USE = weakref.WeakSet()  # optimizers that an agent has, also while they wait to be built


def fresh(optimizer, model):
    """A Keras optimizer without slots: by name, or as given; one that was used is made anew.

    One that was handed to another agent counts as used, built or not. A model that computes in
    float16 gets a LossScaleOptimizer around it, as Keras' own `compile` does.

    Raises:
        ArgumentError: nothing that Keras takes for an optimizer.
    """
    try:
        found = keras.optimizers.get(optimizer)
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"optimizer={optimizer!r} is no Keras optimizer: {error}") from None
    if not isinstance(found, keras.optimizers.Optimizer):
        raise ArgumentError(f"optimizer={optimizer!r} is no Keras optimizer; pass 'adam', say.")
    if found.built or found in _IN_USE:
        with engine.serializing():
            found = type(found).from_config(found.get_config())
    _IN_USE.add(found)
    policies = {layer.dtype_policy.name for layer in (model, *model.layers)}
    scales = isinstance(found, keras.optimizers.LossScaleOptimizer)
    if "mixed_float16" in policies and not scales:
        return keras.optimizers.LossScaleOptimizer(found)
    return found


def fresh_pair(optimizer, first, second) -> tuple:
    """An optimizer for each of two models, from a pair or from one for both.

    Raises:
        ArgumentError: neither one nor two.
    """
    pair = optimizer if isinstance(optimizer, (list, tuple)) else (optimizer, optimizer)
    if len(pair) != 2:
        raise ArgumentError(f"{len(pair)} optimizers; pass one, or a pair (actor's, critic's).")
    return fresh(pair[0], first), fresh(pair[1], second)

"""Whether a batch may be computed a few rows at a time: what a row says must be its own affair."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops, tree

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.state import Network, Weights

ROWS = 4  # the second is the same in both batches; reversed, it changes places with another
_ALIKE = 1e-6  # of the largest number said; rows that are their own affair are equal to the bit
_SEED = "seed_generator_state"  # as Keras names the variable of a layer that draws


def check(networks: dict, rows, process, nb_actions: int) -> bool:
    """See that no row of a batch depends on the others, by trying it.

    Every network looks at a row among others and among its own copies, with weights drawn anew: it
    has to say the same of that row, and nothing but its random layers may remember a pass.

    Args:
        networks: name -> `state.Network`.
        rows: random number generator -> ROWS observations, an array or a dict of them; no
            number of the first is that of the second.
        process: rows -> what the networks see.
        nb_actions: numbers of an action, for those that take one.

    Returns:
        whether a layer draws at random. Then a batch that is split draws other numbers: it
        learns the same in distribution, but not exactly.

    Raises:
        ArgumentError: batch normalisation, or another layer, that looks at a batch as a whole.
    """
    draws = {name: _check(name, net, rows, process, nb_actions) for name, net in networks.items()}
    return any(draws.values())


def _check(name: str, net: Network, rows, process, nb_actions: int) -> bool:
    random = np.random.default_rng(0)
    weights = Weights(
        [_drawn(variable, random) for variable in net.model.trainable_variables],
        [ops.convert_to_tensor(v.value) for v in net.model.non_trainable_variables],
    )
    batch = rows(random)
    copies = tree.map_structure(lambda array: np.stack([array[1]] * ROWS), batch)
    batch, other = process(batch), process(copies)
    action = None
    if net.takes_action:
        action = np.ones((ROWS, nb_actions), np.float32)
    for training in (True, False):
        outputs, aux = _said(net, weights, batch, training, action)
        others, aux_of_other = _said(net, weights, other, training, action)
        if not (_alike(outputs[1], others[1]) and _alike(aux, aux_of_other)):
            raise ArgumentError(_refusal(name, net.model))
    _, after = net(weights, batch, training=True, action=action)
    changed = [
        variable
        for variable, value in zip(
            net.model.non_trainable_variables, after.non_trainable, strict=True
        )
        if not np.array_equal(engine.to_host(variable.value), engine.to_host(value))
    ]
    if any(variable.name != _SEED for variable in changed):
        raise ArgumentError(_refusal(name, net.model))
    return bool(changed)


def _said(net, weights, seen, training, action):
    outputs, aux = net(weights, seen, training=training, action=action)
    return engine.to_host(outputs), engine.to_host(aux.regularisation)


def _drawn(variable, random):
    """Values for a variable that neither hide what they are multiplied with nor saturate."""
    values = random.normal(size=variable.shape)
    inputs = max(1, values.size // max([1, *variable.shape[-1:]]))
    return ops.cast(values / np.sqrt(inputs), variable.dtype)


def _alike(one, other) -> bool:
    scale = np.max(np.abs(one), initial=1e-6)
    return np.allclose(one, other, rtol=0, atol=_ALIKE * scale, equal_nan=True)


def _refusal(name, model) -> str:
    normalising = [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    which = f"layer {normalising[0]!r} normalises" if normalising else "a layer of it looks at"
    return (
        f"the {name} cannot learn from a batch in parts: {which} a batch as a whole, so the parts "
        "would say something else. Leave micro_batch out, or use LayerNormalization or "
        "GroupNormalization, or freeze the layer (trainable = False)."
    )

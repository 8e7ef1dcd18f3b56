"""What changes while training: copies of Keras variables, and optimizers as pure functions."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import keras
import numpy as np


def adopt(variables) -> list:
    """Own copies of what Keras variables hold; donation deletes what it is given."""
    return [jnp.array(variable.value, copy=True) for variable in variables]


def clone(leaves) -> list:
    """A second set of the same values."""
    return [jnp.array(leaf, copy=True) for leaf in leaves]


def overwrite(target, source) -> list:
    """The leaves that `target` is from now on: the values of `source`."""
    return clone(source)


@contextlib.contextmanager
def borrowed(state):
    """A state to compute with; whatever is done to it, `state` stays what it is."""
    yield jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), state)


def load(leaves, arrays) -> list:
    """The leaves that `leaves` is from now on: the values of host arrays of the same shapes."""
    return [
        jnp.array(np.asarray(array).astype(leaf.dtype))
        for leaf, array in zip(leaves, arrays, strict=True)
    ]


def publish(leaves, variables) -> list:
    """Give Keras variables the values of `leaves`.

    Returns:
        what the variables hold now, object by object: a variable that holds another object later
        was set by somebody else.
    """
    for leaf, variable in zip(leaves, variables, strict=True):
        variable.assign(jnp.array(leaf, copy=True))
    return [variable.value for variable in variables]


class Optimizer:
    """A Keras optimizer as a pure function of gradients, weights and slots.

    Args:
        optimizer: an unbuilt keras.optimizers.Optimizer; stays the user's object.
        variables: the trainable Keras variables, in the order that `apply` gets their values.
    """

    def __init__(self, optimizer, variables):
        self.keras = optimizer
        optimizer.build(variables)
        # as they are now: a schedule that somebody sets takes the learning rate out of Keras' list
        self._variables = optimizer.variables
        # training never changes a learning rate; the user may, on the Keras object
        self._rates = [i for i, v in enumerate(self._variables) if v.name == "learning_rate"]
        self._seen = [self._variables[index]._value for index in self._rates]

    @property
    def slots(self) -> list:
        """Slots as the Keras object holds them: fresh ones, or those of the last `publish`."""
        return adopt(self._variables)

    @property
    def outdated(self) -> bool:
        """Whether somebody set a learning rate on the Keras object since the last `refresh`."""
        # `_value`: `value` asks for scopes that are for layers, 4 us in every step
        return any(
            self._variables[index]._value is not seen
            for index, seen in zip(self._rates, self._seen, strict=True)
        )

    def refresh(self, slots) -> list:
        """`slots` with the learning rates of the Keras object."""
        self._seen = [self._variables[index]._value for index in self._rates]
        slots = list(slots)
        for index, rate in zip(self._rates, self._seen, strict=True):
            slots[index] = jnp.array(rate, copy=True)
        return slots

    def load(self, slots, arrays, rates: bool) -> list:
        """The slots that `slots` is from now on, with these learning rates where `rates`."""
        before, slots = self.refresh(slots), load(slots, arrays)
        for index in () if rates else self._rates:
            slots[index] = before[index]
        publish(slots, self._variables)
        self._seen = [self._variables[index]._value for index in self._rates]
        return slots

    def publish(self, slots) -> None:
        """Give the Keras optimizer's variables the values of `slots`, learning rates apart."""
        kept = [index for index in range(len(slots)) if index not in self._rates]
        publish([slots[index] for index in kept], [self._variables[index] for index in kept])

    def scale(self, loss, slots):
        """The loss times what a LossScaleOptimizer asks for; f32[] in, f32[] out."""
        mapping = list(zip(self.keras.variables, slots, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            return self.keras.scale_loss(loss)

    def apply(self, gradients, trainable, slots) -> tuple[list, list]:
        """(trainable, slots) after one step."""
        return self.keras.stateless_apply(slots, gradients, trainable)


def value_and_grad(function):
    """`function(trainable) -> (loss, aux)` as `(loss, aux), gradients`."""
    return jax.value_and_grad(function, has_aux=True)

"""What changes while training: the variables of Keras' models and optimizers themselves."""

from __future__ import annotations

import contextlib

import numpy as np
import tensorflow as tf


def adopt(variables) -> list:
    """The variables behind Keras variables: the state is what the Keras model holds, not a copy."""
    return [variable.value for variable in variables]


def clone(leaves) -> list:
    """A second set of the same values."""
    return [tf.Variable(leaf, trainable=False) for leaf in leaves]


def overwrite(target, source) -> list:
    """The leaves that `target` is from now on: its own variables, with the values of `source`."""
    for variable, value in zip(target, source, strict=True):
        variable.assign(value)
    return target


@contextlib.contextmanager
def borrowed(state):
    """A state to compute with; whatever is done to it, `state` is afterwards what it was.

    It is the state itself, whose variables compiled calls and optimizers hold; its values are put
    aside meanwhile.
    """
    leaves = tf.nest.flatten(state)
    kept = [tf.identity(leaf) for leaf in leaves]
    try:
        yield state
    finally:
        for leaf, value in zip(leaves, kept, strict=True):
            leaf.assign(value)


def load(leaves, arrays) -> list:
    """The leaves that `leaves` is from now on: the values of host arrays of the same shapes."""
    for variable, array in zip(leaves, arrays, strict=True):
        variable.assign(np.asarray(array).astype(variable.dtype.as_numpy_dtype))
    return leaves


def publish(leaves, variables) -> list:
    """Nothing to do: `adopt` handed out the Keras variables' own storage."""
    return [variable.value for variable in variables]


class Optimizer:
    """A Keras optimizer as a function of gradients, weights and slots.

    Keras refuses `stateless_apply` on TensorFlow, so `apply` assigns the variables it was made
    with and returns them.

    Args:
        optimizer: an unbuilt keras.optimizers.Optimizer; stays the user's object.
        variables: the trainable Keras variables, in the order that `apply` gets their values.
    """

    def __init__(self, optimizer, variables):
        self.keras = optimizer
        self._variables = list(variables)
        optimizer.build(self._variables)

    @property
    def slots(self) -> list:
        """The Keras object's own variables."""
        return adopt(self.keras.variables)

    @property
    def outdated(self) -> bool:
        """Never: a learning rate that somebody sets is set in the variable itself."""
        return False

    def refresh(self, slots) -> list:
        """`slots`, see `outdated`."""
        return slots

    def load(self, slots, arrays, rates: bool) -> list:
        """The slots that `slots` is from now on, with these learning rates where `rates`."""
        held = [variable.numpy() for variable in slots]
        kept = [not rates and one.name == "learning_rate" for one in self.keras.variables]
        chosen = zip(held, arrays, kept, strict=True)
        return load(slots, [mine if keep else theirs for mine, theirs, keep in chosen])

    def publish(self, slots) -> None:
        """Nothing to do: the slots are the Keras optimizer's variables."""

    def scale(self, loss, slots):
        """The loss times what a LossScaleOptimizer asks for; f32[] in, f32[] out."""
        return self.keras.scale_loss(loss)

    def apply(self, gradients, trainable, slots) -> tuple[list, list]:
        """(trainable, slots) after one step: the variables, already assigned."""
        # one kernel a variable; as operations of their own, Adam's dozen each pass over memory
        apply = tf.function(self._apply, autograph=False, jit_compile=True)
        apply(gradients)
        return [variable.value for variable in self._variables], slots

    def _apply(self, gradients):
        self.keras.apply(gradients, self._variables)


def value_and_grad(function):
    """`function(trainable) -> (loss, aux)` as `(loss, aux), gradients`."""

    def with_gradients(trainable):
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            loss, aux = function(trainable)
        zero = tf.UnconnectedGradients.ZERO
        return (loss, aux), tape.gradient(loss, trainable, unconnected_gradients=zero)

    return with_gradients


def snapshot(state):
    """The tensors that the variables hold now; slots stay variables, only `apply` uses them."""
    slots = state.slots
    tensors = tf.nest.map_structure(lambda variable: variable.value(), state._replace(slots=()))
    return tensors._replace(slots=slots)


def store(state, new) -> None:
    for variable, value in zip(tf.nest.flatten(state), tf.nest.flatten(new), strict=True):
        if value is not variable:
            variable.assign(value)

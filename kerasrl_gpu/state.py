"""What training changes, and a Keras model as a pure function of it."""

from __future__ import annotations

from typing import NamedTuple

from keras import ops


class Weights(NamedTuple):
    """The values of one network's variables, each list in the Keras model's order."""

    trainable: list
    non_trainable: list  # BatchNorm statistics, Dropout seeds


class TrainState(NamedTuple):
    """Everything that an update changes. A compiled step consumes it and returns the next one.

    Attributes:
        online: name -> Weights of the networks that learn.
        target: name -> Weights of their slow copies.
        slots: name -> the optimizer's variables: moments, counters, learning rate, loss scale.
    """

    online: dict
    target: dict
    slots: dict


class Aux(NamedTuple):
    """What a pass leaves behind besides its outputs."""

    non_trainable: list
    regularisation: object  # f32[], the sum of the model's own losses


class Network:
    """A built Keras model as a function of its weights.

    Args:
        model: the user's keras.Model; only read.
        inputs: (seen, action) -> what the model takes; see `inputs.Inputs`.
    """

    def __init__(self, model, inputs):
        self.model, self._inputs = model, inputs

    @property
    def takes_action(self) -> bool:
        """Whether it takes an action beside what was seen, as a critic does."""
        return self._inputs.takes_action

    def __call__(self, weights: Weights, seen, training: bool, action=None):
        """One pass.

        Args:
            weights: the values to compute with.
            seen: observations [B, k, ...], or a list or dict of them.
            training: as in Keras. A pass with True updates `non_trainable`.
            action: [B, ...], for a critic.

        Returns:
            (outputs f32[B, ...], Aux).
        """
        outputs, non_trainable, losses = self.model.stateless_call(
            weights.trainable,
            weights.non_trainable,
            self._inputs(seen, action),
            training=training,
            return_losses=True,
        )
        total = sum((ops.cast(loss, "float32") for loss in losses), ops.zeros((), "float32"))
        return ops.cast(outputs, "float32"), Aux(list(non_trainable), total)

"""How what the memory gives becomes what a model takes, checked before training."""

from __future__ import annotations

import keras
from keras import ops

from kerasrl_gpu.errors import ArgumentError, ShapeError


class Inputs:
    """From seen observations (and an action) to a model's inputs.

    Args:
        model: a built keras.Model.
        seen: an example with a batch axis: array[B, k, ...], or a list or dict of such.
        window: k, for the error text.
        action_index: which input takes the action; None if none does.

    Raises:
        ShapeError: the model takes something else; says what, what the memory gives, and what to
            change.
    """

    def __init__(self, model, seen, window: int, action_index: int | None = None):
        self._action_index, self.takes_action = action_index, action_index is not None
        takes = [tuple(tensor.shape)[1:] for tensor in model.inputs]
        names = [tensor.name for tensor in model.inputs]
        if action_index is not None:
            takes.pop(action_index), names.pop(action_index)
        gives = self._order(seen, names)
        if len(gives) != len(takes):
            raise ShapeError(
                f"the model takes {len(takes)} observation inputs {takes}, the memory gives "
                f"{len(gives)}: {[array.shape[1:] for array in gives]}. Give the model one input "
                "for each, with its name or in the order of the sorted names."
            )
        self._names = names if isinstance(seen, dict) else None
        # a model made with a dict of inputs wants a dict, in whatever order
        self._keys = None
        if isinstance(getattr(model, "input", None), dict) and action_index is None:
            key_of = {id(tensor): key for key, tensor in model.input.items()}
            self._keys = [key_of[id(tensor)] for tensor in model.inputs]
        self._squeeze = [
            _needs_squeeze(model, take, tuple(give.shape)[1:], window)
            for take, give in zip(takes, gives, strict=True)
        ]

    @staticmethod
    def _order(seen, names):
        """The arrays in the order of the model's inputs: by name if all names match."""
        if isinstance(seen, dict):
            by_name = all(name in seen for name in names)
            return [seen[name] for name in names] if by_name else list(seen.values())
        return list(seen) if isinstance(seen, (list, tuple)) else [seen]

    def __call__(self, seen, action=None):
        """What the model takes: an array, or a list in the order of its inputs."""
        gives = self._order(seen, self._names or [])
        inputs = [
            ops.squeeze(array, axis=1) if squeeze else array
            for array, squeeze in zip(gives, self._squeeze, strict=True)
        ]
        if self._action_index is not None:
            inputs.insert(self._action_index, action)
        if self._keys is not None:
            return dict(zip(self._keys, inputs, strict=True))
        return inputs[0] if len(inputs) == 1 else inputs


def _needs_squeeze(model, takes, gives, window) -> bool:
    if _fits(takes, gives):
        return False
    if window == 1 and _fits(takes, gives[1:]):
        return True
    frame = gives[1:]
    raise ShapeError(
        f"the model {model.name!r} takes observations of shape {takes}, the memory gives {gives}: "
        f"a window of {window} observations of shape {frame}. "
        f"Start the model with keras.Input({gives})"
        + (f" or keras.Input({frame})" if window == 1 else "")
        + (
            f", or pass window_length={takes[0]}."
            if takes and takes[1:] == frame and takes[0]
            else ", followed by keras.layers.Flatten() if it is dense."
        )
    )


def _fits(takes, gives) -> bool:
    return len(takes) == len(gives) and all(
        take is None or take == give for take, give in zip(takes, gives, strict=True)
    )


def check_is_keras(model, what: str) -> None:
    """Raise ArgumentError unless `model` is a functional or sequential model of this Keras."""
    if not isinstance(model, keras.Model):
        raise ArgumentError(
            f"{what} is a {type(model).__module__}.{type(model).__name__}, no model of Keras "
            f"{keras.__version__}. Build it with `import keras` (tf_keras is Keras 2)."
        )
    waits = isinstance(model, keras.Sequential) and not model.built
    if not waits and not hasattr(model, "inputs"):
        raise ArgumentError(
            f"{what} is a subclassed model without known inputs; build a keras.Sequential, or a "
            "functional keras.Model(inputs, outputs) around it."
        )


def action_index(critic, action_input) -> int:
    """Which of the critic's inputs takes the action.

    Raises:
        ArgumentError: none of them is `action_input`.
    """
    if not critic.built:
        raise ArgumentError(
            "the critic is not built; make it as keras.Model([action_input, observation_input], "
            "output)."
        )
    for index, tensor in enumerate(critic.inputs):
        if tensor is action_input:
            return index
    raise ArgumentError(
        f"critic_action_input={action_input!r} is none of the critic's inputs "
        f"{[tensor.name for tensor in critic.inputs]}. Make it with keras.Input, build the critic "
        "as keras.Model([action_input, observation_input], output), and pass the same tensor."
    )


def build_on(model, seen) -> None:
    """Build a Sequential that was given without its input shape."""
    if model.built:
        return
    if not hasattr(seen, "shape"):
        raise ShapeError(
            f"the model {model.name!r} is a Sequential without keras.Input, which takes one array; "
            f"the memory gives {len(seen)}. Build a keras.Model with an input for each."
        )
    model.build((None, *seen.shape[1:]))


def check_output(model, shape: tuple, what: str) -> None:
    """Raise ShapeError unless the model has one output (batch, *shape)."""
    outputs = model.outputs
    if any(output.shape[0] is not None for output in outputs):
        raise ShapeError(
            f"{what} must take any number of states; {model.name!r} has a fixed batch size. Leave "
            "batch_size out of keras.Input."
        )
    came = [tuple(output.shape) for output in outputs]
    if len(outputs) != 1 or came[0][1:] != shape:
        raise ShapeError(
            f"{what} must have one output of shape {(None, *shape)}; {model.name!r} has "
            f"{came[0] if len(came) == 1 else came}. "
            + (
                "Put keras.layers.Flatten() before its last layers: the window axis is still there."
                if len(came) == 1 and len(came[0]) > len(shape) + 1
                else f"End it with keras.layers.Dense({shape[-1]})."
            )
        )

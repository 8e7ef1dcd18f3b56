"""Keras models and optimizers as JSON: written, rebuilt without running foreign code, compared."""

from __future__ import annotations

import json
import warnings

import keras
import numpy as np

from kerasrl_gpu import engine
from kerasrl_gpu.errors import CheckpointError

# What Keras counts up from process to process, and where it has the layer or the weights.
_NAMES = ("name", "keras_history", "input_layers", "output_layers", "build_config", "module")


def describe(thing) -> dict:
    """A Keras model or optimizer as JSON.

    Returns:
        Keras' own description; {"missing": reason} where it has none, or where it would take code
        to rebuild it (a Lambda of a Python function).
    """
    try:
        with engine.serializing(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a Lambda is unsafe to save: it is not
            description = json.loads(json.dumps(keras.saving.serialize_keras_object(thing)))
    except Exception as error:  # whatever a user's get_config raises
        return {"missing": f"{type(thing).__name__} has no description: {error}"}
    if _holds_code(description):
        return {"missing": f"{thing.name} has a Lambda layer, whose code is not saved"}
    return description


def rebuild(description: dict, what: str, argument: str):
    """The Keras object that `describe` was given, without its weights.

    Args:
        what: for the error text, "the network model".
        argument: how the caller takes one from the user instead, "model=".

    Raises:
        CheckpointError: it was not described, needs code, or a class that Keras does not know.
    """
    reason = description.get("missing")
    if reason is None and _holds_code(description):
        reason = "its description holds code, which is not run"
    if reason is None:
        try:
            with engine.serializing():
                return keras.saving.deserialize_keras_object(description, safe_mode=True)
        except Exception as error:  # Keras raises what it likes for a class it does not find
            reason = _cause(error)
    raise CheckpointError(
        f"{what} cannot be rebuilt from the checkpoint: {reason}. Register custom classes with "
        "keras.saving.register_keras_serializable before, or build it and pass it as "
        f"{argument}..."
    )


def difference(there: dict, here: dict) -> str | None:
    """Where two descriptions differ besides the names that Keras gives; None where nowhere.

    What could not be described is not compared.
    """
    if "missing" in there or "missing" in here:
        return None
    return _difference(there, here, "")


def anonymous(description):
    """A description without the names that Keras gives; None where there is none.

    Equal for things that are built alike, whatever was built before them.
    """
    if isinstance(description, dict):
        if "missing" in description:
            return None
        return {key: anonymous(one) for key, one in description.items() if key not in _NAMES}
    return [anonymous(one) for one in description] if isinstance(description, list) else description


def _difference(there, here, path) -> str | None:
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in {**there, **here} if key not in _NAMES]
        pairs = [(key, there.get(key), here.get(key)) for key in keys]
    elif isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        pairs = [(index, *pair) for index, pair in enumerate(zip(there, here, strict=True))]
    elif there == here:
        return None
    else:
        was, now = _short(there), _short(here)
        return f"{path.strip('/') or 'it'} is {was} in the checkpoint and {now} here"
    found = (_difference(old, new, f"{path}/{key}") for key, old, new in pairs)
    return next((one for one in found if one is not None), None)


def _short(value) -> str:
    """A float as the 32 bits that it was made of say it."""
    return str(np.float32(value)) if isinstance(value, float) else repr(value)


def _cause(error: BaseException) -> str:
    """The first sentence of what was wrong first: Keras adds an error for each layer around it."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).partition("\n")[0].partition(". ")[0].rstrip(".")


def _holds_code(description) -> bool:
    """Whether there is a Python function in it, as bytes for `marshal`."""
    if isinstance(description, dict):
        return description.get("class_name") == "__lambda__" or any(
            map(_holds_code, description.values())
        )
    return isinstance(description, list) and any(map(_holds_code, description))


def set_weights(model, saved: dict) -> None:
    """Give a Keras model the weights of a checkpoint.

    Args:
        saved: {"trainable", "non_trainable"}, arrays in the model's order.

    Raises:
        CheckpointError: they have other shapes.
    """
    held = {"trainable": model.trainable_variables, "non_trainable": model.non_trainable_variables}
    for kind, variables in held.items():
        theirs = [tuple(array.shape) for array in saved[kind]]
        ours = [tuple(variable.shape) for variable in variables]
        if theirs != ours:
            raise CheckpointError(
                f"the checkpoint's {kind} weights have the shapes {theirs}, the model's {ours}. "
                "Build it as it was."
            )
    for kind, variables in held.items():
        for variable, array in zip(variables, saved[kind], strict=True):
            variable.assign(array)

"""What an environment shows: arrays, or nested dicts and tuples of arrays."""

from __future__ import annotations

import math

import numpy as np
from keras import tree

from kerasrl_gpu.errors import ObservationError
from kerasrl_gpu.pool.layout import Field


def as_arrays(observation):
    """The observation with every leaf a NumPy array; lists of numbers are arrays, not structures.

    Raises:
        ObservationError: a leaf is None or nothing that NumPy can hold as numbers.
    """
    if isinstance(observation, np.ndarray) and observation.dtype != object:
        return observation
    if isinstance(observation, dict):
        return {key: as_arrays(value) for key, value in observation.items()}
    if isinstance(observation, tuple) and any(map(_is_structure, observation)):
        return tuple(as_arrays(part) for part in observation)
    if observation is None:
        raise ObservationError("the environment returned None as (a part of) an observation.")
    array = np.asarray(observation)
    if array.dtype == object or array.dtype.kind in "SUVMm":
        raise ObservationError(
            f"an observation of type {type(observation).__name__} is no array of numbers: "
            f"{str(observation)[:80]}. Return arrays, or dicts and tuples of arrays."
        )
    return array


def as_plain(observation):
    """The observation as dicts, tuples, lists, arrays and numbers of exactly these types."""
    if isinstance(observation, dict):
        return {key: as_plain(value) for key, value in observation.items()}
    if isinstance(observation, (tuple, list)):
        kind = list if isinstance(observation, list) else tuple  # a named tuple is a tuple
        return kind(as_plain(part) for part in observation)
    if isinstance(observation, (type(None), bool, int, float, np.generic)):
        return observation
    return np.asarray(observation)


def _fits(array, dtype) -> bool:
    """Whether every value of `array` survives in `dtype`; floats may lose precision."""
    if array.dtype.kind == "f" and dtype.kind in "fV":
        return True
    if array.dtype.kind not in "biufV":
        return False
    with np.errstate(invalid="ignore"):
        return bool(np.array_equal(array.astype(dtype), array))


def _is_structure(part) -> bool:
    return isinstance(part, dict) or np.ndim(part) > 0


class ObservationSpec:
    """The structure, shapes and dtypes that every observation of a pool has.

    Args:
        observation: an example.
        keep_dtype: store float64 and 64-bit integers as they are.

    Attributes:
        fields: leaf name -> Field; a dict's in the order of its sorted keys.
    """

    def __init__(self, observation, keep_dtype: bool = False):
        self._structure = as_arrays(observation)
        self.is_array = isinstance(self._structure, np.ndarray)
        self.fields = {
            name: Field.of(leaf, keep_dtype) for name, leaf in _named_leaves(self._structure)
        }
        self._shapes = [field.shape for field in self.fields.values()]
        self._dtypes = [np.dtype(field.dtype) for field in self.fields.values()]

    @property
    def example(self):
        """An observation of this kind."""
        return self._structure

    def leaves(self, observation, step: int | None = None, checked: bool = False) -> list:
        """The observation's arrays in the order of `fields`.

        Args:
            observation: what the environment showed.
            step: for the error text.
            checked: it passed before, and nobody writes into it.

        Raises:
            ObservationError: another structure or shape than the example's, None, or NaN.
        """
        if checked and type(observation) is np.ndarray:
            return [observation]
        if self.is_array:
            arrays = [observation if type(observation) is np.ndarray else np.asarray(observation)]
        else:
            arrays = self._flatten(observation, step)
        for array, shape, dtype in zip(arrays, self._shapes, self._dtypes, strict=True):
            if array.shape != shape or array.dtype == object:
                raise ObservationError(self._complaint(observation, array, shape, step))
            if array.dtype != dtype and not _fits(array, dtype):
                raise ObservationError(
                    f"{_when(step)}an observation of dtype {array.dtype} does not fit into the "
                    f"pool's {dtype}: {str(array)[:80]}. The first observation decides; return "
                    "one dtype every time, or convert in Processor.process_observation."
                )
            # the sum is NaN if any number is; inf - inf too, hence the second look
            if (
                array.dtype.kind == "f"
                and math.isnan(np.add.reduce(array, None))
                and np.isnan(array).any()
            ):
                raise ObservationError(
                    f"{_when(step)}the observation holds NaN: {str(array)[:80]}. What is stored "
                    "is kept; mend the environment, or replace NaN in "
                    "Processor.process_observation (np.nan_to_num)."
                )
        return arrays

    def _flatten(self, observation, step):
        observation = as_arrays(observation)
        try:
            tree.assert_same_structure(self._structure, observation)
        except (ValueError, TypeError) as error:
            raise ObservationError(
                f"{_when(step)}the observation has another structure than the first one: {error}"
            ) from None
        return tree.flatten(observation)

    def _complaint(self, observation, array, shape, step):
        if observation is None:
            return (
                f"{_when(step)}the environment returned None as observation where the pool holds "
                f"{shape}. What is stored is kept."
            )
        return (
            f"{_when(step)}an observation came with shape {array.shape} where the pool holds "
            f"{shape}. What is stored is kept; make the environment, or "
            f"Processor.process_observation, return {shape} every time."
        )

    def pack(self, leaves: dict):
        """{leaf name: array} back in the observation's structure."""
        if self.is_array:
            return next(iter(leaves.values()))
        return tree.pack_sequence_as(self._structure, list(leaves.values()))


def _named_leaves(structure):
    if isinstance(structure, np.ndarray):
        return [("observation", structure)]
    return [
        ("/".join(str(part) for part in path), leaf)
        for path, leaf in tree.flatten_with_path(structure)
    ]


def as_reward(reward, step: int | None = None) -> float:
    """A reward as a float; some environments return an array of one number.

    Raises:
        ObservationError: it is no number, or NaN.
    """
    if type(reward) is float and reward == reward:
        return reward
    try:
        number = float(reward if np.ndim(reward) == 0 else np.asarray(reward).item())
    except (TypeError, ValueError):
        number = math.nan
    if number != number:
        raise ObservationError(
            f"{_when(step)}the reward is {reward!r}; it has to be a number. What is stored is "
            "kept: mend the environment, or replace it in Processor.process_reward."
        )
    return number


def _when(step: int | None) -> str:
    return "" if step is None else f"step {step}: "

"""What an update reports besides its loss: Keras metrics of one batch, by name or as functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from kerasrl_gpu.errors import ArgumentError


def resolve(metrics, default) -> list:
    """[(name, (y_true, y_pred) -> f32[])] for what was passed to `compile`, the default last.

    Args:
        metrics: names ("mae"), functions of (y_true, y_pred), or keras.metrics.Metric objects;
            not changed.
        default: a function that is always reported.

    Raises:
        ArgumentError: a name that Keras does not know, or nothing that can be called.
    """
    if isinstance(metrics, str):
        raise ArgumentError(f"metrics={metrics!r} is one name; pass a list, metrics=[{metrics!r}].")
    return [_measure(metric) for metric in [*(metrics or ()), default]]


def _measure(metric):
    name, found = getattr(metric, "__name__", None), metric
    if isinstance(metric, str):
        name = metric
        try:
            found = keras.metrics.get(metric)
        except ValueError as error:
            raise ArgumentError(f"metrics: Keras knows no metric {metric!r} ({error}).") from None
    if isinstance(found, type):
        found = found()
    if isinstance(found, keras.metrics.Metric):
        return name or found.name, _stateless(found)
    if not callable(found):
        raise ArgumentError(
            f"metrics: {metric!r} is neither a name, a function of (y_true, y_pred), nor a "
            "keras.metrics.Metric."
        )
    return name or type(found).__name__, lambda y_true, y_pred: ops.mean(found(y_true, y_pred))


def _stateless(metric):
    def measure(y_true, y_pred):
        values = metric.stateless_reset_state()
        values = metric.stateless_update_state(values, y_true, y_pred)
        return metric.stateless_result(values)

    return measure


def report(loss, measures, y_true, y_pred):
    """f32[1 + len(measures)]: the loss, then every measure."""
    values = [loss, *(measure(y_true, y_pred) for _, measure in measures)]
    return ops.stack([ops.cast(value, "float32") for value in values])


class Metrics(Sequence):
    """The numbers of one update, brought over from the device when somebody first reads them.

    Args:
        size: how many numbers there are; `len` needs no device call.
        flush: runs the queued update, which then calls `fill`.
        values: the numbers, if they are known already.
    """

    __slots__ = ("_flush", "_size", "_values")

    def __init__(self, size: int, flush, values=None):
        self._size, self._flush, self._values = size, flush, values

    @property
    def ready(self) -> bool:
        """Whether the numbers are there; reading them sooner waits for the device."""
        return self._values is not None

    def fill(self, values: list) -> None:
        """Take the numbers, f32[M] as a list."""
        self._values = values

    def _read(self) -> list:
        if self._values is None:
            self._flush()
        if self._values is None:  # the update raised, and somebody else reports that
            self._values = [math.nan] * self._size
        return self._values

    def __len__(self):
        return self._size

    def __getitem__(self, index):
        return self._read()[index]

    def __iter__(self):
        return iter(self._read())

    def __array__(self, dtype=None, copy=None):
        return np.array(self._read(), dtype=dtype)

    def __eq__(self, other):
        if not isinstance(other, (list, tuple, Metrics)):
            return NotImplemented
        return self._read() == list(other)

    def __repr__(self):
        return repr(self._read())

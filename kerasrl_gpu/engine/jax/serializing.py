"""Keras' descriptions of models and optimizers, without TensorFlow."""

from __future__ import annotations

import contextlib

from keras.src.utils import module_utils


@contextlib.contextmanager
def serializing():
    """Inside, Keras does not look for TensorFlow, unless it is loaded.

    Keras asks whether what it describes or rebuilds is of one of TensorFlow's types, and loads all
    of it to ask: 470 MB.
    """
    lazy = module_utils.tensorflow
    unknown = getattr(lazy, "_available", True) is None
    if unknown:
        lazy._available = False
    try:
        yield
    finally:
        if unknown:
            lazy._available = None

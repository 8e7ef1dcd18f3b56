"""Keras' descriptions of models and optimizers."""

from __future__ import annotations

import contextlib

serializing = contextlib.nullcontext

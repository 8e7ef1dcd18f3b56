"""One buffer a step: what the host has to tell the device, in one transfer.

A compiled call costs a few microseconds an argument, and on a GPU a transfer each. So the new row,
the observation to act on and the counters travel as one array of bytes: the host writes through
typed views, the compiled function slices and bit-casts.
"""

from __future__ import annotations

import math

import numpy as np

from kerasrl_gpu import engine

_ALIGNMENT_BYTES = 8


class Wire:
    """A byte buffer with named, typed fields.

    Args:
        fields: name -> (dtype, shape).
        columns: name of a pool column -> name of the field that carries its new rows.

    Attributes:
        buffer: u8[n], what travels. A call has to be over before the next write.
        view: name -> NumPy array over the buffer, for the host to write.
        slots: i32[K], the field "slot": where the new rows go.
        rows: column -> view of its field.
    """

    def __init__(self, fields: dict, columns: dict | None = None):
        self._fields, end = {}, 0
        for name, (dtype, shape) in fields.items():
            size = math.prod(shape) * np.dtype(dtype).itemsize
            self._fields[name] = (end, end + size, np.dtype(dtype), tuple(shape))
            end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.buffer = np.zeros(end, np.uint8)
        self.view = {
            name: self.buffer[start:stop].view(dtype).reshape(shape)
            for name, (start, stop, dtype, shape) in self._fields.items()
        }
        self._columns = columns or {}
        self.slots = self.view.get("slot")
        self.rows = {column: self.view[field] for column, field in self._columns.items()}

    def read(self, message, name: str):
        """Field `name` of a buffer inside a compiled function."""
        start, stop, dtype, shape = self._fields[name]
        return engine.from_bytes(message[start:stop], dtype, shape)

    def row(self, message):
        """(slots, {column: rows}) of a buffer inside a compiled function."""
        rows = {column: self.read(message, field) for column, field in self._columns.items()}
        return self.read(message, "slot"), rows

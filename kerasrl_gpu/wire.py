"""One buffer a step: what the host has to tell the device, in one transfer.

A compiled call costs a few microseconds an argument, and on a GPU a transfer each. So the new row,
the observation to act on and the counters travel as one array of words: the host writes through
typed views, the compiled function slices and bit-casts. Words, because most fields have 32 bits,
and putting those together from bytes takes a kernel each.
"""

from __future__ import annotations

import math

import numpy as np
from keras import ops

from kerasrl_gpu import engine

_ALIGNMENT_BYTES, _WORD_BYTES = 8, 4


class Wire:
    """A buffer with named, typed fields.

    Args:
        fields: name -> (dtype, shape). One that carries new rows of a pool has "slot" i32[K] and
            "row" u8[K, row bytes].

    Attributes:
        buffer: u32[n], what travels. A call has to be over before the next write.
        view: name -> NumPy array over the buffer, for the host to write.
    """

    def __init__(self, fields: dict):
        self._fields, end = {}, 0
        for name, (dtype, shape) in fields.items():
            size = math.prod(shape) * np.dtype(dtype).itemsize
            self._fields[name] = (end, end + size, np.dtype(dtype), tuple(shape))
            end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.buffer = np.zeros(end // _WORD_BYTES, np.uint32)
        memory = self.buffer.view(np.uint8)
        self.view = {
            name: memory[start:stop].view(dtype).reshape(shape)
            for name, (start, stop, dtype, shape) in self._fields.items()
        }

    def read(self, message, name: str):
        """Field `name` of a buffer inside a compiled function."""
        start, stop, dtype, shape = self._fields[name]
        words = message[start // _WORD_BYTES : -(-stop // _WORD_BYTES)]
        if dtype.itemsize == _WORD_BYTES:
            return engine.bitcast(ops.reshape(words, shape), dtype.name)
        return engine.from_bytes(engine.to_bytes(words)[: stop - start], dtype, shape)

    def row(self, message):
        """(slots i32[K], rows u8[K, row bytes]) of a buffer inside a compiled function."""
        return self.read(message, "slot"), self.read(message, "row")

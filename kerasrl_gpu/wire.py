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
from kerasrl_gpu.pool.layout import ACTION, FLAGS, REWARD

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


class StepWire(Wire):
    """What one step has to say: its row, what to act on, which rows are live, and two counters.

    Args:
        layout: the pool's, of one environment.
    """

    def __init__(self, layout):
        seen = {
            f"see/{name}": (leaf.dtype, (layout.window, *leaf.shape))
            for name, leaf in layout.leaves.items()
        }
        super().__init__(
            {
                "slot": ("int32", (1,)),
                "tail": ("int32", (1,)),
                "size": ("int32", (1,)),
                "seed": ("uint32", ()),
                "draw": ("uint32", ()),
                "row": ("uint8", (1, layout.row_bytes)),
                **seen,
            }
        )
        new = {name: layout.view(self.view["row"][0], name) for name in layout.fields}
        self._action, self._reward, self._flags = new[ACTION], new[REWARD], new[FLAGS]
        self._leaves = [new[f"leaf/{name}"] for name in layout.leaves]
        self._seen = [self.view[name] for name in seen]
        self._slot, self._tail, self._size = (self.view[n] for n in ("slot", "tail", "size"))

    def set_action(self, action) -> None:
        """Write what was done; raises what NumPy raises for another shape."""
        self._action[...] = action

    def set_row(self, leaves, reward, flags, slot, tail, size) -> None:
        """Write the rest of a row, where it goes, and which rows are live with it."""
        for view, leaf in zip(self._leaves, leaves, strict=True):
            view[...] = leaf
        self._reward[...], self._flags[...], self._slot[0] = reward, flags, slot
        self._tail[0], self._size[0] = tail, size

    def set_again(self, slot, row, flags) -> None:
        """Write a stored row u8[1, row bytes] with other flags."""
        self.view["row"][...], self._slot[0] = row, slot
        self._flags[...] = flags

    def show(self, position: int, leaves) -> None:
        """Write one observation of the stack to act on, 0 for the oldest."""
        for view, leaf in zip(self._seen, leaves, strict=True):
            view[position] = leaf

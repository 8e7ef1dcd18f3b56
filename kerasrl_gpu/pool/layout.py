"""What a row of the pool is: the bytes of one step, field after field.

A pool is one array u8[N, row bytes]. So a step is stored by one write and read by one gather,
whatever an observation consists of, and one dtype has to be supported on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from kerasrl_gpu import engine
from kerasrl_gpu.errors import ArgumentError

ACTION, REWARD, FLAGS = "action", "reward", "flags"

_NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
_STORABLE = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
)


@dataclass(frozen=True)
class Field:
    """One array a row: `dtype`[*shape]."""

    dtype: str
    shape: tuple

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @classmethod
    def of(cls, array: np.ndarray, keep_dtype: bool = False) -> Field:
        """The field that holds arrays like this one.

        Raises:
            ArgumentError: a dtype that no device stores (objects, text, complex numbers).
        """
        dtype = str(array.dtype)
        if dtype not in _STORABLE:
            raise ArgumentError(
                f"an observation of dtype {dtype} cannot be stored; a pool holds "
                f"{', '.join(_STORABLE)}. Convert it in Processor.process_observation, for "
                "instance with np.asarray(observation, dtype='float32')."
            )
        return cls(dtype if keep_dtype else _NARROWED.get(dtype, dtype), tuple(array.shape))


@dataclass(frozen=True)
class Layout:
    """The shape of a pool.

    Attributes:
        leaves: name -> Field of every observation leaf.
        action: Field of an action.
        limit: rows asked for; `rows` is a multiple of `environments`.
        window: observations that a network sees at once, k.
        environments: E sub-rings.
        cross_episodes: stacks run on across episode boundaries instead of being zero-filled.
        fields: name -> Field in the order of a row's bytes: "leaf/" and a leaf's name, ACTION,
            REWARD, FLAGS.
    """

    leaves: dict
    action: Field
    limit: int
    window: int = 1
    environments: int = 1
    cross_episodes: bool = False
    fields: dict = field(init=False)
    capacity: int = field(init=False)  # rows of one sub-ring
    row_bytes: int = field(init=False)

    def __post_init__(self):
        fields = {f"leaf/{name}": leaf for name, leaf in self.leaves.items()}
        fields |= {ACTION: self.action, REWARD: Field("float32", ()), FLAGS: Field("uint8", ())}
        places, end = {}, 0
        for name, one in fields.items():
            places[name] = (end, end + one.nbytes)
            end += one.nbytes
        computed = {"fields": fields, "row_bytes": end, "_places": places}
        for name, value in {**computed, "capacity": self.limit // self.environments}.items():
            object.__setattr__(self, name, value)
        if self.capacity < self.window + 2:
            raise ArgumentError(
                f"limit={self.limit} leaves {self.capacity} rows for each of {self.environments} "
                f"environments; a window of {self.window} needs {self.window + 2}. "
                f"Pass limit={self.environments * (self.window + 2)} or more."
            )

    @property
    def rows(self) -> int:
        """Rows of all sub-rings, N."""
        return self.capacity * self.environments

    @property
    def flags_place(self) -> int:
        """Where the byte of flags stands in a row."""
        return self._places[FLAGS][0]

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self.rows * self.row_bytes

    def read(self, rows, name: str):
        """A field of rows u8[..., row bytes] inside a compiled function: dtype[..., *shape]."""
        start, stop = self._places[name]
        one = self.fields[name]
        return engine.from_bytes(rows[..., start:stop], one.dtype, one.shape)

    def view(self, row: np.ndarray, name: str) -> np.ndarray:
        """A field of a row u8[row bytes] on the host, to write into."""
        start, stop = self._places[name]
        one = self.fields[name]
        return row[start:stop].view(one.dtype).reshape(one.shape)

    def unpack(self, rows: np.ndarray, names=None) -> dict:
        """{field: dtype[N, *shape]} of rows u8[N, row bytes] on the host, copied.

        Args:
            names: the fields that are wanted; None takes all.
        """
        fields = {}
        for name in self.fields if names is None else names:
            (start, stop), one = self._places[name], self.fields[name]
            raw = np.array(rows[:, start:stop], order="C")
            fields[name] = raw.view(one.dtype).reshape(len(rows), *one.shape)
        return fields

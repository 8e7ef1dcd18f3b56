"""What a `DeviceMemory` holds, as keras-rl's memories show it: on the host, oldest first."""

from __future__ import annotations

import numpy as np

from kerasrl_gpu.pool import reader, ring
from kerasrl_gpu.pool.layout import ACTION, FLAGS, REWARD


def stored(memory, *fields) -> dict:
    """Those fields of every stored row: {name: dtype[N, ...]}; see `Layout.fields`."""
    memory.settle()
    return reader.stored(memory.read_rows, memory.layout, memory.ring.live(), fields)


@property
def observations(memory) -> list:
    """Every stored observation."""
    if memory.ring is None:
        return []
    held = stored(memory, *(f"leaf/{name}" for name in memory.layout.leaves))
    return [
        memory.spec.pack({name: held[f"leaf/{name}"][row] for name in memory.layout.leaves})
        for row in range(memory.nb_entries)
    ]


@property
def actions(memory) -> np.ndarray:
    """Every stored action; of a final row nothing was done."""
    return np.zeros(0) if memory.ring is None else stored(memory, ACTION)[ACTION]


@property
def rewards(memory) -> np.ndarray:
    """Every stored reward f32."""
    return np.zeros(0, np.float32) if memory.ring is None else stored(memory, REWARD)[REWARD]


@property
def terminals(memory) -> np.ndarray:
    """Whether each row's step ended its episode, bool."""
    if memory.ring is None:
        return np.zeros(0, bool)
    final = stored(memory, FLAGS)[FLAGS] & ring.FINAL != 0
    return np.append(final[1:], bool(memory.ring.endings[0]))

"""`Plan`: every byte that a training run takes, line by line, before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from kerasrl_gpu.planning import tables
from kerasrl_gpu.planning.engines import Engine
from kerasrl_gpu.planning.graph import itemsize
from kerasrl_gpu.planning.passes import Rows
from kerasrl_gpu.units import human_bytes

NETWORKS, OPTIMIZER, KERAS, POOL = "networks", "optimizer", "Keras' copies", "pool"
UPDATE, MARGIN = "update", "margin"

# Of what an update needs on top: alignment, small arrays, and what the formula does not see. The
# worst of the dense and convolutional networks that were measured lacked 7 % without it.
MARGIN_SHARE = 0.05


class Line(NamedTuple):
    """Bytes of one thing, and the group of things that it belongs to."""

    group: str
    what: str
    bytes: int


@dataclass(frozen=True)
class Plan:
    """What a training run takes on its device.

    Attributes:
        lines: Line of everything.
        batch_size, micro_batch: transitions an update, and those that are computed at a time.
        limit: rows of the pool; None without one.
        budget_bytes: what the run may take; None: nobody said.
    """

    lines: tuple
    batch_size: int
    micro_batch: int
    limit: int | None = None
    budget_bytes: int | None = None

    def of(self, *groups: str) -> int:
        """Bytes of these groups."""
        return sum(line.bytes for line in self.lines if line.group in groups)

    @property
    def persistent_bytes(self) -> int:
        """Weights, targets, slots and Keras' copies of them: there as long as the agent is."""
        return self.of(NETWORKS, OPTIMIZER, KERAS)

    @property
    def pool_bytes(self) -> int:
        """The whole pool: a host commits its pages as rows come in, the plan counts all of them."""
        return self.of(POOL)

    @property
    def step_bytes(self) -> int:
        """What one update needs on top, and gives back."""
        return self.of(UPDATE)

    @property
    def peak_bytes(self) -> int:
        """The most that is there at once, margin included."""
        return sum(line.bytes for line in self.lines)

    @property
    def fits(self) -> bool:
        """Whether the peak lies within the budget; True without one."""
        return self.budget_bytes is None or self.peak_bytes <= self.budget_bytes

    def as_dict(self) -> dict:
        """Plain values: the lines, the sums, the sizes."""
        sums = (
            "persistent_bytes",
            "pool_bytes",
            "step_bytes",
            "peak_bytes",
            "budget_bytes",
            "fits",
        )
        return {
            "batch_size": self.batch_size,
            "micro_batch": self.micro_batch,
            "limit": self.limit,
            **{name: getattr(self, name) for name in sums},
            "lines": [line._asdict() for line in self.lines],
        }

    def __str__(self) -> str:
        rows = [
            (line.group, line.what, human_bytes(line.bytes)) for line in self.lines if line.bytes
        ]
        ends = [("at most at once", "", human_bytes(self.peak_bytes))]
        if self.budget_bytes is not None:
            share = self.peak_bytes / self.budget_bytes if self.budget_bytes else math.inf
            verdict = f"{share:.0%} of it" if self.fits else f"{share:.0%} of it: does not fit"
            ends.append(("budget", verdict, human_bytes(self.budget_bytes)))
        size = f"batch of {self.batch_size:,}"
        if self.micro_batch != self.batch_size:
            size += f", {self.micro_batch:,} at a time"
        if self.limit is not None:
            size += f", pool of {self.limit:,} rows"
        return tables.text(f"Memory of a run, {size}", ("", "", "bytes"), rows, ends)


def nbytes(arrays) -> int:
    """Bytes of arrays, tensors or Keras variables, by their shapes and dtypes."""
    return sum(math.prod(array.shape) * itemsize(_name(array.dtype)) for array in arrays)


def _name(dtype) -> str:
    return getattr(dtype, "name", str(dtype))


def network_lines(state, learning: dict, engine: Engine) -> list:
    """Lines of a TrainState, and of the Keras objects behind it.

    Args:
        state: TrainState, of arrays or of anything else with shapes and dtypes.
        learning: name -> (the model's Keras variables, the optimizer's).
    """
    lines = [
        Line(NETWORKS, f"{name}: weights", nbytes(_flat(w))) for name, w in state.online.items()
    ]
    lines += [
        Line(NETWORKS, f"{name}: target", nbytes(_flat(w))) for name, w in state.target.items()
    ]
    lines += [Line(OPTIMIZER, f"{name}: slots", nbytes(s)) for name, s in state.slots.items()]
    if engine.copies:
        for name, (weights, slots) in learning.items():
            lines.append(Line(KERAS, f"{name}: weights and slots", nbytes([*weights, *slots])))
    return lines


def _flat(weights) -> list:
    return [*weights.trainable, *weights.non_trainable]


def pool_lines(fields: dict) -> list:
    """Lines of a pool's columns; `fields` as in `DeviceMemory.estimate`."""
    return [Line(POOL, name.removeprefix("leaf/"), count) for name, count in fields.items()]


def update_lines(gradients: dict, rows: Rows, batch: int, sizes: tuple, engine: Engine) -> list:
    """Lines of one update.

    Args:
        gradients: network -> (bytes of its gradients, of their sum, of its slots, and how many
            sets the optimizer makes of them).
        rows: of its passes.
        batch: bytes of a row of the batch, while it is read and learned from.
        sizes: (batch_size, micro_batch).
    """
    batch_size, micro_batch = sizes
    lines = []
    for name, (own, summed, slots, beside) in gradients.items():
        lines.append(Line(UPDATE, f"{name}: gradients", own))
        if micro_batch < batch_size:
            lines.append(Line(UPDATE, f"{name}: gradients, summed so far", summed))
        if engine.assigns:
            lines.append(Line(UPDATE, f"{name}: new slots and gradients", slots + beside * own))
    read = micro_batch
    if micro_batch < batch_size:
        lines.append(Line(UPDATE, "which rows are drawn", engine.draw_bytes * batch_size))
        read = batch_size if engine.reads_at_once else min(batch_size, 2 * micro_batch)
    return [
        *lines,
        Line(UPDATE, "batch", batch * read),
        Line(UPDATE, "activations kept for the backward pass", rows.kept * micro_batch),
        Line(UPDATE, "activations on the way", rows.working * micro_batch),
    ]


def margin_line(lines: list, engine: Engine) -> Line:
    """The line that ends a plan."""
    update = sum(line.bytes for line in lines if line.group == UPDATE)
    what = f"compiled code, and {MARGIN_SHARE:.0%} of the update"
    return Line(MARGIN, what, engine.code_bytes + math.ceil(MARGIN_SHARE * update))

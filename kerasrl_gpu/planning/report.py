"""The model report: parameters, activations and FLOPs of every layer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from kerasrl_gpu.planning import flops, layers, tables
from kerasrl_gpu.planning.graph import Graph
from kerasrl_gpu.planning.passes import Pass, reached_places
from kerasrl_gpu.units import human_bytes


class Layer(NamedTuple):
    """One call of a layer.

    Attributes:
        network: that it lies in.
        name, kind: the layer's name and class.
        shape: of its first output, one state.
        parameters: numbers that it holds; those of a shared layer count at its first call.
        output_bytes: of its outputs, one state.
        acting_flops: of acting on one state; None: not counted.
        update_flops: of all passes of an update, one transition; None: not counted.
    """

    network: str
    name: str
    kind: str
    shape: tuple
    parameters: int
    output_bytes: int
    acting_flops: int | None
    update_flops: int | None


@dataclass(frozen=True)
class Report:
    """What each layer costs.

    Attributes:
        layers: Layer of every call, network after network.
        batch_size: transitions an update, B.
    """

    layers: tuple
    batch_size: int

    @property
    def parameters(self) -> int:
        """Numbers that the networks hold, targets not included."""
        return sum(one.parameters for one in self.layers)

    @property
    def acting_flops(self) -> int:
        """FLOPs of acting on one state."""
        return sum(one.acting_flops or 0 for one in self.layers)

    @property
    def update_flops(self) -> int:
        """FLOPs of the passes of one update of B transitions; its optimizer costs little."""
        return self.batch_size * sum(one.update_flops or 0 for one in self.layers)

    @property
    def output_bytes(self) -> int:
        """Bytes of every layer's output, one state."""
        return sum(one.output_bytes for one in self.layers)

    @property
    def not_counted(self) -> list:
        """The layers whose FLOPs are not known, as "network/layer (class)"."""
        unknown = [one for one in self.layers if one.update_flops is None]
        return [f"{one.network}/{one.name} ({one.kind})" for one in unknown]

    def as_dict(self) -> dict:
        """Plain values: the layers and the sums."""
        sums = ("batch_size", "parameters", "output_bytes", "acting_flops", "update_flops")
        return {
            **{name: getattr(self, name) for name in sums},
            "not_counted": self.not_counted,
            "layers": [{**one._asdict(), "shape": list(one.shape)} for one in self.layers],
        }

    def __str__(self) -> str:
        head = ("", "", "output", "parameters", "bytes a state", "FLOPs acting", "FLOPs an update")
        rows = [
            (
                one.network,
                f"{one.name} ({one.kind})",
                "×".join(map(str, one.shape)),
                f"{one.parameters:,}",
                human_bytes(one.output_bytes),
                _number(one.acting_flops),
                _number(one.update_flops, self.batch_size),
            )
            for one in self.layers
        ]
        ends = (
            *("all", "", "", f"{self.parameters:,}", human_bytes(self.output_bytes)),
            *(_number(self.acting_flops), _number(self.update_flops)),
        )
        text = tables.text(f"Layers, batch of {self.batch_size:,}", head, rows, [ends])
        if self.not_counted:
            text += f"\nFLOPs not counted: {', '.join(self.not_counted)}."
        return text


def layer_rows(graphs: dict, stages: list, acting: str) -> tuple:
    """A Layer for each call of every network.

    Args:
        graphs: name -> Graph.
        stages: the update's Passes.
        acting: name of the network that acts.
    """
    found = []
    for name, graph in graphs.items():
        passes = [one for stage in stages for one in stage if one.network == name]
        owned = set()
        for node in graph.nodes:
            if layers.kind(node) != "InputLayer":
                found.append(_row(name, graph, node, passes, owned, name == acting))
    return tuple(found)


def _row(name: str, graph: Graph, node, passes: list, owned: set, acts: bool) -> Layer:
    own = flops.forward(graph, node)
    learned = None
    if own is not None:
        learned = sum(_cost(graph, node, own, one) for one in passes)
    variables = getattr(node.operation, "variables", ())
    fresh = [variable for variable in variables if id(variable) not in owned]
    owned |= set(map(id, fresh))
    made = graph.made(node)
    return Layer(
        network=name,
        name=node.name,
        kind=layers.kind(node),
        shape=made[0].shape,
        parameters=sum(math.prod(variable.shape) for variable in fresh),
        output_bytes=sum(tensor.nbytes for tensor in made),
        acting_flops=None if own is None else sum(own) * acts,
        update_flops=learned,
    )


def _cost(graph: Graph, node, own: flops.Flops, one: Pass) -> int:
    """FLOPs of one pass, its way back included."""
    if not one.keeps:
        return sum(own)
    reached = reached_places(graph, one)
    behind = one.learns and layers.has_kernel(node)
    before = bool(reached & set(node.inputs)) or not one.learns  # then the input is what learns
    back = own.kernel * (behind + before)
    return sum(own) + back + own.rest * bool(reached & set(node.outputs))


def _number(count: int | None, times: int = 1) -> str:
    if count is None:
        return "not counted"
    count *= times
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return str(count)

"""FLOPs of a layer, a row of the batch: a multiplication and an addition count as two.

What reads weights costs once more backward for the weights' gradient, and once more for the input's
where something before it learns. Everything else counts one a number, forward and backward.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from kerasrl_gpu.planning import layers
from kerasrl_gpu.planning.graph import Graph, Node

_MOVES = (
    *("Permute", "Concatenate", "Cast", "Transpose", "RepeatVector", "Embedding", "Split"),
    *("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "Cropping1D", "Cropping2D", "Cropping3D"),
    *("UpSampling1D", "UpSampling2D", "UpSampling3D", "GetItem", "Stack", "BroadcastTo"),
)
_NORMS = {"BatchNormalization": 2, "LayerNormalization": 8, "GroupNormalization": 8}
_RECURRENT_GATES = {"LSTM": 4, "GRU": 3, "SimpleRNN": 1}
_ELEMENTWISE = (
    *("Rescaling", "Activation", "ReLU", "ELU", "LeakyReLU", "PReLU", "Softmax", "Dropout"),
    *("SpatialDropout1D", "SpatialDropout2D", "GaussianNoise", "GaussianDropout"),
)
_MERGES = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")


class Flops(NamedTuple):
    """FLOPs forward: `kernel` of products with weights, `rest` of all else."""

    kernel: int
    rest: int


def forward(graph: Graph, node: Node) -> Flops | None:
    """FLOPs of one row; None for a layer whose formula is not known."""
    if layers.is_view(node) or layers.kind(node) in _MOVES:
        return Flops(0, 0)
    made = sum(tensor.size for tensor in graph.made(node))
    ends = made * (bool(getattr(node.operation, "use_bias", False)) + _curved(node))
    kernel = _kernel(graph, node)
    if kernel is not None:
        return Flops(kernel, ends)
    rest = _rest(graph, node, made)
    return None if rest is None else Flops(0, rest)


def _curved(node: Node) -> bool:
    return layers.activation(node) != "linear"


def _kernel(graph: Graph, node: Node) -> int | None:
    """FLOPs of the products with weights; None for a layer without."""
    name, operation = layers.kind(node), node.operation
    given, made = graph.given(node), graph.made(node)
    if name == "Dense":
        return 2 * given[0].shape[-1] * made[0].size
    if name in ("Conv1D", "Conv2D", "Conv3D"):
        return 2 * layers.patch_numbers(graph, node) * operation.filters // operation.groups
    if name.startswith("DepthwiseConv"):
        return 2 * math.prod(operation.kernel_size) * made[0].size
    if name.startswith("SeparableConv"):
        places = made[0].size // operation.filters
        deep = given[0].shape[_channel_axis(operation)] * operation.depth_multiplier
        return 2 * places * deep * (math.prod(operation.kernel_size) + operation.filters)
    if name in ("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"):
        return 2 * given[0].size * math.prod(operation.kernel_size) * operation.filters
    if name in _RECURRENT_GATES:
        steps, width = given[0].shape
        gates = _RECURRENT_GATES[name] * operation.units
        return 2 * steps * gates * (width + operation.units)
    return None


def _channel_axis(operation) -> int:
    return -1 if operation.data_format == "channels_last" else 0


def _rest(graph: Graph, node: Node, made: int) -> int | None:
    """FLOPs of a layer without products; None where no formula is known."""
    name, given = layers.kind(node), graph.given(node)
    if name in _NORMS:
        return _NORMS[name] * made
    if name.startswith(("MaxPooling", "AveragePooling")):
        return made * math.prod(node.operation.pool_size)
    if name.startswith("Global") and "Pooling" in name:
        return given[0].size
    if name in _MERGES:
        return made * max(1, len(given) - 1)
    if name in _ELEMENTWISE:
        return made
    if not layers.is_layer(node) and layers.is_light(node):  # keras.ops: elementwise or reducing
        return max([made, *(tensor.size for tensor in given)])
    return None

"""What kinds of layers there are: views, light ones that are fused, and those with a kernel."""

from __future__ import annotations

import math

import keras
from keras import layers as kl

from kerasrl_gpu.planning.graph import Graph, Node

# The output is the input under another shape.
_VIEWS = ("InputLayer", "Flatten", "Reshape", "Identity", "Squeeze", "ExpandDims", "Ravel")
# Moves and elementwise work: whoever reads the output can compute it on the way.
_LIGHT = (
    *("Rescaling", "Permute", "Concatenate", "Add", "Subtract", "Average", "RepeatVector"),
    *("ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D", "Cropping1D", "Cropping2D", "Cropping3D"),
)
_ACTIVATIONS = {"ReLU": "relu", "ELU": "elu", "LeakyReLU": "leaky_relu", "Softmax": "softmax"}


def kind(node: Node) -> str:
    """The class name of a node's layer or operation."""
    return type(node.operation).__name__


def activation(node: Node) -> str:
    """Name of the function that a node ends with; "linear" where there is none."""
    function = getattr(node.operation, "activation", None)
    return _ACTIVATIONS.get(kind(node)) or getattr(function, "__name__", "linear")


def is_view(node: Node) -> bool:
    """Whether the output takes no bytes of its own."""
    return kind(node) in _VIEWS or (kind(node) == "Activation" and activation(node) == "linear")


def is_layer(node: Node) -> bool:
    """Whether it is a layer; else it is an operation of keras.ops."""
    return isinstance(node.operation, keras.Layer)


def is_light(node: Node) -> bool:
    """Whether a compiler can compute it together with what reads it."""
    if is_layer(node):
        return kind(node) in _LIGHT
    return kind(node) not in ("Matmul", "Einsum", "Dot", "Tensordot", "Conv")


def has_kernel(node: Node) -> bool:
    """Whether it multiplies by weights, whose gradient needs the input."""
    return bool(getattr(node.operation, "trainable_variables", ())) and not is_norm(node)


def kernel_numbers(node: Node) -> int:
    """Numbers of a node's largest weight; 0 where it has no kernel."""
    if not has_kernel(node):
        return 0
    return max(math.prod(weight.shape) for weight in node.operation.trainable_variables)


def is_norm(node: Node) -> bool:
    """Whether it is a normalisation."""
    return kind(node).endswith("Normalization")


def is_convolution(node: Node) -> bool:
    """Whether it convolves."""
    return isinstance(node.operation, (kl.Conv1D, kl.Conv2D, kl.Conv3D)) and not hasattr(
        node.operation, "output_padding"
    )


def patch_numbers(graph: Graph, node: Node) -> int:
    """Numbers in all the patches that a convolution reads, a row; 0 for other layers."""
    if not is_convolution(node):
        return 0
    places = graph.made(node)[0].size // node.operation.filters
    kernel = node.operation.kernel.shape  # (*window, a group's channels in, filters)
    return places * math.prod(kernel[:-1]) * node.operation.groups


def returned_patch_numbers(graph: Graph, node: Node) -> int:
    """Numbers in the patches that the gradient of a convolution's input reads, a row.

    0 with strides: what lies between the gradients is then skipped, not written out.
    """
    if not is_convolution(node) or any(step > 1 for step in node.operation.strides):
        return 0
    places = graph.given(node)[0].size // node.operation.kernel.shape[-2]
    return places * math.prod(node.operation.kernel_size) * node.operation.filters


def needs_inputs(node: Node) -> bool:
    """Whether its gradient needs its inputs, whatever learns."""
    return kind(node).startswith(("MaxPooling", "GlobalMaxPooling")) or kind(node) == "Multiply"

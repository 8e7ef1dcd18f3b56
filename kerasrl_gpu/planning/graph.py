"""A Keras model as the list of what it computes, in order, with every shape known."""

from __future__ import annotations

import math
from typing import NamedTuple

import keras
import numpy as np

from kerasrl_gpu.errors import ShapeError

_WIDE = {"bfloat16": 2, "int4": 1, "uint4": 1}  # dtypes that NumPy does not know, bytes


class Tensor(NamedTuple):
    """What one row of a batch is at one place of the graph."""

    shape: tuple
    dtype: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * itemsize(self.dtype)


class Node(NamedTuple):
    """One call of a layer or an operation; a shared layer has one for each call.

    Attributes:
        operation: the keras.Layer, or a keras.ops operation.
        name: its name, behind those of the models that it lies in.
        inputs, outputs: places in `Graph.tensors`.
    """

    operation: object
    name: str
    inputs: tuple
    outputs: tuple


class Graph(NamedTuple):
    """A model with its nested models unfolded.

    Attributes:
        nodes: in the order of their calls.
        tensors: Tensor of every place.
        inputs: places of the model's inputs, in their order.
        outputs: places of its outputs.
    """

    nodes: list
    tensors: list
    inputs: tuple
    outputs: tuple

    def given(self, node: Node) -> list:
        """The Tensors that a node takes."""
        return [self.tensors[place] for place in node.inputs]

    def made(self, node: Node) -> list:
        """The Tensors that a node returns."""
        return [self.tensors[place] for place in node.outputs]


def itemsize(dtype: str) -> int:
    """Bytes of one number."""
    return _WIDE.get(dtype) or np.dtype(dtype).itemsize


def trace(model) -> Graph:
    """The graph of a built functional or Sequential model.

    Raises:
        ShapeError: the model is not built, or a shape in it has an unknown axis besides the batch.
    """
    if not getattr(model, "inputs", None):
        raise ShapeError(
            f"the shapes inside the model {model.name!r} are not known: it was not built on an "
            "input. Start a Sequential with keras.Input(shape), or call "
            "agent.forward(observation) first, which builds it."
        )
    graph = Graph([], [], (), ())
    inputs = tuple(_place(graph, tensor, model.name) for tensor in model.inputs)
    outputs = _unfold(graph, model, inputs, "")
    return graph._replace(inputs=inputs, outputs=outputs)


def _unfold(graph: Graph, model, inputs: tuple, prefix: str) -> tuple:
    """Add what `model` computes from the tensors at `inputs`; returns its outputs' places."""
    places = {id(tensor): place for tensor, place in zip(model.inputs, inputs, strict=True)}
    for node in _calls(model):
        operation = node.operation
        taken = tuple(places[id(tensor)] for tensor in node.input_tensors)
        name = f"{prefix}{operation.name}"
        if isinstance(operation, keras.Model) and getattr(operation, "inputs", None):
            made = _unfold(graph, operation, taken, f"{name}/")
        else:
            made = tuple(_place(graph, tensor, name) for tensor in node.output_tensors)
            graph.nodes.append(Node(operation, name, taken, made))
        places.update(zip(map(id, node.output_tensors), made, strict=True))
    return tuple(places[id(tensor)] for tensor in model.outputs)


def _calls(model) -> list:
    """The calls between a model's inputs and outputs, each behind those that it depends on."""
    given, order, seen = {id(tensor) for tensor in model.inputs}, [], set()
    waiting = [(tensor, False) for tensor in reversed(model.outputs)]
    while waiting:  # a stack, not recursion: a deep model is deeper than Python's
        tensor, ready = waiting.pop()
        history = tensor._keras_history
        node = history.operation._inbound_nodes[history.node_index]
        if ready:
            order.append(node)
        elif id(tensor) not in given and id(node) not in seen:
            seen.add(id(node))
            waiting.append((tensor, True))
            waiting.extend((one, False) for one in reversed(node.input_tensors))
    return order


def _place(graph: Graph, tensor, name: str) -> int:
    shape = tuple(tensor.shape)
    shape = shape[1:] if shape and shape[0] is None else shape
    if None in shape:
        raise ShapeError(
            f"{name} has the shape {tuple(tensor.shape)}: an axis besides the batch is unknown, so "
            "its bytes are, too. Give keras.Input every size of an observation."
        )
    graph.tensors.append(Tensor(shape, str(tensor.dtype)))
    return len(graph.tensors) - 1

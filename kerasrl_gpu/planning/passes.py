"""What the passes of an update hold at once: bytes a row, found by walking the graphs.

Forward, what the backward pass needs stays. Backward, gradients come, and what they needed goes. An
update's peak lies either behind the forward pass, while another network infers beside what is kept,
or at the worst step of the way back.
"""

from __future__ import annotations

from typing import NamedTuple

from kerasrl_gpu.planning import layers
from kerasrl_gpu.planning.engines import Engine
from kerasrl_gpu.planning.graph import Graph, Tensor, itemsize

# Numbers of a kernel from which on XLA's kernel of several layers holds what lies between them:
# nothing with 128 x 128, everything with 256 x 256.
_WIDE = 2**16


class Pass(NamedTuple):
    """One run of a network inside an update.

    Attributes:
        network: its name.
        keeps: whether a backward pass goes through it.
        learns: whether its own weights get gradients.
    """

    network: str
    keeps: bool = False
    learns: bool = False


class Rows(NamedTuple):
    """Bytes a row: kept for the backward pass, and on top of that at the worst moment."""

    kept: int
    working: int


class _Step(NamedTuple):
    """What one node takes, bytes a row.

    Attributes:
        given, made: its inputs and outputs, where it reads and writes arrays of their own.
        inputs: what of `given` is kept for its kernel's gradient.
        beside: kept on top: what its activation or normalisation needs.
        gradient: of its output; `returned`: of its inputs.
        result: its output, where the gradient is computed from that.
        curved: whether it ends with an activation, which writes an array of its own.
        kernel: numbers of its largest weight; those without write over what they read.
        workspace: while it runs; `back`: on the way back.
    """

    given: int
    made: int
    inputs: int
    beside: int
    gradient: int
    returned: int
    result: int
    curved: bool
    kernel: int
    workspace: int
    back: int


def rows(stages: list, graphs: dict, engine: Engine) -> Rows:
    """What an update holds.

    Args:
        stages: a list of Passes for each optimizer's step; those that keep are one chain, in
            order, that is run through backwards.
        graphs: name -> Graph.
    """
    found = [_stage(stage, graphs, engine) for stage in stages]
    if engine.overlaps:
        found.append(Rows(sum(one.kept for one in found), 0))
    return max(found, key=sum)


def _stage(stage: list, graphs: dict, engine: Engine) -> Rows:
    chain = [step for one in stage if one.keeps for step in _steps(graphs, one, engine)]
    kept = sum(step.inputs + step.beside for step in chain)
    forward = max((step.made + step.workspace for step in chain), default=0)
    inferring = [one for one in stage if not one.keeps]
    alone = len(inferring) == 1
    others = [_inference(graphs, one, engine, alone) for one in inferring] or [0]
    beside = sum(others) if engine.infers_together else max(others)
    return Rows(kept, max(forward, beside, _backward(chain) - kept))


def _backward(chain: list) -> int:
    held, worst = sum(step.inputs + step.beside for step in chain), 0
    for step in reversed(chain):
        through = held + step.gradient + step.result
        if step.beside or step.result:
            through += step.gradient  # the activation's, not written over its output's
        held -= step.beside
        worst = max(worst, through, held + step.gradient + step.returned + step.back)
        held -= step.inputs
    return worst


def _inference(graphs: dict, one: Pass, engine: Engine, alone: bool) -> int:
    """What a pass without gradients holds; `alone`: it is the update's only one."""
    steps = _steps(graphs, one, engine)
    if engine.infers == "pair":
        each = (step.given + step.made * (1 + step.curved) + step.workspace for step in steps)
        return max(each, default=0)
    held = max((step.made for step in steps), default=0)
    if engine.infers == "all" and alone:
        hidden = [step for step in steps[:-1] if step.kernel]
        wide = any(step.kernel >= _WIDE for step in hidden[1:])
        held = sum(step.made for step in hidden) if wide else 0
    if engine.relu_zeros:
        graph = graphs[one.network]
        widths = {graph.made(n)[0] for n in graph.nodes if layers.activation(n) == "relu"}
        held += sum(_nbytes(width, engine) for width in widths)
    return held + max((step.workspace for step in steps), default=0)


def _steps(graphs: dict, one: Pass, engine: Engine) -> list:
    """A _Step for each node of a pass that writes something."""
    graph = graphs[one.network]
    storage, steps, kept = _storage(graph, engine), [], set(graph.inputs)
    reached = reached_places(graph, one)

    def size(places):
        return sum(_nbytes(graph.tensors[place], engine) for place in places)

    for node in graph.nodes:
        given, made = (_written(storage, places) for places in (node.inputs, node.outputs))
        if not made or layers.is_view(node):
            continue
        needed = layers.needs_inputs(node) or (one.learns and layers.has_kernel(node))
        inputs = given - kept if needed else set()
        kept |= inputs
        beside, curved = _beside(graph, node, engine), layers.activation(node) != "linear"
        if curved and not one.learns:  # nobody keeps its result for a kernel
            beside = max(beside, size(made))
        returned = size(given & reached)
        steps.append(
            _Step(
                given=size(given),
                made=size(made),
                inputs=size(inputs),
                beside=beside,
                gradient=size(made & reached),
                returned=returned,
                result=size(made) if curved and not beside else 0,
                curved=curved,
                kernel=layers.kernel_numbers(node),
                workspace=layers.patch_numbers(graph, node) * 4 if engine.unfolds else 0,
                back=_way_back(graph, node, engine, bool(returned)),
            )
        )
    return steps


def _storage(graph: Graph, engine: Engine) -> dict:
    """Place -> the place whose array holds it; None where it is computed on the way."""
    storage, read = {place: place for place in graph.inputs}, set(graph.outputs)
    views = [node for node in graph.nodes if layers.is_view(node)]
    for node in graph.nodes:
        if not layers.is_light(node) and not layers.is_view(node):
            read |= set(node.inputs)
    for node in reversed(views):
        if read & set(node.outputs):
            read |= set(node.inputs)
    for node in graph.nodes:
        for place in node.outputs:
            if layers.is_view(node):
                storage[place] = storage[node.inputs[0]] if node.inputs else place
            else:
                fused = engine.fuses and layers.is_light(node) and place not in read
                storage[place] = None if fused else place
    return storage


def _written(storage: dict, places: tuple) -> set:
    return {storage[place] for place in places} - {None}


def reached_places(graph: Graph, one: Pass) -> set:
    """The places that gradients come to."""
    reached = set() if one.learns else set(graph.inputs)
    for node in graph.nodes:
        if reached & set(node.inputs) or (one.learns and layers.has_kernel(node)):
            reached |= set(node.outputs)
    return reached - set(graph.inputs)


def _beside(graph: Graph, node, engine: Engine) -> int:
    """What a node keeps on top of its kernel's input, bytes a row."""
    made = [_nbytes(tensor, engine) for tensor in graph.made(node)]
    if arrays := engine.recurrent.get(layers.kind(node)):
        given = graph.given(node)[0]
        return arrays * given.shape[0] * node.operation.units * itemsize(given.dtype)
    if layers.is_norm(node):
        return engine.norms.get(layers.kind(node), 1) * sum(made)
    name = layers.activation(node)
    return 0 if name == "linear" else engine.activations.get(name, 2) * sum(made)


def _way_back(graph: Graph, node, engine: Engine, returns: bool) -> int:
    """What a convolution's two gradients write out, which are computed at once; bytes a row.

    The patches of both, and its input and the gradient of its output turned round.
    """
    if not engine.unfolds or not layers.is_convolution(node):
        return 0
    patches = layers.patch_numbers(graph, node)
    if returns:
        patches += layers.returned_patch_numbers(graph, node)
    turned = [*graph.given(node), *graph.made(node)]
    return 4 * patches + sum(_nbytes(tensor, engine) for tensor in turned)


def _nbytes(tensor: Tensor, engine: Engine) -> int:
    width = engine.half_bytes.get(tensor.dtype)
    return tensor.nbytes if width is None else int(tensor.size * width)

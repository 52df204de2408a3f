"""Reverse mode: from a graph, the graph that gives the slopes of its weights, or the derivative in a direction of them.

A backward pass is linear in the slope that it takes: it gives J^T s for the slopes s of the output, J the derivative of
the output with respect to the weights.  So the same rules, applied to it, give J u for a direction u of the weights,
and no second derivative is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.models.onnx_file.graph import IR_VERSION, OPSET, Graph, port, tensor_port
from edge_sdk.models.onnx_file.node import Node, node
from edge_sdk.models.onnx_training import layer_rules
from edge_sdk.models.onnx_training.emitter import Emitter, Shape
from edge_sdk.models.onnx_training.rules import RULES, SELECTING, BackwardRule, NotDifferentiable, Slopes, first

SLOPE = "back/slope"
"""The input of a backward graph: the slope of its forward graph's output."""
ROWS, TARGETS = "head/rows", "head/targets"
"""Inputs of a whole step: the rows of the head (k, d + 1), and 1 at each sample's label (b, k)."""
assert layer_rules  # its rules are registered  # noqa: S101


@dataclass(frozen=True, slots=True, eq=False)
class TrainingGraph:
    """A forward pass and its backward pass, for one shape of mini-batches."""

    forward: Graph
    """Gives the output, and then what the backward pass reads of it."""
    backward: Graph
    """Takes SLOPE, the weights, the samples and what the forward pass kept; gives a slope for each weight."""
    kept: tuple[str, ...]
    """The tensors that the forward pass hands to the backward pass."""
    weights: tuple[str, ...]
    """The names of the weights, in the order of the slopes."""
    sizes: Mapping[str, tuple[Shape, np.dtype[Any]]]
    """Shape and type of each output of the forward pass."""
    shapes: Mapping[str, Shape]
    """The shape of each tensor of both passes."""


def training_graph(
    graph: Graph,
    output: str,
    weights: Sequence[str],
    tensors: Mapping[str, NDArray[Any]],
    fixed: Mapping[str, NDArray[Any]],
) -> TrainingGraph:
    """Differentiate an output of a graph, which `trainable` gave, with respect to some constants.

    tensors: every tensor of the pass of one mini-batch, with weights and constants; only shapes and types are read.
    fixed: the tensors that depend on no weight and no sample.  Raises NotDifferentiable, with the tensor, where an
    operator is used in a way that has no rule.
    """
    trained = depending(graph, frozenset(weights))
    shapes = {name: array.shape for name, array in tensors.items()}
    to = Emitter({**shapes, SLOPE: shapes[output]}, fixed, trained)
    slopes = slopes_back(graph, to, {output: SLOPE}, RULES)
    ends = [to.broadcast(slopes[name], shapes[name]) if name in slopes else to.zeros(shapes[name]) for name in weights]
    return _assembled(graph, output, tuple(weights), to, ends, tensors)


def slopes_back(
    graph: Graph, to: Emitter, ends: Mapping[str, str], rules: Mapping[str, BackwardRule]
) -> dict[str, str]:
    """Emit the slope of each tensor of a graph on which `ends` depend, given theirs; return the names.

    Raises NotDifferentiable, with the tensor, where an operator has no rule, or is used in a way that has none.
    """
    slopes = dict(ends)
    for each in reversed(graph.nodes):
        given = [to.broadcast(slopes[name], to.shape(name)) if name in slopes else None for name in each.outputs]
        if not any(given) or not to.trained.intersection(each.inputs):
            continue
        try:
            found = rules.get(each.operator, _without_rule)(to, each, given)
        except NotDifferentiable as error:
            error.tensor = each.outputs[0]
            raise
        for name, slope in zip(each.inputs, found, strict=False):
            if slope is not None and name in to.trained:
                slopes[name] = to.add(slopes.get(name), slope)
    return slopes


def _without_rule(_to: Emitter, each: Node, _given: Sequence[str | None]) -> Slopes:
    raise NotDifferentiable(each.operator)


def step_graph(made: TrainingGraph, classes: int) -> Graph:
    """Return one graph of both passes, with a linear head and the mean cross-entropy between them.

    It takes the weights, the samples, ROWS and TARGETS; it gives the logits (b, k), the slopes of the rows, and those
    of the weights.  The operators of a backward pass mean the same in all later operator sets.
    """
    forward, backward = made.forward, made.backward
    output = next(iter(forward.outputs))
    shape = made.sizes[output][0]
    b, d = shape[0], prod(shape[1:])
    sizes = {output: shape, ROWS: (classes, d + 1), TARGETS: (b, classes)}
    to = Emitter(sizes, {}, frozenset(), prefix="head")
    f = to.joined([to.reshape(output, (b, d)), to.constant(np.ones((b, 1), np.float32))], 1)
    logits = to.matrix(f, ROWS, turn_b=True)
    at_logits = to.scaled(to.binary("Sub", to.unary("Softmax", logits, axis=-1), TARGETS), 1 / b)
    on_rows = to.matrix(at_logits, f, turn_a=True)
    at_f = to.reshape(to.sliced(to.matrix(at_logits, ROWS), 1, 0, d), shape)
    between = [*to.nodes[:-1], to.nodes[-1].renamed(at_f, SLOPE)]
    own = {name: tensor_port(name, sizes[name], np.dtype(np.float32)) for name in (ROWS, TARGETS)}
    return replace(
        forward,
        nodes=(*forward.nodes, *between, *backward.nodes),
        constants={**forward.constants, **to.constants, **backward.constants},
        inputs={**forward.inputs, **own},
        outputs={**{name: port(name) for name in (logits, on_rows)}, **backward.outputs},
        opsets={**forward.opsets, "": max(OPSET, forward.opsets.get("", OPSET))},
        ir_version=max(IR_VERSION, forward.ir_version),
    )


def depending(graph: Graph, names: frozenset[str], past: Collection[str] = SELECTING) -> frozenset[str]:
    """Return these names and all that are computed from them; past: operators that are no way for it."""
    found = set(names)
    for each in graph.nodes:
        if each.operator not in past and found.intersection(_read(each)):
            found.update(name for name in each.outputs if name)
    return frozenset(found)


def moving(graph: Graph, names: frozenset[str]) -> frozenset[str]:
    """Return these names and all whose numbers, not only shapes, change with theirs."""
    return depending(graph, names, ("Shape", "Size"))


def _read(each: Node) -> Collection[str]:
    """Return the tensors whose numbers an operator reads; the second of CastLike only gives the type."""
    return each.inputs[:1] if each.operator == "CastLike" else (*each.inputs, *each.captured)


def learnable(
    graph: Graph, output: str, weights: Sequence[str], stuck: Collection[str] = ()
) -> tuple[tuple[str, ...], str]:
    """Return the weights that can learn, and the operator that freezes the others, or "" if none does.

    An operator without a rule, or one that outputs a tensor in `stuck`, freezes everything before it.  Otherwise a
    weight with a second path around it would learn from an incomplete slope.
    """
    left, blocked = list(weights), ""
    before: dict[str, set[str]] = {name: {name} for name in weights}
    for each in graph.up_to([output]).nodes:
        reached = set().union(*(before.get(name, set()) for name in _read(each)))
        if each.operator in SELECTING:
            reached = set()
        elif reached and (each.operator not in RULES or any(name in stuck for name in each.outputs)):
            left = [name for name in left if name not in reached]
            blocked = each.operator
            reached = set()
        for name in each.outputs:
            before[name] = reached
    at_end = before.get(output, set())
    return tuple(name for name in left if name in at_end), blocked


def _assembled(  # noqa: PLR0917
    graph: Graph,
    output: str,
    weights: tuple[str, ...],
    to: Emitter,
    ends: Sequence[str],
    tensors: Mapping[str, NDArray[Any]],
) -> TrainingGraph:
    made = {name for each in graph.nodes for name in each.outputs}
    given = {*weights, *graph.inputs}
    read = {name for each in to.nodes for name in each.inputs if name} | set(ends)
    kept = tuple(sorted(read & made))
    constants = {name: tensor for name, tensor in graph.constants.items() if name not in weights}

    def typed(name: str) -> bytes:
        return tensor_port(name, tensors[name].shape, tensors[name].dtype)

    ports = {name: typed(name) for name in weights}
    forward = replace(
        graph,
        constants=constants,
        inputs={**graph.inputs, **ports},
        outputs={name: port(name) for name in dict.fromkeys([output, *kept])},
    )
    own = {name: tensor for name, tensor in constants.items() if name in read}
    outputs = {f"back/end/{i}": port(f"back/end/{i}") for i in range(len(ends))}
    copies = [node("Identity", [end], name) for end, name in zip(ends, outputs, strict=True)]
    slope = tensor_port(SLOPE, tensors[output].shape, tensors[output].dtype)
    inputs = {SLOPE: slope, **{name: typed(name) for name in [*kept, *sorted(read & given)]}}
    backward = Graph(
        (*to.nodes, *copies), {**own, **to.constants}, inputs, outputs, {"": OPSET}, IR_VERSION, name=graph.name
    )
    sizes = {name: (tensors[name].shape, tensors[name].dtype) for name in forward.outputs}
    shapes = {**to.shapes, **{name: tensors[weight].shape for name, weight in zip(outputs, weights, strict=True)}}
    return TrainingGraph(forward, backward, kept, weights, sizes, shapes)


DIRECTION = "along/"
"""Before the name of a weight: the input with its part of the direction."""
DERIVATIVE = "along/derivative"
"""The output: the derivative of the forward graph's output in that direction."""


def directional_graph(made: TrainingGraph) -> Graph:
    """Return the graph of a derivative in a direction, for the mini-batches of a training graph.

    It takes a direction for each weight, and of the inputs of the backward graph what it reads; it gives DERIVATIVE.
    Raises NotDifferentiable where an operator of the backward pass has no rule.
    """
    backward = made.backward
    linear = depending(backward, frozenset([SLOPE]))
    fixed = {name: values for name, each in backward.constants.items() if (values := each.values()) is not None}
    directions = {DIRECTION + name: made.shapes[name] for name in made.weights}
    to = Emitter({**made.shapes, **directions}, fixed, linear, prefix="along")
    ends = dict(zip(backward.outputs, directions, strict=True))
    found = slopes_back(backward, to, ends, {**RULES, **_RULES})
    output = found.get(SLOPE) or to.zeros(made.shapes[SLOPE])
    ports = {name: tensor_port(name, shape, np.dtype(np.float32)) for name, shape in directions.items()}
    whole = replace(
        backward,
        nodes=(*backward.nodes, *to.nodes, node("Identity", [output], DERIVATIVE)),
        constants={**backward.constants, **to.constants},
        inputs={**backward.inputs, **ports},
        outputs={DERIVATIVE: port(DERIVATIVE)},
    )
    return whole.up_to([DERIVATIVE])


# -- operators that only backward passes have: each adds up what it was given, so its slope is taken from there ---

_RULES: dict[str, BackwardRule] = {}


def _scattered(to: Emitter, each: Node, slopes: Sequence[str | None]) -> Slopes:
    """Take the slopes of updates from where they were added, along an axis."""
    if each.inputs[0] in to.trained or each.inputs[1] in to.trained:
        raise NotDifferentiable(each.operator)
    shape, axis = to.shape(each.inputs[2]), int(each.number("axis", 0))
    return [None, None, to.emit("GatherElements", [first(slopes), each.inputs[1]], shape, axis=axis)]


def _scattered_nd(to: Emitter, each: Node, slopes: Sequence[str | None]) -> Slopes:
    """Take the slopes of updates from where they were added."""
    if each.inputs[0] in to.trained or each.inputs[1] in to.trained:
        raise NotDifferentiable(each.operator)
    return [None, None, to.emit("GatherND", [first(slopes), each.inputs[1]], to.shape(each.inputs[2]))]


def _product(to: Emitter, each: Node, slopes: Sequence[str | None]) -> Slopes:
    """Take the slope of a matrix whose rows a vector has added up."""
    a, b = each.inputs
    if len(to.shape(a)) == 1 and len(to.shape(b)) == 2 and a not in to.trained:
        return [None, to.mul(to.reshape(a, (*to.shape(a), 1)), first(slopes))]
    return RULES["MatMul"](to, each, slopes)


_RULES |= {"MatMul": _product, "ScatterElements": _scattered, "ScatterND": _scattered_nd}

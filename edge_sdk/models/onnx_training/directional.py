"""Derivatives in a direction of the weights, from the backward pass.

A backward pass is linear in the slope that it takes: it gives J^T s for the slopes s of the output, J the derivative of
the output with respect to the weights.  So the same rules, applied to it, give J u for a direction u of the weights,
and no second derivative is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edge_sdk.models.onnx_file.graph import Graph, port, tensor_port
from edge_sdk.models.onnx_file.node import Node, node
from edge_sdk.models.onnx_training.emitter import Emitter
from edge_sdk.models.onnx_training.gradient import SLOPE, TrainingGraph, depending, slopes_back
from edge_sdk.models.onnx_training.rules import RULES, BackwardRule, NotDifferentiable, Slopes, first

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

"""A drawn graph's gradients by each engine, beside torch's in double precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from drawn_graphs import LEAST_MARGIN, Drawn

from edge_sdk.models.onnx_file.graph import Graph, port
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of
from edge_sdk.models.onnx_runtime.onnx_session import OnnxEngine
from edge_sdk.models.onnx_training.engine import GraphEngine, to_its_end
from edge_sdk.models.onnx_training.gradient import DIRECTION, TrainingGraph, directional_graph, moving, training_graph
from edge_sdk.models.onnx_training.numpy_body import NumpyEngine
from edge_sdk.models.onnx_training.rewrites import trainable

TOLERANCE = 1e-5
"""Relative to the largest slope of a graph."""
ENGINES: Mapping[str, GraphEngine] = {"onnxruntime": OnnxEngine(), "numpy": NumpyEngine()}


@dataclass(frozen=True)
class Compared:
    """How far an engine's gradients are from torch's in double precision."""

    engine: str
    output: float
    """The largest difference of the output, as a share of what is allowed (1e-5 and 1e-4 of the number)."""
    slope: float
    """The largest difference of a slope, as a share of the largest slope."""
    own: float
    """That of torch in single precision."""


def traced(engine: GraphEngine, graph: Graph, x: np.ndarray) -> dict[str, Any]:
    """Every tensor of a pass."""
    names = [name for each in graph.nodes for name in each.outputs]
    whole = replace(graph, outputs={name: port(name) for name in names})
    held = {name: each.values() for name, each in graph.constants.items()}
    return {**held, "x": x, **dict(zip(names, engine.function(whole)({"x": x}), strict=True))}


def differentiated(engine: GraphEngine, made: Drawn) -> tuple[TrainingGraph, dict[str, np.ndarray]]:
    """The training graph, and the weights."""
    plain = made.graph()
    shapes = {name: array.shape for name, array in traced(engine, plain, made.x).items()}
    graph = trainable(plain, shapes, [*made.weights])
    tensors = traced(engine, graph, made.x)
    changing = moving(graph, frozenset([*made.weights, "x"]))
    fixed = {name: array for name, array in tensors.items() if name not in changing}
    training = training_graph(graph, made.name, [*made.weights], tensors, fixed)
    return training, {name: np.array(tensors[name]) for name in made.weights}


def slopes_by(engine: GraphEngine, made: Drawn, slope: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The output, and the slope of each weight."""
    training, weights = differentiated(engine, made)
    found = {name: np.full_like(array, np.nan) for name, array in weights.items()}
    passes = to_its_end(engine.passes(training, weights, found))
    output = passes.forward({"x": made.x})
    passes.backward(slope)
    return output, found


def adjoint_gap(engine: GraphEngine, made: Drawn, seed: int) -> float:
    """How far s . (J u) is from (J^T s) . u, as a share of |s| |J u|: by the derivative in a direction, and by slopes."""
    slope, rng = drawn_slope(made, seed), np.random.default_rng(seed)
    training, weights = differentiated(engine, made)
    direction = {name: rng.normal(size=each.shape).astype(np.float32) for name, each in weights.items()}
    given = {"x": made.x, **weights, **{DIRECTION + name: each for name, each in direction.items()}}
    given |= zip(training.forward.outputs, engine.function(training.forward)({"x": made.x, **weights}), strict=True)
    graph = directional_graph(training)
    (moved,) = engine.function(graph)({name: given[name] for name in graph.inputs})
    _, found = slopes_by(engine, made, slope)
    back = sum(np.vdot(found[name].astype(np.float64), each) for name, each in direction.items())
    return float(abs(np.vdot(slope.astype(np.float64), moved) - back) / (np.linalg.norm(slope) * np.linalg.norm(moved)))


def drawn_slope(made: Drawn, seed: int) -> np.ndarray:
    """The slope at a graph's output."""
    return np.random.default_rng(seed).normal(size=made.value[0].shape).astype(np.float32)


def away(found: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], slope: np.ndarray) -> float:
    """The largest difference of a slope, as a share of the largest one."""
    largest = max(float(np.abs(each).max(initial=0)) for each in exact.values())
    scale = max(largest, 0.1 * float(np.abs(slope).max(initial=0)))  # slopes may cancel, as those of a Softmax do
    return max(float(np.abs(found[name] - exact[name]).max(initial=0)) for name in exact) / scale


def away_in_double(made: Drawn, seed: int) -> float:
    """How far the slopes of the same training graph are from torch's, where numpy computes it in double precision.

    What is left is rounding of numbers that the graph itself holds in single precision, about 1e-8.
    """
    slope = drawn_slope(made, seed)
    for name, each in made.constants.items():
        values = each.values()
        if values.dtype == np.float32:
            made.constants[name] = Constant(name, tensor_of(name, values.astype(np.float64)), None)
    made.x = made.x.astype(np.float64)
    _, found = slopes_by(ENGINES["numpy"], made, slope.astype(np.float64))
    return away(found, made.gradients(slope)[0], slope)


def compared(made: Drawn, seed: int) -> list[Compared] | None:
    """Compare both engines with torch; None: too near to a jump, or to single precision's end, to tell."""
    expected, slope = made.value[0].detach().numpy(), drawn_slope(made, seed)
    exact, single = made.gradients(slope)
    own = away(single, exact, slope)
    if made.margin < LEAST_MARGIN or own > TOLERANCE or not np.isfinite(expected).all():
        return None
    results = []
    for name, engine in ENGINES.items():
        output, found = slopes_by(engine, made, slope)
        far = float((np.abs(output - expected) / (1e-5 + 1e-4 * np.abs(expected))).max(initial=0))
        results.append(Compared(name, far, away(found, exact, slope), own))
    return results

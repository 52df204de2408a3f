"""Each operator's backward pass against torch's autograd, and random graphs of them: by ONNX Runtime, and by numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.torch

import torch  # noqa: E402  # likewise
from drawn_graphs import LEAST_MARGIN, OPERATORS, Drawn, drawn  # noqa: E402  # only where torch is installed

from edge_sdk.models.onnx_file.graph import Graph, port  # noqa: E402  # likewise
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of  # noqa: E402  # likewise
from edge_sdk.models.onnx_runtime.onnx_engine import OnnxEngine  # noqa: E402  # only with onnxruntime
from edge_sdk.models.onnx_training.body import GraphEngine  # noqa: E402  # likewise
from edge_sdk.models.onnx_training.gradient import moving, training_graph  # noqa: E402  # likewise
from edge_sdk.models.onnx_training.numpy_body import NumpyEngine  # noqa: E402  # likewise
from edge_sdk.models.onnx_training.rewrites import trainable  # noqa: E402  # likewise

TOLERANCE = 1e-5
"""Relative to the largest slope of a graph."""
ENGINES: Mapping[str, GraphEngine] = {"onnxruntime": OnnxEngine(), "numpy": NumpyEngine()}


def traced(engine: GraphEngine, graph: Graph, x: np.ndarray) -> dict[str, Any]:
    """Every tensor of a pass."""
    names = [name for each in graph.nodes for name in each.outputs]
    whole = replace(graph, outputs={name: port(name) for name in names})
    held = {name: each.values() for name, each in graph.constants.items()}
    return {**held, "x": x, **dict(zip(names, engine.function(whole)({"x": x}), strict=True))}


def slopes_by(engine: GraphEngine, made: Drawn, slope: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The output, and the slope of each weight."""
    plain = made.graph()
    shapes = {name: array.shape for name, array in traced(engine, plain, made.x).items()}
    graph = trainable(plain, shapes, [*made.weights])
    tensors = traced(engine, graph, made.x)
    changing = moving(graph, frozenset([*made.weights, "x"]))
    fixed = {name: array for name, array in tensors.items() if name not in changing}
    training = training_graph(graph, made.name, [*made.weights], tensors, fixed)
    weights = {name: np.array(tensors[name]) for name in made.weights}
    found = {name: np.full_like(array, np.nan) for name, array in weights.items()}
    passes = engine.passes(training, weights, found)
    output = passes.forward({"x": made.x})
    passes.backward(slope)
    return output, found


def compare(made: Drawn, seed: int) -> bool:
    """Compare both engines with torch in double precision; False: too near to a jump to tell."""
    expected = made.value[0].detach().numpy()
    slope = np.random.default_rng(seed).normal(size=expected.shape).astype(np.float32)
    exact, single = made.gradients(slope)
    largest = max(float(np.abs(each).max(initial=0)) for each in exact.values())
    scale = max(largest, 0.1 * float(np.abs(slope).max(initial=0)))  # slopes may cancel, as those of a Softmax do
    own = max(float(np.abs(single[name] - exact[name]).max(initial=0)) for name in exact) / scale
    if made.margin < LEAST_MARGIN or own > TOLERANCE or not np.isfinite(expected).all():
        return False
    for name, engine in ENGINES.items():
        output, found = slopes_by(engine, made, slope)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5, err_msg=name)
        for weight, values in found.items():
            error = float(np.abs(values - exact[weight]).max(initial=0)) / scale
            assert error < max(TOLERANCE, 5 * own), (
                f"{name}: {weight} of {made.shape}: {error:.1e}, torch's own {own:.1e}"
            )
    return True


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_is_that_of_torch(operator: str) -> None:
    """In twelve draws of its attributes, alone and behind a layer."""
    told = sum(compare(drawn(names, seed), seed) for seed in range(6) for names in ([operator], ["tanh", operator]))
    assert told >= 4


@pytest.mark.parametrize("kernel", [(2, 2), (3, 2), (1, 3)])
def test_of_equal_numbers_in_a_window_the_first_gets_the_slope(kernel: tuple[int, int]) -> None:
    """As in torch: windows over even ground, such as the edge of a digit, are full of equal numbers."""
    to = Drawn(0)
    to.x = to.rng.integers(0, 3, (2, 3, 8, 7)).astype(np.float32)
    to.value = torch.from_numpy(to.x).double(), torch.from_numpy(to.x)
    name, values = to.weight(*to.shape)
    to.constants[name] = Constant(name, tensor_of(name, np.zeros(to.shape, np.float32)), None)
    for each in values:
        torch.nn.init.zeros_(each)
    to.apply("Add", [name], torch.add, values)
    to.apply("MaxPool", [], lambda x: torch.nn.functional.max_pool2d(x, kernel), kernel_shape=kernel, strides=kernel)
    assert compare(to, 1)


@pytest.mark.parametrize(
    "names", [["conv norm", "relu pool"], ["conv norm", "conv norm"], ["by channel", "by channel"]]
)
def test_forms_that_train_faster(names: list[str]) -> None:
    assert sum(compare(drawn(names, seed), seed) for seed in range(20)) >= 10


@given(st.lists(st.sampled_from(sorted(OPERATORS)), min_size=2, max_size=6), st.integers(0, 2**32 - 1))
@examples(600)
def test_random_graphs(names: list[str], seed: int) -> None:
    compare(drawn(names, seed), seed)

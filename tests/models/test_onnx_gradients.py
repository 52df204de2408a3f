"""Each operator's backward pass against torch's autograd, and random graphs of them: by ONNX Runtime, and by numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.torch

import torch
from compared_graphs import ENGINES, TOLERANCE, adjoint_gap, away_in_double, compared
from drawn_graphs import OPERATORS, Drawn, drawn

from edge_sdk.models.onnx_file.tensors import Constant, tensor_of


def compare(made: Drawn, seed: int) -> bool:
    """Compare both engines with torch in double precision; False: too near to a jump to tell."""
    found = compared(made, seed)
    for each in found or ():
        assert each.output < 1, f"{each.engine}: its output is {each.output:.1f} of what is allowed away"
        assert each.slope < max(TOLERANCE, 5 * each.own), f"{made.shape}: {each}"
    return found is not None


@pytest.mark.parametrize("operator", OPERATORS)
def test_each_operator_is_that_of_torch(operator: str) -> None:
    """In twelve draws of its attributes, alone and behind a layer."""
    told = sum(compare(drawn(names, seed), seed) for seed in range(6) for names in ([operator], ["tanh", operator]))
    assert told >= 4
    made = drawn(["tanh", operator], 0)
    assert all(adjoint_gap(engine, made, 0) < 2e-6 for engine in ENGINES.values())


@pytest.mark.parametrize(
    ("names", "seed"),
    [
        (["split", "conv transpose", "reduced", "matmul", "tanh"], 1365271234),
        (["fused attention", "hard sigmoid", "conv norm", "exp"], 1226351578),
    ],
)
def test_what_single_precision_rounds_away_is_right_in_double(names: list[str], seed: int) -> None:
    """The graphs of docs/results/random-graphs.md that are furthest from torch: by rounding alone."""
    assert max(each.slope for each in compared(drawn(names, seed), seed) or ()) > TOLERANCE
    assert away_in_double(drawn(names, seed), seed) < 1e-7


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


@pytest.mark.parametrize("times", [(2, 2), (1, 3)])
def test_numbers_that_are_repeated(times: tuple[int, int]) -> None:
    """As nn.Upsample does, and the backward pass of a pool: by slopes, and by derivatives in a direction."""
    to = Drawn(0)
    to.x = to.rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    to.value = torch.from_numpy(to.x).double(), torch.from_numpy(to.x)
    name, values = to.weight(*to.shape)
    to.apply("Mul", [name], torch.mul, values)
    scales = np.array([1, 1, *times], np.float32)
    to.constants["scales"] = Constant("scales", tensor_of("scales", scales), None)
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    scaled = tuple(map(float, times))
    to.apply("Resize", ["", "scales"], lambda x: torch.nn.functional.interpolate(x, scale_factor=scaled), **how)
    name, values = to.weight(*to.shape)
    to.apply("Mul", [name], torch.mul, values)
    assert compare(to, 1)
    assert all(adjoint_gap(engine, to, 0) < 2e-6 for engine in ENGINES.values())


@pytest.mark.parametrize(
    "names", [["conv norm", "relu pool"], ["conv norm", "conv norm"], ["by channel", "by channel"]]
)
def test_forms_that_train_faster(names: list[str]) -> None:
    assert sum(compare(drawn(names, seed), seed) for seed in range(20)) >= 10


@given(st.lists(st.sampled_from(sorted(OPERATORS)), min_size=2, max_size=6), st.integers(0, 2**32 - 1))
@examples(600)
def test_random_graphs(names: list[str], seed: int) -> None:
    compare(drawn(names, seed), seed)

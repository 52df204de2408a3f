"""Each operator in numpy beside ONNX Runtime, with the attributes that files have: the same numbers, or one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

import onnxruntime
from onnx import helper, numpy_helper

from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.models.onnx_training.numpy_body import NumpyGraph

RNG = np.random.default_rng(0)
X = RNG.normal(0, 1, (2, 3, 6, 8)).astype(np.float32)
PADS = np.array([0, 0, 1, 2, 0, 0, 2, 1])


def floats(*shape: int) -> Any:
    return RNG.normal(0, 1, shape).astype(np.float32)


def whole(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def file(operator: str, inputs: Sequence[Any], outputs: int = 1, **attributes: Any) -> bytes:
    """One operator; the first input is the file's, the others are constants."""
    names = [f"i{at}" if each is not None else "" for at, each in enumerate(inputs)]
    port = helper.make_tensor_value_info("i0", helper.np_dtype_to_tensor_dtype(inputs[0].dtype), inputs[0].shape)
    held = [numpy_helper.from_array(np.asarray(each), name) for each, name in zip(inputs, names, strict=True) if name]
    ends = [f"o{at}" for at in range(outputs)]
    made = [helper.make_node(operator, names, ends, **attributes)]
    graph = helper.make_graph(made, "g", [port], [helper.make_empty_tensor_value_info(end) for end in ends], held[1:])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()
    )


USES = {
    "padding by a mirror": ("Pad", [X, PADS], {"mode": "reflect"}),
    "padding by the edge": ("Pad", [X, PADS], {"mode": "edge"}),
    "padding in a circle": ("Pad", [X, PADS], {"mode": "wrap"}),
    "padding by a number": ("Pad", [X, PADS, np.float32(3.5)], {}),
    "a part of a shape": ("Shape", [X], {"start": 1, "end": 3}),
    "the end of a shape": ("Shape", [X], {"start": -2}),
    "a size of zero": ("Reshape", [floats(0, 4), whole(4, 0)], {"allowzero": 1}),
    "no rows": ("Flatten", [floats(0, 3, 4)], {}),
    "whole numbers divided": ("Div", [whole(-7, 7, -1), whole(2, 2, 2)], {}),
    "the rest, by sign": ("Mod", [whole(-7, 7), whole(3, 3)], {}),
    "the rest, as in C": ("Mod", [floats(5), np.float32(0.3)], {"fmod": 1}),
    "a range": ("Range", [np.array(1, np.int64), np.array(9), np.array(3)], {}),
    "a sum over no axes": ("ReduceSum", [X, whole()], {}),
    "a pool that ends outside": ("AveragePool", [X], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "one that counts padding": (
        "AveragePool",
        [X],
        {"kernel_shape": [3, 3], "strides": [3, 2], "ceil_mode": 1, "pads": [1] * 4, "count_include_pad": 1},
    ),
    "a convolution of the same size": ("Conv", [X, floats(4, 3, 3, 3)], {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    "a slice from behind": ("Slice", [X, whole(-1), whole(-100), whole(3), whole(-2)], {}),
    "places from behind": ("Gather", [X, whole(-1, 0)], {"axis": 1}),
    "layers over two axes": ("LayerNormalization", [X, floats(6, 8), floats(6, 8)], {"axis": 2}),
}


@pytest.mark.parametrize("use", USES)
def test_numbers_are_those_of_onnx_runtime(use: str) -> None:
    operator, inputs, attributes = USES[use]
    content = file(operator, inputs, **attributes)
    expected = onnxruntime.InferenceSession(content).run(None, {"i0": inputs[0]})[0]
    (found,) = NumpyGraph(read_graph(content, "file")).run({"i0": inputs[0]})
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs", "attributes", "line"),
    [
        ("ScatterND", [floats(4, 3), whole(1, 1)[:, None], floats(2, 3)], 1, {"reduction": "max"}, "ScatterND by max"),
        ("ConvTranspose", [X, floats(3, 4, 3, 3)], 1, {"auto_pad": "SAME_UPPER", "strides": [2, 3]}, "to a given size"),
        ("BatchNormalization", [X, *[floats(3) ** 2] * 4], 3, {"training_mode": 1}, "with the statistics of a batch"),
        ("MaxPool", [X], 2, {"kernel_shape": [2, 2], "storage_order": 1}, "the indices of a MaxPool in column order"),
        ("LayerNormalization", [X, floats(8), floats(8)], 3, {}, "the further output 'o1' of LayerNormalization"),
    ],
)
def test_other_uses_are_refused_in_one_line(
    operator: str, inputs: Sequence[Any], outputs: int, attributes: dict[str, Any], line: str
) -> None:
    graph = read_graph(file(operator, inputs, outputs, **attributes), "file")
    with pytest.raises(ModelError, match=rf"^file: numpy does not compute .*{line}.* here: install onnxruntime$"):
        NumpyGraph(graph).run({"i0": inputs[0]})

"""Damaged files: whatever the bytes are, a model or one line."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file import wire
from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.models.onnx_file.tensors import KINDS, Constant, tensor_of

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # only where onnx is installed
from onnx_files import changed, classifier, forest, linear_classifier, naive_bayes, written_out_softmax  # likewise

from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel  # only with onnxruntime

FILE = classifier(endings=["Softmax"])
FILES = [FILE, linear_classifier(zipmap=True), forest(strings=True), naive_bayes(), written_out_softmax()]


def opened(content: bytes) -> None:
    """Open a file; ModelError is as good as success, and any other error is not."""
    with contextlib.suppress(ModelError):
        OnnxModel(content)


@given(st.binary(max_size=200))
@examples(300)
def test_noise(content: bytes) -> None:
    with pytest.raises(ModelError):
        OnnxModel(content)


@given(st.integers(0, len(FILE) - 1))
@examples(100)
def test_truncated(length: int) -> None:
    with pytest.raises(ModelError):
        OnnxModel(FILE[:length])


@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4),
)
@examples(200)
def test_changed_bytes(file: bytes, changes: list[tuple[int, int]]) -> None:
    content = bytearray(file)
    for at, byte in changes:
        content[at % len(content)] = byte
    opened(bytes(content))


def test_an_operator_without_inputs() -> None:
    def emptied(model: Any) -> None:
        del model.graph.node[-1].input[:]

    with pytest.raises(ModelError):
        OnnxModel(changed(FILE, emptied))


def test_a_name_of_two_lines_is_one_line() -> None:
    def renamed(model: Any) -> None:
        model.opset_import.append(helper.make_opsetid("com\nacme", 1))
        model.graph.node[0].domain = "com\nacme"

    with pytest.raises(ModelError) as refused:
        OnnxModel(changed(FILE, renamed))
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=60))
@examples(300)
def test_noise_as_a_constant(content: bytes) -> None:
    with contextlib.suppress(ModelError):
        Constant("w", content, None).values()


def test_a_graph_survives_reading_and_writing() -> None:
    again = read_graph(read_graph(FILE, "m").content(), "m")
    assert again.content() == read_graph(FILE, "m").content()
    assert [node.operator for node in again.nodes] == [node.operator for node in read_graph(FILE, "m").nodes]


@pytest.mark.parametrize("kind", [k for k in KINDS if k != TensorProto.BFLOAT16])
def test_tensors_are_those_of_the_package_onnx(kind: int) -> None:
    values = np.arange(6).reshape(2, 3).astype(helper.tensor_dtype_to_np_dtype(kind))
    packed = numpy_helper.from_array(values, "w").SerializeToString()
    listed = helper.make_tensor("w", kind, [2, 3], values.ravel().tolist()).SerializeToString()
    for content in (packed, listed, tensor_of("w", values)):
        found = Constant("w", content, None).values()
        np.testing.assert_array_equal(found, values)
        assert found is not None
        assert found.dtype == values.dtype


def test_bfloat16() -> None:
    content = helper.make_tensor("w", TensorProto.BFLOAT16, [3], [1.0, -2.5, 0.0]).SerializeToString()
    np.testing.assert_array_equal(Constant("w", content, None).values(), np.array([1.0, -2.5, 0.0], np.float32))


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_survive(value: int) -> None:
    (field,) = wire.fields(memoryview(wire.put(7, value)))
    assert (field.number, field.whole) == (7, value)

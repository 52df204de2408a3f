"""Small .onnx files as other people's tools write them, made with the package onnx."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

FORMS = ("gemm", "gemm-t", "gemm-scaled", "matmul-add", "add-matmul", "matmul", "constant-nodes", "transposed", "half")
"""How the last linear layer is written."""
WIDTH = 5
CLASSES = 4


def file_of(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[str],
    constants: Sequence[Any] = (),
    *,
    opset: int = 17,
    ir_version: int = 8,
    shape: Sequence[Any] | None = None,
) -> bytes:
    """The content of a file with these nodes; outputs are declared as float of `shape`."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", list(inputs), ports, list(constants))
    opsets = [helper.make_opsetid("", opset)] if opset else []
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    return bytes(model.SerializeToString())


def classifier(
    shape: Sequence[Any] = ("n", 1, 6, 6),
    *,
    form: str = "gemm",
    endings: Sequence[str] = (),
    classes: int = CLASSES,
    kind: int = TensorProto.FLOAT,
    seed: int = 0,
    listed: bool = False,
) -> bytes:
    """Flatten, a hidden layer of WIDTH with ReLU, a last layer in some form, and endings.

    `listed`: constants stand among the inputs, too, as before version 4 of the format.
    """
    rng = np.random.default_rng(seed)
    sizes = [size for size in shape[1:] or shape if isinstance(size, int)]
    d = int(np.prod(sizes))
    constants = [
        numpy_helper.from_array(rng.normal(0, d**-0.5, (d, WIDTH)).astype(np.float32), "w1"),
        numpy_helper.from_array(rng.normal(0, 1, WIDTH).astype(np.float32), "b1"),
    ]
    nodes = [
        helper.make_node("Cast", ["x"], ["f4"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["f4"], ["flat"], axis=1 if len(shape) > 1 else 0),
        helper.make_node("Gemm", ["flat", "w1", "b1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["features"]),
    ]
    w, b = rng.normal(0, 1, (WIDTH, classes)).astype(np.float32), rng.normal(0, 1, classes).astype(np.float32)
    nodes += _last(form, w, b, constants)
    last = "logits"
    for i, operator in enumerate(endings):
        constants += [numpy_helper.from_array(np.array([-1, classes]), "shape")] if operator == "Reshape" else []
        attributes = {"axis": 1} if operator in {"Softmax", "LogSoftmax"} else {}
        more = ["shape"] if operator == "Reshape" else []
        nodes.append(helper.make_node(operator, [last, *more], [f"end{i}"], **attributes))
        last = f"end{i}"
    inputs = [helper.make_tensor_value_info("x", kind, list(shape))]
    if listed:
        inputs += [helper.make_tensor_value_info(c.name, c.data_type, list(c.dims)) for c in constants]
    return file_of(nodes, inputs, [last], constants, ir_version=3 if listed else 8, opset=8 if listed else 17,
                   shape=["m", classes])  # fmt: skip


def _last(form: str, w: np.ndarray, b: np.ndarray, constants: list[Any]) -> list[Any]:
    """Nodes from `features` to `logits`."""
    named = {"w2": w, "b2": b}
    if form == "gemm-t":
        nodes = [helper.make_node("Gemm", ["features", "w2", "b2"], ["logits"], transB=1)]
        named["w2"] = np.ascontiguousarray(w.T)
    elif form == "gemm-scaled":
        nodes = [helper.make_node("Gemm", ["features", "w2", "b2"], ["logits"], alpha=2.0, beta=0.5)]
    elif form == "matmul":
        nodes, named = [helper.make_node("MatMul", ["features", "w2"], ["logits"])], {"w2": w}
    elif form in {"matmul-add", "add-matmul"}:
        order = ["product", "b2"] if form == "matmul-add" else ["b2", "product"]
        nodes = [
            helper.make_node("MatMul", ["features", "w2"], ["product"]),
            helper.make_node("Add", order, ["logits"]),
        ]
    elif form == "constant-nodes":
        values = [helper.make_node("Constant", [], [n], value=numpy_helper.from_array(v)) for n, v in named.items()]
        nodes, named = [*values, helper.make_node("Gemm", ["features", "w2", "b2"], ["logits"])], {}
    elif form == "transposed":
        named["w2"] = np.ascontiguousarray(w.T)
        nodes = [
            helper.make_node("Transpose", ["w2"], ["w2t"], perm=[1, 0]),
            helper.make_node("Gemm", ["features", "w2t", "b2"], ["logits"]),
        ]
    elif form == "half":  # weights are stored in 2 bytes, and used in 4
        named["w2"] = w.astype(np.float16)
        nodes = [
            helper.make_node("Cast", ["w2"], ["w2f4"], to=TensorProto.FLOAT),
            helper.make_node("Gemm", ["features", "w2f4", "b2"], ["logits"]),
        ]
    else:
        nodes = [helper.make_node("Gemm", ["features", "w2", "b2"], ["logits"])]
    constants += [numpy_helper.from_array(values, name) for name, values in named.items()]
    return nodes


def answers(file: bytes, x: np.ndarray, name: str = "x") -> np.ndarray:
    """What ONNX Runtime gives for the whole file."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {name: x})[0])


def changed(file: bytes, change: Any) -> bytes:
    """The file after `change` of its ModelProto."""
    model = onnx.load_from_string(file)
    change(model)
    return bytes(model.SerializeToString())

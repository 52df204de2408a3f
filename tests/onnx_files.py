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


def ml_file(
    nodes: Sequence[Any],
    outputs: Sequence[Any],
    constants: Sequence[Any] = (),
    *,
    width: int = WIDTH,
    kind: int = TensorProto.FLOAT,
) -> bytes:
    """The content of a file that uses the operators of ai.onnx.ml, as skl2onnx writes them: x (n, width)."""
    port = helper.make_tensor_value_info("x", kind, [None, width])
    graph = helper.make_graph(list(nodes), "g", [port], list(outputs), list(constants))
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def ml_node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """A node of ai.onnx.ml."""
    return helper.make_node(operator, inputs, outputs, domain="ai.onnx.ml", **attributes)


def float_port(name: str, *shape: Any) -> Any:
    """An output f4."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape or None)


def label_port(name: str = "label", *, strings: bool = False) -> Any:
    """An output of labels (n,)."""
    return helper.make_tensor_value_info(name, TensorProto.STRING if strings else TensorProto.INT64, [None])


def forest(
    trees: int = 3, *, classes: int = CLASSES, post_transform: str = "NONE", zipmap: bool = False, strings: bool = False
) -> bytes:
    """An ensemble of stumps, as RandomForestClassifier and LightGBM are written: each leaf has a weight for each class.

    Without post_transform, the weights of all trees are probabilities.
    """
    rng = np.random.default_rng(0)
    leaves = rng.dirichlet(np.full(classes, 0.3), (trees, 2)) / trees
    if post_transform != "NONE":
        leaves = rng.normal(size=leaves.shape)
    labels: dict[str, Any] = {"classlabels_int64s": [*range(classes)]}
    if strings:
        labels = {"classlabels_strings": [f"kind {i}" for i in range(classes)]}
    scores = "scores" if zipmap else "probabilities"
    nodes = [
        ml_node(
            "TreeEnsembleClassifier",
            ["x"],
            ["label", scores],
            **labels,
            post_transform=post_transform,
            nodes_treeids=np.repeat(np.arange(trees), 3).tolist(),
            nodes_nodeids=[0, 1, 2] * trees,
            nodes_featureids=np.repeat(np.arange(trees) % WIDTH, 3).tolist(),
            nodes_values=[0.5, 0.0, 0.0] * trees,
            nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * trees,
            nodes_truenodeids=[1, 0, 0] * trees,
            nodes_falsenodeids=[2, 0, 0] * trees,
            class_treeids=np.repeat(np.arange(trees), 2 * classes).tolist(),
            class_nodeids=np.tile(np.repeat([1, 2], classes), trees).tolist(),
            class_ids=[*range(classes)] * 2 * trees,
            class_weights=leaves.ravel().tolist(),
        )
    ]
    return ml_file(*with_zipmap(nodes, labels, zipmap=zipmap, strings=strings))


def with_zipmap(
    nodes: list[Any], labels: dict[str, Any], *, zipmap: bool, strings: bool
) -> tuple[list[Any], list[Any]]:
    """Nodes and outputs of a classifier with label and scores; zipmap: as a sequence of maps."""
    if not zipmap:
        return nodes, [label_port(strings=strings), float_port("probabilities", None, None)]
    names = {"classlabels_ints": "classlabels_int64s"}
    labels = {names.get(name, name): values for name, values in labels.items()}
    kind = TensorProto.STRING if strings else TensorProto.INT64
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(kind, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    nodes = [*nodes, ml_node("ZipMap", ["scores"], ["probabilities"], **labels)]
    return nodes, [label_port(strings=strings), helper.make_value_info("probabilities", maps)]


def linear_classifier(
    post_transform: str = "SOFTMAX",
    *,
    classes: int = CLASSES,
    normalised: bool = True,
    zipmap: bool = False,
    strings: bool = False,
    kind: int = TensorProto.FLOAT,
) -> bytes:
    """A LogisticRegression, as skl2onnx writes it; two classes with LOGISTIC have opposite rows."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(classes, WIDTH + 1))
    if classes == 2 and post_transform == "LOGISTIC":
        rows[0] = -rows[1]
    labels: dict[str, Any] = {"classlabels_ints": [*range(classes)]}
    if strings:
        labels = {"classlabels_strings": [f"kind {i}" for i in range(classes)]}
    last = "scores" if zipmap else "probabilities"
    nodes = [
        ml_node(
            "LinearClassifier",
            ["x"],
            ["label", "raw" if normalised else last],
            coefficients=rows[:, :-1].ravel().tolist(),
            intercepts=rows[:, -1].tolist(),
            multi_class=int(classes > 2),
            post_transform=post_transform,
            **labels,
        )
    ]
    nodes += [ml_node("Normalizer", ["raw"], [last], norm="L1")] if normalised else []
    return ml_file(*with_zipmap(nodes, labels, zipmap=zipmap, strings=strings), kind=kind)


def naive_bayes() -> bytes:
    """A label that is decided before the probabilities, and looked up in a constant: exp(z - log sum exp z)."""
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.normal(size=(WIDTH, CLASSES)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.normal(size=CLASSES).astype(np.float32), "b"),
        numpy_helper.from_array(rng.normal(size=CLASSES).astype(np.float32), "prior"),
        numpy_helper.from_array(np.arange(10, 10 + CLASSES), "classes"),
        numpy_helper.from_array(np.array([-1]), "flat"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Add", ["sum", "prior"], ["joint"]),
        helper.make_node("ArgMax", ["joint"], ["index"], axis=1),
        ml_node("ArrayFeatureExtractor", ["classes", "index"], ["found"]),
        helper.make_node("Reshape", ["found", "flat"], ["label"]),
        helper.make_node("ReduceLogSumExp", ["joint"], ["total"], axes=[1]),
        helper.make_node("Sub", ["joint", "total"], ["logs"]),
        helper.make_node("Exp", ["logs"], ["probabilities"]),
    ]
    return ml_file(nodes, [label_port(), float_port("probabilities", None, CLASSES)], constants)


def written_out_softmax() -> bytes:
    """A Softmax as jax writes it, exp(z - max z) over its sum, on a linear layer."""

    def unnamed(model: Any) -> None:
        graph = model.graph
        constants = {"one": np.array([1])}
        graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in constants.items())
        graph.node.extend([
            helper.make_node("ReduceMax", ["logits"], ["top"], axes=[1], keepdims=1),
            helper.make_node("Sub", ["logits", "top"], ["shifted"]),
            helper.make_node("Exp", ["shifted"], ["exp"]),
            helper.make_node("ReduceSum", ["exp", "one"], ["total"], keepdims=1),
            helper.make_node("Div", ["exp", "total"], ["probabilities"]),
        ])  # fmt: skip
        del graph.output[:]
        graph.output.append(float_port("probabilities", "n", CLASSES))

    return changed(classifier(("n", WIDTH)), unnamed)

"""The last layer of a classifier in a graph: where it is, what it holds, and how a trained one is put in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.graph import Graph, Node, node, rows_port
from edge_sdk.models.onnx_file.tensors import KINDS, Constant, as_floats, tensor_of

_SAME_NUMBERS = {"Identity", "Dropout", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Cast"}
"""Operators that hand on the numbers of their first input in their order."""
_NORMALISING = {"Softmax", "LogSoftmax"}
_BOUNDED = {"Relu", "Clip", "LeakyRelu", "Elu", "HardSwish", "HardSigmoid", "Tanh", "Gelu"}
"""Operators that no classifier ends in: what they give are features."""


@dataclass(frozen=True, slots=True, eq=False)
class OutputLayer:
    """A linear layer with constant weights, of which an output is a function without weights."""

    features: str
    """The tensor that it takes."""
    logits: str
    """The tensor that it gives."""
    rows: Floats  # (k, d + 1), the bias as last column
    operators: tuple[Node, ...]
    dtype: np.dtype[Any]
    """The type of its weights in the file."""


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """How a graph turns into an output."""

    output: str
    logits: str
    """The tensor before a Softmax, LogSoftmax or Sigmoid at the end; without one, the output."""
    cut: str
    """The operator between the two; "": none."""
    layer: OutputLayer | None
    bounded: bool
    """Whether an activation gives the output, so that it cannot be logits."""


def ending_of(graph: Graph, output: str) -> Ending:
    """Describe how a graph ends at an output.  Raises ModelError for a Softmax over the samples of a batch."""
    logits, cut = output, ""
    last = _maker(graph, output)
    if last is not None and last.operator in {*_NORMALISING, "Sigmoid"}:
        if last.operator != "Sigmoid" and last.number("axis", -1) == 0:
            raise ModelError(
                f"{graph.name}: its {last.operator} is over the samples of a batch (axis 0): export it over the classes"
            )
        logits, cut = last.inputs[0], last.operator
        last = _maker(graph, logits)
    return Ending(output, logits, cut, _layer(graph, last), last is not None and last.operator in _BOUNDED)


def _maker(graph: Graph, name: str) -> Node | None:
    """Return the operator that computed the numbers of a tensor; those that only hand them on are passed over."""
    found = graph.producer(name)
    while found is not None and found.operator in _SAME_NUMBERS and found.inputs and found.outputs[0] == name:
        name = found.inputs[0]
        found = graph.producer(name)
    return found


def _layer(graph: Graph, last: Node | None) -> OutputLayer | None:
    """Return the linear layer that ends in an operator: Gemm, MatMul, or Add after MatMul."""
    if last is None:
        return None
    if last.operator == "Gemm":
        return _gemm(graph, last)
    if last.operator == "MatMul":
        return _matmul(graph, last, None, (last,))
    if last.operator == "Add" and len(last.inputs) == 2:
        for bias, other in (last.inputs, last.inputs[::-1]):
            before = graph.producer(other)
            held = _constant(graph, bias)
            if held is not None and before is not None and before.operator == "MatMul":
                return _matmul(graph, before, held, (before, last))
    return None


def _gemm(graph: Graph, last: Node) -> OutputLayer | None:
    weights = _constant(graph, last.inputs[1])
    bias = _constant(graph, last.inputs[2]) if len(last.inputs) > 2 and last.inputs[2] else np.zeros(1, np.float32)
    if weights is None or bias is None or last.number("transA", 0):
        return None
    factors = weights if last.number("transB", 0) else weights.T
    return _joined(
        last.inputs[0], factors * last.number("alpha", 1.0), bias * last.number("beta", 1.0), (last,), weights.dtype
    )


def _matmul(graph: Graph, product: Node, bias: NDArray[Any] | None, operators: tuple[Node, ...]) -> OutputLayer | None:
    weights = _constant(graph, product.inputs[1])
    if weights is None:
        return None
    held = np.zeros(1, np.float32) if bias is None else bias
    return _joined(product.inputs[0], weights.T, held, operators, weights.dtype)


def _joined(
    features: str, factors: NDArray[Any], bias: NDArray[Any], operators: tuple[Node, ...], dtype: np.dtype[Any]
) -> OutputLayer | None:
    """Return the layer with factors (k, d) and a bias of one number or k; None for other shapes."""
    if factors.ndim != 2 or bias.size not in (1, len(factors)):
        return None
    column = np.broadcast_to(bias.reshape(-1), (len(factors),))
    rows = np.column_stack([factors, column]).astype(np.float32)
    return OutputLayer(features, operators[-1].outputs[0], rows, operators, dtype)


def _constant(graph: Graph, name: str) -> NDArray[Any] | None:
    """Return the floating-point values of a constant, also behind Identity, Cast and Transpose."""
    tensor = graph.constant(name)
    if tensor is not None:
        values = tensor.values()
        return values if as_floats(values) is not None else None
    maker = graph.producer(name)
    if maker is None or maker.operator not in {"Identity", "Cast", "Transpose"}:
        return None
    values = _constant(graph, maker.inputs[0])
    if values is None:
        return None
    if maker.operator == "Cast":
        kind = KINDS.get(int(maker.number("to", 0)), "")
        return values.astype(kind) if kind.startswith("<f") else None
    return values.T if maker.operator == "Transpose" and values.ndim == 2 else values


# -- a trained head, written back -----------------------------------------------------------------------------------


def with_rows(graph: Graph, layer: OutputLayer, rows: Floats) -> Graph:
    """Return the graph with other weights in its last layer: rows (k, d + 1); all else stays as it is."""
    first, last = layer.operators[0], layer.operators[-1]
    at = graph.nodes.index(last)
    new, constants = _linear(layer.features, layer.logits, rows.astype(layer.dtype), _unused(graph))
    nodes = [*graph.nodes[:at], *new, *graph.nodes[at + 1 :]]
    changed = replace(
        graph,
        nodes=tuple(each for each in nodes if each is not first),
        constants={**graph.constants, **constants},
    )
    return replace(changed.up_to(tuple(graph.outputs)), inputs=graph.inputs)


def with_new_head(graph: Graph, features: str, rows: Floats, *, unit: bool, output: str, then: str = "") -> Graph:
    """Return the graph up to its features (n, ...) under a new last layer, rows (k, d + 1), which gives `output`.

    unit: whether features are divided by their length, as before a cosine head.  then: the operator that follows the
    layer, Softmax, LogSoftmax or Sigmoid; "": none.
    """
    body, source, own = graph.up_to([features]), features, _unused(graph)
    if features == output:  # the name is for what the new layer gives
        source = f"{own}.source"
        body = replace(body, nodes=tuple(each.renamed(features, source) for each in body.nodes))
    shape = Constant(f"{own}.shape", tensor_of(f"{own}.shape", np.array([-1, rows.shape[1] - 1], np.int64)), None)
    nodes = [
        node("Reshape", [source, shape.name], f"{own}.flat"),
        node("Cast", [f"{own}.flat"], f"{own}.features", to=1),
    ]
    if unit:
        nodes.append(node("LpNormalization", [f"{own}.features"], f"{own}.unit", axis=1, p=2))
    linear, constants = _linear(f"{own}.unit" if unit else f"{own}.features", f"{own}.logits" if then else output,
                                rows, own)  # fmt: skip
    nodes += linear
    if then:
        nodes.append(node(then, [f"{own}.logits"], output, **({} if then == "Sigmoid" else {"axis": 1})))
    held = {**body.constants, **constants, shape.name: shape}
    ports = {output: rows_port(output, len(rows))}
    whole = replace(body, nodes=(*body.nodes, *nodes), constants=held, outputs=ports)
    return replace(whole.up_to([output]), inputs=graph.inputs)


def _linear(features: str, logits: str, rows: NDArray[Any], own: str) -> tuple[list[Node], Mapping[str, Constant]]:
    """Return the operators and constants of a linear layer, for features of any rank; `own` begins their names."""
    values = {f"{own}.weight": rows[:, :-1].T, f"{own}.bias": rows[:, -1]}
    weight, bias = values
    nodes = [node("MatMul", [features, weight], f"{own}.product"), node("Add", [f"{own}.product", bias], logits)]
    return nodes, {name: Constant(name, tensor_of(name, held), None) for name, held in values.items()}


def _unused(graph: Graph) -> str:
    """Return the beginning of names that the graph does not use yet."""
    used = {*graph.constants, *(name for each in graph.nodes for name in each.outputs)}
    for number in range(len(used) + 1):
        own = f"edge_sdk{number or ''}"
        if not any(name.startswith(f"{own}.") for name in used):
            break
    return own

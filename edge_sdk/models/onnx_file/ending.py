"""How a graph ends at an output: its last linear layer, and what turns logits into what it gives."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.graph import Graph
from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_file.tensors import KINDS, as_floats

_SAME_NUMBERS = {"Identity", "Dropout", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Cast"}
"""Operators that hand on the numbers of their first input in their order."""
_NORMALISING = {"Softmax", "LogSoftmax"}
_QUANTISING = {"QuantizeLinear", "DequantizeLinear"}
_SAME_IN_ROWS = _SAME_NUMBERS | {"Expand", "Max"}
"""Operators between the maximum or the sum of a row and where a Softmax that is written out uses it."""
_PICKS = {"ai.onnx.ml.ArrayFeatureExtractor", "Gather"}
"""Operators that give the label at an index, their second input."""
CLASSIFIER = "ai.onnx.ml.LinearClassifier"
_BOUNDED = {"Relu", "Clip", "LeakyRelu", "Elu", "HardSwish", "HardSigmoid", "Tanh", "Gelu"}
"""Operators with which classifiers do not end: their outputs are features."""


@dataclass(frozen=True, slots=True, eq=False)
class OutputLayer:
    """A linear layer with constant weights; no other weights lie between it and the output."""

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
    scores: str
    """The tensor of one number for each class that a new last layer would give."""
    cut: str = ""
    """The operator between logits and the output, or ""."""
    then: str = ""
    """The operator that turns logits into `scores`, or "" if they are logits, as far as the structure shows."""
    layer: OutputLayer | None = None
    bounded: bool = False
    """Whether the output comes from an activation, and so cannot be logits."""
    guessed: bool = False
    """Whether the layer must still be compared with what the file gives: other operators could look the same."""


def ending_of(graph: Graph, output: str, tensor: str) -> Ending:
    """Describe how a graph ends at an output, or at the tensor behind it.

    Raises ModelError for a Softmax over the samples of a batch, and for scores that contradict the label.
    """
    last = _maker(graph, tensor, _SAME_NUMBERS | _QUANTISING)
    normalised = last is not None and _divides_by_sum(last)
    if last is not None and normalised:  # by 1, behind a Softmax
        before = _maker(graph, last.inputs[0], _SAME_NUMBERS | _QUANTISING)
        last = before if before is not None and before.operator in ("Softmax", CLASSIFIER) else last
    if last is not None and last.operator in {*_NORMALISING, "Sigmoid"}:
        if last.operator != "Sigmoid" and last.number("axis", -1) == 0:
            raise ModelError(
                f"{graph.name}: its {last.operator} is over the samples of a batch (axis 0): export it over the classes"
            )
        logits, cut = last.inputs[0], last.operator
        last = _maker(graph, logits)
        return Ending(output, logits, cut, "", _layer(graph, last), last is not None and last.operator in _BOUNDED)
    found = _linear_classifier(last, output, normalised=normalised) or _written_out(graph, output, tensor)
    if found is not None:
        return found
    last = _maker(graph, tensor)
    if last is not None and _contradicts(last):
        raise ModelError(
            f"{graph.name}: of its two classes, the one with the lower score is the label, as a support vector machine "
            "without probabilities gives it: export it with probabilities (probability=True)"
        )
    return Ending(output, tensor, layer=_layer(graph, last), bounded=last is not None and last.operator in _BOUNDED)


def chosen_endings(graph: Graph, output: str | None, classes: int | None) -> list[Ending]:
    """Return the endings of the outputs that may be meant; several only where the structure does not decide.

    An output behind a linear layer or a Softmax is preferred; of several, those with as many classes, and of those, the
    ones from which no other is computed.
    """
    found = [ending_of(graph, *each) for each in graph.score_outputs(output).items()]
    clear = [each for each in found if each.layer or each.cut]
    if classes is not None and len(clear) > 1:
        clear = [each for each in clear if each.layer and len(each.layer.rows) == classes] or clear
    last = [each for each in clear if not any(graph.needs(other.output, each.output) for other in clear)]
    alike = {each.layer.logits if each.layer else each.scores for each in last}
    return last[:1] if len(alike) == 1 else last or found


def class_labels(graph: Graph, width: int) -> tuple[int | str, ...]:
    """Return the file's class names, in the order of its scores, or () if it has none."""
    for name in graph.outputs:
        maker, _ = decides(graph, name, picked=False)
        labels = () if maker is None else maker.class_labels()
        if maker is not None and maker.operator in _PICKS and (held := graph.constant(maker.inputs[0])) is not None:
            labels = held.listed()
        if len(labels) == width:
            return labels
    return ()


def decides(graph: Graph, name: str, *, picked: bool = True) -> tuple[Node | None, str]:
    """Return the operator that decides a label, and its output that does; picked: it may be looked up behind that."""
    maker, name = _traced(graph, name)
    while picked and maker is not None and maker.operator in _PICKS and len(maker.inputs) > 1:
        maker, name = _traced(graph, maker.inputs[1])
    return maker, name


def _maker(graph: Graph, name: str, passed: Collection[str] = _SAME_NUMBERS) -> Node | None:
    """Return the operator that computed the numbers of a tensor; those that only hand them on are passed over."""
    return _traced(graph, name, passed)[0]


def _traced(graph: Graph, name: str, passed: Collection[str] = _SAME_NUMBERS) -> tuple[Node | None, str]:
    """Return what computed the numbers of a tensor, and the tensor that it gave them in."""
    found = graph.producer(name)
    while found is not None and found.operator in passed and found.inputs and found.outputs[0] == name:
        name = found.inputs[0]
        found = graph.producer(name)
    return found if found is not None and found.inputs else None, name


def _divides_by_sum(node: Node) -> bool:
    """Return whether an operator divides rows that are not negative by their sum."""
    return node.text("norm") == "L1" or (node.operator == "LpNormalization" and node.number("p", 2) == 1)


def _contradicts(node: Node) -> bool:
    """Return whether an operator gives the lower score to the class that it chooses, as ONNX Runtime computes it."""
    pair = node.operator == "ai.onnx.ml.SVMClassifier" and len(node.class_labels()) == 2
    return pair and "prob_a" not in node.attributes


def _linear_classifier(maker: Node | None, output: str, *, normalised: bool) -> Ending | None:
    """Return the ending of a LinearClassifier of ai.onnx.ml, as scikit-learn's linear models are written."""
    if maker is None or maker.operator != CLASSIFIER or len(maker.outputs) < 2:
        return None
    factors, bias = maker.floats("coefficients"), maker.floats("intercepts")
    k, after = len(maker.class_labels()), maker.text("post_transform") or "NONE"
    if k < 2 or not factors.size or factors.size % k or bias.size not in (0, k):
        return None
    rows = np.column_stack([factors.reshape(k, -1), bias if bias.size else np.zeros(k)]).astype(np.float32)
    if after == "LOGISTIC" and k == 2 and np.array_equal(rows[0], -rows[1]):  # each of both is 1 less the other
        rows[0] = 0
        after = "SOFTMAX"
    cut = {"NONE": "", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}.get(after)
    if cut is None or (cut == "Sigmoid" and normalised):
        return None
    layer = OutputLayer(maker.inputs[0], maker.outputs[1], rows, (maker,), np.dtype(np.float32))
    return Ending(output, maker.outputs[1], cut, cut, layer, guessed=True)


def _written_out(graph: Graph, output: str, tensor: str) -> Ending | None:
    """Return the ending of a Softmax over a linear layer that is written in its parts: exp(z - max) / sum."""
    division = _maker(graph, tensor)
    if division is None or division.operator != "Div":
        return None
    above, below = _maker(graph, division.inputs[0]), _maker(graph, division.inputs[1], _SAME_IN_ROWS)
    if above is None or above.operator != "Exp" or below is None or below.operator != "ReduceSum":
        return None
    logits = above.inputs[0]
    shifted = _maker(graph, logits)
    if shifted is not None and shifted.operator == "Sub":
        logits = shifted.inputs[0]
    layer = _layer(graph, _maker(graph, logits))
    return None if layer is None else Ending(output, logits, "Softmax", "", layer, guessed=True)


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
    """Return the layer with factors (k, d) and a bias of one number or k, or None for other shapes."""
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

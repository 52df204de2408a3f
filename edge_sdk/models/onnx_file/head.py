"""A trained last layer, written into the graph of a classifier or over the features of an extractor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.models.onnx_file.ending import CLASSIFIER, OutputLayer, decides
from edge_sdk.models.onnx_file.graph import Graph, rows_port
from edge_sdk.models.onnx_file.node import Node, node
from edge_sdk.models.onnx_file.tensors import FLOAT, KIND_OF, Constant, strings_of, tensor_of


@dataclass(frozen=True, slots=True, eq=False)
class HeadPlace:
    """Where a new last layer comes in a graph that has one already."""

    features: str
    """The tensor that it takes."""
    scores: str
    """The tensor that it replaces."""
    then: str = ""
    """The operator that follows it, Softmax, LogSoftmax or Sigmoid, or ""."""
    least: float | None = None
    """The layer takes the logarithm of the features, raised to at least this; or the features themselves if None."""
    dtype: np.dtype[Any] = FLOAT
    """The type of `scores`."""


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The constants of a file that are its last layer."""

    weight: str
    bias: str
    turned: bool
    """Whether the weight is stored as (d, k); else (k, d)."""

    def of_rows(self, rows: Floats) -> dict[str, Floats]:
        """Return the values of both for rows (k, d + 1)."""
        return {self.weight: rows[:, :-1].T if self.turned else rows[:, :-1], self.bias: rows[:, -1]}


def weights_of_layer(graph: Graph, layer: OutputLayer) -> HeadWeights | None:
    """Return the f4 constants of a layer, or None where it scales them, lacks a bias, or has them in another form."""
    first, last = layer.operators[0], layer.operators[-1]
    if len(first.inputs) < 2:  # it holds the weights as attributes, as scikit-learn's linear classifiers do
        return None
    weight, turned = _stored(graph, first.inputs[1])
    if first.operator == "Gemm":
        if first.number("alpha", 1.0) != 1 or first.number("beta", 1.0) != 1 or len(first.inputs) < 3:
            return None
        bias, turned = first.inputs[2], turned != (not first.number("transB", 0))
    elif first.operator == "MatMul" and len(last.inputs) == 2 and last is not first:
        bias = next(name for name in last.inputs if name != first.outputs[0])
        turned = not turned
    else:
        return None
    held = [None if each is None else each.values() for each in (graph.constant(weight), graph.constant(bias))]
    shapes = [(len(layer.rows), layer.rows.shape[1] - 1)[:: -1 if turned else 1], (len(layer.rows),)]
    plain = all(a is not None and a.dtype == FLOAT and a.shape == s for a, s in zip(held, shapes, strict=True))
    return HeadWeights(weight, bias, turned) if plain else None


def constants_of_layer(graph: Graph, layer: OutputLayer) -> frozenset[str]:
    """Return the constants of a file that hold numbers of its last layer, in any form."""
    own = {layer.features, *(name for each in layer.operators for name in each.outputs)}
    taken = {name for each in layer.operators for name in each.inputs if name and name not in own}
    held = (each for name in taken for each in graph.up_to([name]).constants.values())
    values = ((each.name, each.values()) for each in held)
    return frozenset(name for name, array in values if array is not None and array.dtype.kind == "f" and array.size > 1)


def _stored(graph: Graph, name: str) -> tuple[str, bool]:
    """Return the constant behind a tensor, and whether it is transposed on the way."""
    maker = graph.producer(name)
    if maker is not None and maker.operator == "Transpose":
        return maker.inputs[0], True
    return name, False


def as_floats_in(graph: Graph, tensor: str, least: float | None) -> Graph:
    """Return the part up to a tensor as f4, or up to its logarithm if `least` is given, raised to that first."""
    own = _unused(graph)
    nodes, constants, name = _floats(tensor, least, own)
    body = replace(graph, nodes=(*graph.nodes, *nodes), constants={**graph.constants, **constants})
    return body.up_to([name])


def with_rows(graph: Graph, layer: OutputLayer, rows: Floats) -> Graph:
    """Return the graph with other weights in its last layer: rows (k, d + 1).  Everything else stays unchanged."""
    first, last = layer.operators[0], layer.operators[-1]
    at = graph.nodes.index(last)
    new, constants = _linear(layer.features, layer.logits, rows.astype(layer.dtype), _unused(graph))
    if last.operator == CLASSIFIER:
        if last.text("post_transform") == "LOGISTIC" and len(rows) == 2:  # each of both is 1 less the other
            rows = np.stack([rows[0] - rows[1], rows[1] - rows[0]])
        new, constants = [last.with_floats({"coefficients": rows[:, :-1].ravel(), "intercepts": rows[:, -1]})], {}
    nodes = [*graph.nodes[:at], *new, *graph.nodes[at + 1 :]]
    changed = replace(
        graph,
        nodes=tuple(each for each in nodes if each is not first),
        constants={**graph.constants, **constants},
    )
    return replace(changed.up_to(tuple(graph.outputs)), inputs=graph.inputs)


def with_new_head(graph: Graph, features: str, rows: Floats, *, unit: bool, output: str) -> Graph:
    """Return the graph up to its features (n, ...) under a new last layer, rows (k, d + 1), which gives `output`.

    Outputs that are computed from the features go, all others stay.  unit: whether features are divided by their
    length, as before a cosine head.
    """
    kept = {name: raw for name, raw in graph.outputs.items() if name != output and not graph.needs(name, features)}
    body, source, own = graph.up_to([features, *kept]), features, _unused(graph)
    if features == output and body.producer(features) is not None:  # the name is for what the new layer gives
        source = f"{own}.source"
        body = replace(body, nodes=tuple(each.renamed(features, source) for each in body.nodes))
    elif output in {*body.constants, *(name for each in body.nodes for name in each.outputs)}:
        output = f"{own}.{output}"
    nodes, constants = _head(source, rows, own, output, unit=unit)
    whole = replace(
        body,
        nodes=(*body.nodes, *nodes),
        constants={**body.constants, **constants},
        outputs={output: rows_port(output, len(rows)), **kept},
    )
    return replace(whole.up_to([*whole.outputs]), inputs=graph.inputs)


def with_head_at(graph: Graph, place: HeadPlace, rows: Floats, *, unit: bool) -> Graph:
    """Return the graph with a new last layer, rows (k, d + 1), in the place of a tensor; what that decides follows it.

    Labels that were decided before the tensor, or beside it, are decided by the new one.
    """
    own, scores = _unused(graph), place.scores
    old = f"{own}.source"
    nodes = [each.renamed(scores, old) if scores in each.outputs else each for each in graph.nodes]
    source = old if place.features == scores else place.features
    found = f"{own}.scores"
    new, constants = _head(source, rows, own, found, unit=unit, least=place.least)
    if place.then:
        new.append(node(place.then, [found], f"{own}.normal", **({} if place.then == "Sigmoid" else {"axis": 1})))
        found = f"{own}.normal"
    kind = KIND_OF[place.dtype]
    new += [
        node("Shape", [old], f"{own}.old_shape"),
        node("Reshape", [found, f"{own}.old_shape"], f"{own}.shaped"),
        node("Cast", [f"{own}.shaped"], scores, to=kind),
    ]
    changed = replace(graph, nodes=tuple(nodes), constants={**graph.constants, **constants})
    deciding = scores
    if len(rows) == 1:  # class 1 where the only score is positive
        deciding = f"{own}.both"
        new += [
            node("Sub", [f"{own}.scores", f"{own}.scores"], f"{own}.zeros"),
            node("Concat", [f"{own}.zeros", f"{own}.scores"], deciding, axis=1),
        ]
    changed = _labels_follow(changed, scores, old, own, deciding)
    after, moved = {scores, deciding}, []
    for each in changed.nodes:
        if after.intersection((*each.inputs, *each.captured)):
            after.update(filter(None, each.outputs))  # "": an output that is left out
            moved.append(each)
    later = {id(each) for each in moved}
    first = [each for each in changed.nodes if id(each) not in later]
    changed = replace(changed, nodes=(*first, *new, *moved))
    return replace(changed.up_to(tuple(graph.outputs)), inputs=graph.inputs)


def _labels_follow(graph: Graph, scores: str, old: str, own: str, deciding: str) -> Graph:
    """Return the graph with labels that were decided by old scores, decided by the highest of the tensor `deciding`."""
    nodes, constants = [*graph.nodes], dict(graph.constants)
    for name in graph.outputs:
        decider, label = decides(graph, name)
        if decider not in nodes or label != decider.outputs[0] or scores == name or graph.needs(name, scores):
            continue
        at, beside = nodes.index(decider), [*decider.inputs[:1], *decider.outputs]
        if old not in decider.outputs and not any(graph.needs(old, each) for each in beside):
            continue  # of something else
        if decider.operator == "ArgMax":
            nodes[at] = decider.reading(deciding)
        elif decider.class_labels():
            held = f"{own}.labels"
            constants[held] = Constant(held, _labels_tensor(held, decider.class_labels()), None)
            nodes[at : at + 1] = [
                decider.renamed(label, f"{own}.old_label"),
                node("ArgMax", [deciding], f"{own}.class", axis=1, keepdims=0),
                node("Gather", [held, f"{own}.class"], label),
            ]
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _labels_tensor(name: str, labels: tuple[int | str, ...]) -> bytes:
    whole = [each for each in labels if isinstance(each, int)]
    return tensor_of(name, np.array(whole, np.int64)) if whole else strings_of(name, [str(each) for each in labels])


def _floats(tensor: str, least: float | None, own: str) -> tuple[list[Node], dict[str, Constant], str]:
    """Return operators that give a tensor as f4, or its logarithm, with their constants, and the name of the result."""
    nodes = [node("Cast", [tensor], f"{own}.floats", to=1)]
    if least is None:
        return nodes, {}, f"{own}.floats"
    floor = Constant(f"{own}.least", tensor_of(f"{own}.least", np.array([least], np.float32)), None)
    nodes += [
        node("Max", [f"{own}.floats", floor.name], f"{own}.positive"),
        node("Log", [f"{own}.positive"], f"{own}.logs"),
    ]
    return nodes, {floor.name: floor}, f"{own}.logs"


def _head(
    source: str, rows: Floats, own: str, output: str, *, unit: bool, least: float | None = None
) -> tuple[list[Node], dict[str, Constant]]:
    """Return a linear layer on features of any shape and type, and its constants; it gives `output` (n, k)."""
    shape = Constant(f"{own}.shape", tensor_of(f"{own}.shape", np.array([-1, rows.shape[1] - 1], np.int64)), None)
    floats, constants, name = _floats(f"{own}.flat", least, own)
    nodes = [node("Reshape", [source, shape.name], f"{own}.flat"), *floats]
    if unit:
        nodes.append(node("LpNormalization", [name], f"{own}.unit", axis=1, p=2))
        name = f"{own}.unit"
    linear, weights = _linear(name, output, rows, own)
    return [*nodes, *linear], {**constants, **weights, shape.name: shape}


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

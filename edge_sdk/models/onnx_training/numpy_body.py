"""Bodies that numpy alone trains: dense layers, and those of .onnx files, for boards without ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edge_sdk.errors import ModelError
from edge_sdk.models.checks import check_whole_number
from edge_sdk.models.cosine_head import CosineHead, make_head
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.models.onnx_file.ending import OutputLayer, chosen_endings
from edge_sdk.models.onnx_file.graph import Graph, OnnxFile, port, read_graph, samples_graph
from edge_sdk.models.onnx_file.head import HeadWeights, weights_of_layer, with_new_head, with_rows
from edge_sdk.models.onnx_file.inputs import Inputs, Layout, ports_of
from edge_sdk.models.onnx_file.node import node
from edge_sdk.models.onnx_file.own_constants import own_constants, with_values
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of
from edge_sdk.models.onnx_training.body import GraphBody, arranged
from edge_sdk.models.onnx_training.numpy_graph import NumpyEngine
from edge_sdk.models.trained_body import ArrangedBody, TrainedBody


@dataclass(frozen=True, slots=True, eq=False)
class NumpyParts:
    """What a model that numpy trains is made of."""

    whole: Graph
    """The file, with each weight as a constant of its own."""
    features: str
    layer: OutputLayer | None
    """Its last layer; None: the head is new."""
    held: HeadWeights | None
    """The constants that are that layer."""
    learning: ArrangedBody[GraphBody]
    head: LinearHead

    def written(self, body: TrainedBody, head: LinearHead) -> bytes:
        """Return the file with the present weights of both."""
        graph = with_values(self.whole, body.arrays_by_name())
        rows, unit = head.linear_rows(), isinstance(head, CosineHead)
        if self.held is not None and not unit:
            return with_values(graph, self.held.of_rows(rows)).content()
        if self.layer is not None and not unit:
            return with_rows(graph, self.layer, rows).content()
        output = "logits" if self.layer is None else self.layer.logits
        return with_new_head(graph, self.features, rows, unit=unit, output=output).content()


def dense_parts(
    hidden: Sequence[int],
    classes: int,
    input_shape: tuple[int, int, int],
    *,
    seed: int,
    name: str,
    head: Literal["linear", "cosine"],
) -> NumpyParts:
    """Return dense layers with a ReLU behind each, drawn from `seed` like torch's Linear, under a head.

    The weights are called as those of nn.Sequential(nn.Flatten(), nn.Linear(...), nn.ReLU(), ... nn.Linear(...)).
    """
    rng, width = np.random.default_rng(seed), int(np.prod(input_shape))
    graph = samples_graph("samples", input_shape)
    nodes, constants, tensor = [node("Flatten", ["samples"], "flat")], dict[str, Constant](), "flat"
    for at, size in enumerate(hidden):
        check_whole_number(name, "hidden", size, 1)
        names = f"{2 * at + 1}.weight", f"{2 * at + 1}.bias"
        for each, shape in zip(names, ((size, width), (size,)), strict=True):
            drawn = rng.uniform(-(width**-0.5), width**-0.5, shape).astype(np.float32)
            constants[each] = Constant(each, tensor_of(each, drawn), None)
        nodes += [node("Gemm", [tensor, *names], f"sum{at}", transB=1), node("Relu", [f"sum{at}"], f"hidden{at}")]
        tensor, width = f"hidden{at}", size
    last = HeadWeights(f"{2 * len(hidden) + 1}.weight", f"{2 * len(hidden) + 1}.bias", turned=False)
    layer = make_head(head, width, classes, int(rng.integers(2**31)))
    rows = layer.linear_rows()
    for each, values in last.of_rows(rows).items():
        constants[each] = Constant(each, tensor_of(each, values), None)
    nodes.append(node("Gemm", [tensor, last.weight, last.bias], "logits", transB=1))
    whole = replace(graph, nodes=tuple(nodes), constants=constants, outputs={"logits": port("logits")}, name=name)
    found = OutputLayer(tensor, "logits", rows, (nodes[-1],), np.dtype(np.float32))
    body = _body(whole, tensor, None, "auto", "all")
    return NumpyParts(whole, tensor, found, last, arranged(body, layer, last, [*constants]), layer)


def file_parts(
    file: OnnxFile,
    classes: int | None,
    *,
    seed: int,
    features: str | None,
    output: str | None,
    input_shape: tuple[int, ...] | None,
    layout: Layout,
    name: str,
    head: Literal["linear", "cosine"],
    train: str,
) -> NumpyParts:
    """Split a file before its last linear layer, or at the tensor `features`, of which the head is new.

    Raises ModelError where the file's structure does not tell, and for operators that numpy does not compute here.
    """
    whole = own_constants(read_graph(file, name))
    if features is not None:
        whole.check_name(features, "features")
    endings = [each for each in chosen_endings(whole, output, classes) if not each.guessed]
    layer = endings[0].layer if len(endings) == 1 else None
    if layer is not None and (features not in (None, layer.features) or classes not in (None, len(layer.rows))):
        layer = None
    at = features or (layer.features if layer else None)
    count = classes or (len(layer.rows) if layer else None)
    if at is None or count is None or count < 2:
        raise ModelError(
            f"{name}: without ONNX Runtime, its last linear layer does not tell features and classes: name a tensor "
            "with features= and pass classes="
        )
    body = _body(whole, at, input_shape, layout, train)
    made = make_head(head, body.width, count, seed)
    if layer is not None:
        made.set_rows(layer.rows, np.arange(count))
    held = None if layer is None else weights_of_layer(whole, layer)
    return NumpyParts(whole, at, layer, held, arranged(body, made, held, [*whole.constants]), made)


def _body(graph: Graph, features: str, shape: tuple[int, ...] | None, layout: Layout, train: str) -> GraphBody:
    part = graph.up_to([features])
    if all(len(each.shape) > 1 for each in ports_of(part)):
        part = part.with_free_batch()
    inputs = Inputs(ports_of(part), name=graph.name, input_shape=shape, layout=layout, adapter=None)
    return GraphBody(part, inputs, NumpyEngine(), train=train)

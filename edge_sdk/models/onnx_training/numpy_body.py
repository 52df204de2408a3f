"""Bodies that numpy alone trains: dense layers, and those of .onnx files, for boards without ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import Literal

import numpy as np

from edge_sdk.arrays import AnyArray
from edge_sdk.errors import ModelError, UsageError
from edge_sdk.models.checks import check_whole_number
from edge_sdk.models.cosine_head import CosineHead, make_head
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.models.onnx_file.ending import OutputLayer, chosen_endings
from edge_sdk.models.onnx_file.graph import Graph, OnnxFile, own_constants, port, read_graph, samples_graph, with_values
from edge_sdk.models.onnx_file.head import HeadWeights, constants_of_layer, weights_of_layer, with_new_head, with_rows
from edge_sdk.models.onnx_file.inputs import Inputs, Layout, ports_of
from edge_sdk.models.onnx_file.node import Node, node
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of
from edge_sdk.models.onnx_training import numpy_layers
from edge_sdk.models.onnx_training.body import GraphBody, arranged
from edge_sdk.models.onnx_training.gradient import SLOPE, TrainingGraph
from edge_sdk.models.onnx_training.numpy_operators import OPERATORS
from edge_sdk.models.trained_body import ArrangedBody, TrainedBody

_NAME = "onnx"
"""The default name of a model from a file; errors then name the file."""
assert numpy_layers  # its operators are registered  # noqa: S101


class NumpyGraph:
    """The operators of a graph, ready to be computed."""

    def __init__(self, graph: Graph) -> None:
        """Raises ModelError for an operator that numpy does not compute here."""
        self._name = graph.name
        missing = sorted({each.operator for each in graph.nodes if each.operator not in {*OPERATORS, "Constant"}})
        if missing:
            raise ModelError(f"{graph.name}: numpy does not compute {', '.join(missing)} here: install onnxruntime")
        self._nodes = tuple(each for each in graph.nodes if each.operator != "Constant")
        held = {name: tensor.values() for name, tensor in graph.constants.items()}
        held |= {
            n.outputs[0]: n.tensor.values() for n in graph.nodes if n.operator == "Constant" and n.tensor is not None
        }
        self._constants = {name: values for name, values in held.items() if values is not None}
        self._outputs = tuple(graph.outputs)
        self._read = {name for each in self._nodes for name in each.inputs if name}.union(self._outputs)
        self._last: list[list[str]] = _last_uses(self._nodes, set(self._outputs))

    def run(self, inputs: Mapping[str, AnyArray]) -> list[AnyArray]:
        """Return the outputs for some inputs, in the order of the graph.  Raises ModelError where it does not run."""
        known: dict[str, AnyArray] = {**self._constants, **inputs}
        for each, over in zip(self._nodes, self._last, strict=True):
            try:
                found = OPERATORS[each.operator](each, [known[name] if name else None for name in each.inputs])
            except (ValueError, IndexError, TypeError) as error:  # what numpy raises for shapes that clash
                told = " ".join(str(error).split())
                raise ModelError(
                    f"{self._name}: {each.operator} at {each.outputs[0]!r} does not run: {told}"
                ) from error
            except ModelError as error:  # used in a way that numpy does not compute
                raise ModelError(f"{self._name}: {error}") from error
            given = found if isinstance(found, tuple) else (found,)
            if further := self._read.intersection(each.outputs[len(given) :]):
                raise ModelError(
                    f"{self._name}: numpy does not compute the further output {min(further)!r} of {each.operator} "
                    "here: install onnxruntime"
                )
            known.update(zip(each.outputs, given, strict=False))
            for name in over:  # a large net's activations would all be held at once
                known.pop(name, None)
        return [known[name] for name in self._outputs]


def _last_uses(nodes: Sequence[Node], wanted: set[str]) -> list[list[str]]:
    """Return, for each operator, the tensors that nothing reads after it."""
    seen, found = set(wanted), []
    for each in reversed(nodes):
        over = [name for name in {*each.inputs, *each.outputs} if name and name not in seen]
        seen.update(each.inputs)
        found.append(over)
    return found[::-1]


class NumpyEngine:
    """Computes graphs by numpy alone."""

    def function(self, graph: Graph) -> Callable[[Mapping[str, AnyArray]], list[AnyArray]]:
        """Return a function from the inputs of a graph to its outputs.  Raises ModelError."""
        return NumpyGraph(graph).run

    def shaped(self, graph: Graph, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return each output of a graph for some inputs: nets that numpy trains are small.  Raises ModelError."""
        return dict(zip(graph.outputs, NumpyGraph(graph).run(inputs), strict=True))

    def passes(
        self, made: TrainingGraph, weights: Mapping[str, AnyArray], slopes: Mapping[str, AnyArray]
    ) -> Generator[None, None, NumpyPasses]:
        """Make the passes of a training graph.  Raises ModelError for an operator that numpy does not compute."""
        yield from ()
        return NumpyPasses(made, weights, slopes)

    def step(
        self, _made: TrainingGraph, _weights: Mapping[str, AnyArray], _slopes: Mapping[str, AnyArray], _classes: int
    ) -> None:
        """Return None: in numpy, a step is as quick in parts."""


class NumpyPasses:
    """The passes of a training graph by numpy."""

    def __init__(self, made: TrainingGraph, weights: Mapping[str, AnyArray], slopes: Mapping[str, AnyArray]) -> None:
        self._forward, self._backward = NumpyGraph(made.forward), NumpyGraph(made.backward)
        self._outputs = list(made.forward.outputs)
        self._weights, self._slopes = weights, [slopes[name] for name in made.weights]

        self._known: dict[str, AnyArray] = {}

    def forward(self, inputs: Mapping[str, AnyArray]) -> AnyArray:
        """Return the output."""
        given = {**inputs, **self._weights}
        found = self._forward.run(given)
        self._known = {**given, **dict(zip(self._outputs, found, strict=True))}
        return found[0]

    def backward(self, slope: AnyArray) -> None:
        """Write the slope of each weight, of the last forward pass, to its place."""
        found = self._backward.run({**self._known, SLOPE: slope})
        self._known = {}
        for place, values in zip(self._slopes, found, strict=True):
            place[...] = values


@dataclass(frozen=True, slots=True, eq=False)
class NumpyParts:
    """The parts of a model that numpy trains."""

    whole: Graph
    """The file, with each weight as a constant of its own."""
    features: str
    layer: OutputLayer | None
    """Its last layer, or None if the head is new."""
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
    if isinstance(hidden, str) or not isinstance(hidden, Sequence):
        raise UsageError(f"NumpyModel: found hidden={hidden!r}: give the width of each layer, such as hidden=(64, 32)")
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
    """Split a file before its last linear layer, or at the tensor `features`, with a new head.

    Raises ModelError if the file's structure does not show where, and for operators without a form in numpy.
    """
    if train == "head":
        raise UsageError(
            "NumpyModel.from_onnx(train='head'): expected all, last-4, or a name: OnnxModel trains the head alone"
        )
    if not isinstance(file, str | PathLike | bytes):
        raise UsageError(f"NumpyModel: found {type(file).__name__}: give the path of an .onnx file, or its bytes")
    name = name if name != _NAME or isinstance(file, bytes) else fspath(file)
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
            f"{name}: without ONNX Runtime, its last linear layer does not show features and classes: name a tensor "
            "with features= and pass classes="
        )
    body = _body(whole, at, input_shape, layout, train)
    made = make_head(head, body.width, count, seed)
    if layer is not None:
        made.set_rows(layer.rows, np.arange(count))
    held = None if layer is None else weights_of_layer(whole, layer)
    last = frozenset() if layer is None else constants_of_layer(whole, layer)
    return NumpyParts(whole, at, layer, held, arranged(body, made, held, [*whole.constants], last), made)


def _body(graph: Graph, features: str, shape: tuple[int, ...] | None, layout: Layout, train: str) -> GraphBody:
    part = graph.up_to([features])
    if all(len(each.shape) > 1 for each in ports_of(part)):
        part = part.with_free_batch()
    inputs = Inputs(ports_of(part), name=graph.name, input_shape=shape, layout=layout, adapter=None)
    return GraphBody(part, inputs, NumpyEngine(), train=train)

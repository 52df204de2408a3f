"""Graphs computed by numpy alone, for boards without ONNX Runtime; they are also the oracle of the tests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence

from edge_sdk.arrays import AnyArray
from edge_sdk.errors import ModelError
from edge_sdk.models.onnx_file.graph import Graph
from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_training import numpy_layers
from edge_sdk.models.onnx_training.gradient import SLOPE, TrainingGraph
from edge_sdk.models.onnx_training.numpy_operators import OPERATORS

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
            known.update(zip(each.outputs, found if isinstance(found, tuple) else (found,), strict=False))
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

"""What computes graphs, ONNX Runtime or numpy, as a body and a generator ask it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Protocol, TypeVar

from edge_sdk.arrays import AnyArray, Floats, Ints
from edge_sdk.models.onnx_file.graph import Graph, port
from edge_sdk.models.onnx_training.gradient import TrainingGraph

_T = TypeVar("_T")


class GraphPasses(Protocol):
    """The passes of one size of mini-batches."""

    def forward(self, inputs: Mapping[str, AnyArray]) -> AnyArray:
        """Return the output, which the next call may overwrite."""

    def backward(self, slope: AnyArray) -> None:
        """Write the slope of each weight, of the last forward pass, to its place."""


class GraphStep(Protocol):
    """A whole training step of one size of mini-batches, but for the optimiser."""

    def run(self, inputs: Mapping[str, AnyArray], labels: Ints, rows: Floats) -> tuple[Floats, Floats]:
        """Return the logits (b, k) and the slopes of the head's rows (k, d + 1), which the next call may overwrite.

        The slope of each weight is written to its place.
        """


class GraphEngine(Protocol):
    """Computes graphs: ONNX Runtime, or numpy."""

    def function(self, graph: Graph) -> Callable[[Mapping[str, AnyArray]], list[AnyArray]]:
        """Return a function from the inputs of a graph to its outputs.  Raises ModelError."""

    def shaped(self, graph: Graph, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return each output of a graph for such inputs; what they have a part in may have shape and type alone.

        Raises ModelError.
        """

    def passes(
        self, made: TrainingGraph, weights: Mapping[str, AnyArray], slopes: Mapping[str, AnyArray]
    ) -> Generator[None, None, GraphPasses]:
        """Make the passes of a training graph, with pauses; weights are read, and slopes written, where they lie."""

    def step(
        self, made: TrainingGraph, weights: Mapping[str, AnyArray], slopes: Mapping[str, AnyArray], classes: int
    ) -> GraphStep | None:
        """Return a step on the mean cross-entropy, or None where computing all at once gains nothing."""


def tensors_of(graph: Graph, engine: GraphEngine, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return every tensor of the pass of some inputs, these and constants too.

    Of what the inputs have a part in, shape and type alone hold: a pass may take long, and much memory.
    """
    names = [name for each in graph.nodes if each.operator != "Constant" for name in each.outputs if name]
    found = engine.shaped(replace(graph, outputs={name: port(name) for name in names}), inputs)
    held = [*graph.constants.values()]
    held += [each.tensor for each in graph.nodes if each.operator == "Constant" and each.tensor is not None]
    values = {each.name: array for each in held if (array := each.values()) is not None}
    return {**values, **inputs, **found}


def to_its_end(pauses: Generator[None, None, _T]) -> _T:
    """Return what a generator returns."""
    try:
        while True:
            next(pauses)
    except StopIteration as end:
        made: _T = end.value
        return made


def flops_of(graph: Graph, tensors: Mapping[str, AnyArray]) -> int:
    """Return the operations of convolutions and products of matrices for one sample."""
    total = 0
    for each in graph.nodes:
        sizes: Sequence[int] = ()
        if each.operator == "Conv":
            sizes = tensors[each.inputs[1]].shape[1:]
        elif each.operator in ("Gemm", "MatMul"):
            sizes = tensors[each.inputs[0]].shape[-1:]
        total += 2 * prod(sizes) * tensors[each.outputs[0]].size if sizes else 0
    return total

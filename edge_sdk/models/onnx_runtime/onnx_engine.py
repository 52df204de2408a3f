"""ONNX Runtime as the engine of a body that learns: sessions that read weights, and write slopes, where they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edge_sdk.arrays import AnyArray
from edge_sdk.errors import MissingExtra, ModelError
from edge_sdk.models.onnx_file.graph import Graph
from edge_sdk.models.onnx_runtime.onnx_session import open_session, reason_of
from edge_sdk.models.onnx_training.gradient import SLOPE, TrainingGraph

try:
    import onnxruntime
except ImportError as error:
    raise MissingExtra("onnxruntime", "onnx", "a model from an .onnx file") from error

_CPU = "cpu"


class OnnxEngine:
    """Computes graphs by ONNX Runtime, on one thread."""

    def function(self, graph: Graph) -> Callable[[Mapping[str, AnyArray]], list[AnyArray]]:
        """Return a function from the inputs of a graph to its outputs.  Raises ModelError."""
        session = open_session(graph, graph.content())

        def run(inputs: Mapping[str, AnyArray]) -> list[AnyArray]:
            try:
                return [np.asarray(each) for each in session.run(list(graph.outputs), dict(inputs))]
            except Exception as error:  # the runtime's errors have no common base
                raise ModelError(f"{graph.name}: it does not run: {reason_of(error)}") from error

        return run

    def passes(
        self, made: TrainingGraph, weights: Mapping[str, AnyArray], slopes: Mapping[str, AnyArray]
    ) -> OnnxPasses:
        """Return the passes of a training graph.  Raises ModelError where the runtime does not load it."""
        return OnnxPasses(made, weights, slopes)


class OnnxPasses:
    """Two sessions; what the first keeps for the second stays where it was written.

    All but the samples is bound once: for a small net, a binding costs as much as an operator.
    """

    def __init__(self, made: TrainingGraph, weights: Mapping[str, AnyArray], slopes: Mapping[str, AnyArray]) -> None:
        self._name = made.forward.name
        self._forward = open_session(made.forward, made.forward.content())
        self._backward = open_session(made.backward, made.backward.content())
        kept: dict[str, AnyArray] = {name: np.empty(shape, kind) for name, (shape, kind) in made.sizes.items()}
        self._output = kept[next(iter(made.forward.outputs))]
        self._slope = np.empty_like(self._output)
        held = {name: _value(array) for name, array in weights.items()}
        written = {name: _value(array) for name, array in kept.items()}
        given = {**held, **written, SLOPE: _value(self._slope)}
        self._bound, self._fed = given, list[Any]()  # a binding does not keep the memory that it names
        self._samples = frozenset(made.backward.inputs) - {*given}
        self._to_output, self._to_slopes = self._forward.io_binding(), self._backward.io_binding()
        for name, value in held.items():
            self._to_output.bind_ortvalue_input(name, value)
        for name, value in written.items():
            self._to_output.bind_ortvalue_output(name, value)
        for name, value in given.items():
            if name in made.backward.inputs:
                self._to_slopes.bind_ortvalue_input(name, value)
        for output, name in zip(made.backward.outputs, made.weights, strict=True):
            self._to_slopes.bind_ortvalue_output(output, _value(slopes[name]))

    def forward(self, inputs: Mapping[str, AnyArray]) -> AnyArray:
        """Return the output, which the next call overwrites."""
        self._fed = []
        for name, array in inputs.items():
            value = _value(array)
            self._fed.append(value)
            self._to_output.bind_ortvalue_input(name, value)
            if name in self._samples:
                self._to_slopes.bind_ortvalue_input(name, value)
        self._run(self._forward, self._to_output)
        return self._output

    def backward(self, slope: AnyArray) -> None:
        """Write the slope of each weight, of the last forward pass, to its place."""
        self._slope[...] = slope
        self._run(self._backward, self._to_slopes)

    def _run(self, session: Any, binding: Any) -> None:
        try:
            session.run_with_iobinding(binding)
        except Exception as error:  # the runtime's errors have no common base
            raise ModelError(f"{self._name}: a training step does not run: {reason_of(error)}") from error


def _value(array: AnyArray) -> Any:
    """Return an array as the runtime takes it: the same memory where it lies in C order."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))

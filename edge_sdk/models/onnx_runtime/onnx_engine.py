"""ONNX Runtime as the engine of a body that learns: sessions that read weights, and write slopes, where they lie."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from edge_sdk.arrays import AnyArray, Floats, Ints
from edge_sdk.errors import MissingExtra, ModelError
from edge_sdk.models.onnx_file.graph import Graph, tensor_port
from edge_sdk.models.onnx_file.inputs import TYPES
from edge_sdk.models.onnx_runtime.onnx_session import open_session, reason_of
from edge_sdk.models.onnx_training.gradient import ROWS, SLOPE, TARGETS, TrainingGraph, moving, step_graph

try:
    import onnxruntime
except ImportError as error:
    raise MissingExtra("onnxruntime", "onnx", "a model from an .onnx file") from error

KINDS: Mapping[str, str] = {**TYPES, "tensor(bool)": "?"}
"""The types of tensors inside a graph, as the runtime names them."""


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

    def shaped(self, graph: Graph, inputs: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """Return each output of a graph for such inputs; what they have a part in has shape and type alone.

        The runtime infers shapes while it loads the graph.  Where it cannot, the graph runs.  Raises ModelError.
        """
        ports = {name: tensor_port(name, array.shape, array.dtype) for name, array in inputs.items()}
        sized = replace(graph, inputs=ports)
        changing = moving(sized, frozenset(ports))
        loaded = open_session(sized, sized.content(), optimised=False)
        found = {each.name: _of_shape(each.shape, each.type) for each in loaded.get_outputs() if each.name in changing}
        if any(array is None for array in found.values()):
            return dict(zip(graph.outputs, self.function(graph)(inputs), strict=True))
        still = [name for name in graph.outputs if name not in changing]
        told = {name: array for name, array in found.items() if array is not None}
        if not still:
            return told
        part = sized.up_to(still)  # of the other operators it reads the shapes at most, which are constants here
        values = self.function(part)({name: inputs[name] for name in part.inputs})
        return {**told, **dict(zip(still, values, strict=True))}

    def passes(
        self, made: TrainingGraph, weights: Mapping[str, AnyArray], slopes: Mapping[str, AnyArray]
    ) -> Generator[None, None, OnnxPasses]:
        """Make the passes of a training graph.  Raises ModelError where the runtime does not load it."""
        forward = open_session(made.forward, made.forward.content())
        yield
        return OnnxPasses(made, (forward, open_session(made.backward, made.backward.content())), weights, slopes)

    def step(
        self, made: TrainingGraph, weights: Mapping[str, AnyArray], slopes: Mapping[str, AnyArray], classes: int
    ) -> OnnxStep:
        """Return a whole step on the mean cross-entropy.  Raises ModelError where the runtime does not load it."""
        return OnnxStep(made, weights, slopes, classes)


class OnnxPasses:
    """Two sessions; what the first keeps for the second stays where it was written.

    All but the samples is bound once: for a small net, a binding costs as much as an operator.
    """

    def __init__(
        self,
        made: TrainingGraph,
        sessions: tuple[Any, Any],
        weights: Mapping[str, AnyArray],
        slopes: Mapping[str, AnyArray],
    ) -> None:
        """sessions: of the forward and of the backward graph."""
        self._name = made.forward.name
        self._forward, self._backward = sessions
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
        _run(self._forward, self._to_output, self._name)
        return self._output

    def backward(self, slope: AnyArray) -> None:
        """Write the slope of each weight, of the last forward pass, to its place."""
        self._slope[...] = slope
        _run(self._backward, self._to_slopes, self._name)


class OnnxStep:
    """Forward pass, cross-entropy and backward pass in one session: for a small net, each session costs an operator."""

    def __init__(
        self, made: TrainingGraph, weights: Mapping[str, AnyArray], slopes: Mapping[str, AnyArray], classes: int
    ) -> None:
        graph = step_graph(made, classes)
        self._name, self._session = graph.name, open_session(graph, graph.content())
        output = made.sizes[next(iter(made.forward.outputs))][0]
        b, d = output[0], prod(output[1:])
        self._rows, self._targets = np.empty((classes, d + 1), np.float32), np.zeros((b, classes), np.float32)
        self._logits, self._slopes = np.empty_like(self._targets), np.empty_like(self._rows)
        self._at, self._fed = np.arange(b), list[Any]()  # a binding does not keep the memory that it names
        self._binding = self._session.io_binding()
        given = {**weights, ROWS: self._rows, TARGETS: self._targets}
        self._bound = {name: _value(array) for name, array in given.items()}
        for name, value in self._bound.items():
            self._binding.bind_ortvalue_input(name, value)
        places = [self._logits, self._slopes, *(slopes[name] for name in made.weights)]
        for name, place in zip(graph.outputs, places, strict=True):
            self._binding.bind_ortvalue_output(name, _value(place))

    def run(self, inputs: Mapping[str, AnyArray], labels: Ints, rows: Floats) -> tuple[Floats, Floats]:
        """Return the logits (b, k) and the slopes of the head's rows (k, d + 1), which the next call overwrites."""
        self._fed = []
        for name, array in inputs.items():
            value = _value(array)
            self._fed.append(value)
            self._binding.bind_ortvalue_input(name, value)
        self._rows[...] = rows
        self._targets[...] = 0
        self._targets[self._at, labels] = 1
        _run(self._session, self._binding, self._name)
        return self._logits, self._slopes


def _run(session: Any, binding: Any, name: str) -> None:
    try:
        session.run_with_iobinding(binding)
    except Exception as error:  # the runtime's errors have no common base
        raise ModelError(f"{name}: a training step does not run: {reason_of(error)}") from error


def _of_shape(shape: Sequence[int | str | None], kind: str) -> AnyArray | None:
    """Return zeros that take no memory, or None if the runtime does not say their size or type.

    Of a tensor that it knows nothing of, it gives the shape of a scalar.
    """
    sizes = [size for size in shape if isinstance(size, int)]
    if not sizes or len(sizes) < len(shape) or kind not in KINDS:
        return None
    return np.broadcast_to(np.zeros((), KINDS[kind]), sizes)


def _value(array: AnyArray) -> Any:
    """Return an array as the runtime takes it: the same memory where it lies in C order."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))

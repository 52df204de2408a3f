"""A graph in ONNX Runtime: it maps samples to rows of numbers, and is the engine of a body that learns.

A session that trains reads weights, and writes slopes, where they lie.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from edge_sdk.arrays import AnyArray, Floats, Ints
from edge_sdk.errors import MissingExtra, ModelError
from edge_sdk.models.onnx_file.graph import Graph, tensor_port
from edge_sdk.models.onnx_file.inputs import TYPES, Adapter, Inputs, Layout, Port
from edge_sdk.models.onnx_training.gradient import ROWS, SLOPE, TARGETS, TrainingGraph, moving, step_graph

try:
    import onnxruntime
except ImportError as error:
    raise MissingExtra("onnxruntime", "onnx", "a model from an .onnx file") from error

_ONLY_FATAL = 4
_LONGEST_REASON = 300
_TRIALS = 4
_LARGE = 1 << 20
"""The numbers of a sample above which a graph is not run to learn its width: a pass may take many seconds."""


class OnnxSession:
    """A function f4 (n, c, h, w) -> f4 (n, width) on one CPU thread: the first output of a graph."""

    def __init__(
        self,
        graph: Graph,
        *,
        name: str,
        input_shape: tuple[int, ...] | None = None,
        layout: Layout = "auto",
        adapter: Adapter | None = None,
    ) -> None:
        """Run one zero sample through the graph, unless it is large.

        `input_shape` (c, h, w) is needed only where the file leaves a size open, or with an adapter.  Raises
        ModelError where the runtime does not load the graph, or samples do not fit it.
        """
        self._name = name
        content = graph.content()
        self.digest = digest_of(content)
        """Identifies the graph, with its weights."""
        self._session = open_session(graph, content)
        ports = [Port(each.name, each.type, tuple(each.shape)) for each in self._session.get_inputs()]
        first = self._session.get_outputs()[0]
        self._output = first.name
        self.dtype = np.dtype(TYPES.get(first.type, "f4"))
        """The type of the output in the file."""
        self.inputs = Inputs(ports, name=name, input_shape=input_shape, layout=layout, adapter=adapter)
        self.width = self._probe(graph)
        if self.inputs.batch > 1 and adapter is None:
            self._free_batch(graph, input_shape, layout)

    def rows(self, x: Floats) -> Floats:
        """(n, c, h, w) -> (n, width).

        One sample at a time.  A sample's result must not depend on its neighbours; otherwise a device that restarts
        with an empty cache would not repeat its own bits.  Matrix kernels differ between batch sizes and between places
        in a batch.  So if a file fixes a larger batch, and gives other results for another size, the batch is filled
        with copies of one sample.
        """
        self.inputs.check(x)
        out = np.empty((len(x), self.width), np.float32)
        for i in range(len(x)):
            row = self._run(x[i : i + 1])
            if row.size != self.width:
                raise ModelError(f"{self._name}: {row.size} numbers for a sample, {self.width} for another")
            out[i] = row
        return out

    def trial(self) -> Floats:
        """Return what made-up samples give: (m, width); of large samples one, as each may take many seconds.

        Samples of 0 and 1 are legal for most files, also for those that take whole numbers; where they are not, the
        one of zeros stands alone.
        """
        shape = self.inputs.sample_shape or ()
        count = _TRIALS if prod(shape) <= _LARGE else 1
        x = np.random.default_rng(0).integers(0, 2, (count, *shape)).astype(np.float32)
        try:
            return self.rows(x)
        except ModelError:
            return self.rows(0 * x[:1])

    def _free_batch(self, graph: Graph, input_shape: tuple[int, ...] | None, layout: Layout) -> None:
        """Take the graph for one sample in place of the one for a fixed batch, where both give the same."""
        try:
            single = OnnxSession(graph.with_free_batch(), name=self._name, input_shape=input_shape, layout=layout)
            x = np.random.default_rng(0).integers(0, 2, (1, *(self.inputs.sample_shape or ()))).astype(np.float32)
            same = single.width == self.width and np.allclose(single.rows(x), self.rows(x), rtol=1e-3, atol=1e-5)
        except ModelError:  # the size of the batch is written elsewhere in the graph, too
            return
        if same:
            self._session, self.inputs = single._session, single.inputs

    def _run(self, x: Floats) -> Any:
        """Return the output for one sample (1, c, h, w), flat: (width,)."""
        feed = self.inputs.feed(x)
        try:
            out = np.asarray(self._session.run([self._output], feed)[0])
        except Exception as error:  # the runtime's errors have no common base
            raise ModelError(
                f"{self._name}: one sample of shape {x.shape[1:]} does not run: {reason_of(error)}"
            ) from error
        batch = 1 if self.inputs.unbatched else self.inputs.batch
        if out.dtype.kind != "f" or not out.size or (out.ndim > 1 and not self.inputs.unbatched and len(out) != batch):
            raise ModelError(
                f"{self._name}: output {self._output!r} is {out.dtype} of shape {out.shape} for a batch of {batch}, "
                "expected floating-point numbers (n, width)"
            )
        return out.reshape(batch, -1)[0]

    def _told(self, graph: Graph, x: Floats) -> int | None:
        """Return the width for samples (1, c, h, w), or None if the runtime only knows it after a run."""
        sized = replace(graph, inputs={n: tensor_port(n, a.shape, a.dtype) for n, a in self.inputs.feed(x).items()})
        first = open_session(sized, sized.content(), optimised=False).get_outputs()[0]
        sizes = [size for size in first.shape if isinstance(size, int)]
        batch = 1 if self.inputs.unbatched else self.inputs.batch
        sure = (
            self.dtype.kind == "f"
            and len(sizes) == len(first.shape) > 1
            and (self.inputs.unbatched or sizes[0] == batch)
        )
        return prod(sizes) // batch if sure else None

    def _probe(self, graph: Graph) -> int:
        shape = self.inputs.sample_shape
        if shape is None:
            raise ModelError(f"{self._name}: with an adapter, pass input_shape=(c, h, w), the shape of a sample")
        x = np.zeros((1, *shape), np.float32)
        told = self._told(graph, x) if x.size > _LARGE else None
        return told or int(self._run(x).size)


def digest_of(content: bytes) -> bytes:
    """Return the digest of a file: 32 bytes."""
    return hashlib.sha256(content).digest()


def open_session(graph: Graph, content: bytes, *, optimised: bool = True) -> Any:
    """Load the content of a graph into ONNX Runtime; optimised: for many runs, and not for its shapes alone.

    Raises ModelError, in one line, where it does not load.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _ONLY_FATAL
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's errors have no common base
        listed = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in graph.opsets.items())
        opsets = " ".join(listed.split())
        raise ModelError(
            f"{graph.name}: ONNX Runtime {onnxruntime.__version__} does not load it (opsets {opsets}): "
            f"{reason_of(error)}"
        ) from error


def reason_of(error: Exception) -> str:
    """Return what the runtime says of an error, in one line."""
    return " ".join(str(error).split())[:_LONGEST_REASON]


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

"""A graph in ONNX Runtime: maps samples to rows of numbers, and is checked once when it is opened."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import MissingExtra, ModelError
from edge_sdk.models.onnx_file.graph import Graph, tensor_port
from edge_sdk.models.onnx_file.inputs import TYPES, Adapter, Inputs, Layout, Port

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

        One sample at a time.  What a sample gives must not depend on its neighbours, or a device that restarts with an
        empty cache would not repeat its own bits; matrix kernels differ between batch sizes and between places in a
        batch.  So a file that fixes a larger batch, and computes something else with another, is given one sample as
        often as the batch is long.
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

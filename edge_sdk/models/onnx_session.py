"""One ONNX file in ONNX Runtime: maps samples to rows of numbers, and is checked once when it is opened."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any, TypeAlias

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import MissingExtra, ModelError
from edge_sdk.models.checks import check_samples

try:
    import onnxruntime
except ImportError as error:
    raise MissingExtra("onnxruntime", "onnx", "a model from an .onnx file") from error

OnnxFile: TypeAlias = "str | PathLike[str] | bytes"
"""The path of a model file, or its bytes."""

_ONLY_ERRORS = 3


class OnnxSession:
    """A function f4 (n, c, h, w) -> f4 (n, width), on one CPU thread.

    The file's description and its metadata entry `flops_per_sample`, where it has them, are kept beside it.
    """

    def __init__(self, file: OnnxFile, *, name: str, input_shape: tuple[int, int, int] | None) -> None:
        """Open a file and run one zero sample through it.

        `input_shape` (c, h, w) is needed only where the file leaves a size open.  Raises ModelError where the file
        does not load, or is not one input (n, c, h, w) and a first output (n, width).
        """
        self._name = name
        self._session = _open(file, name)
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(inputs[0].shape) != 4:
            found = ", ".join(f"{i.name}: {i.type} {i.shape}" for i in inputs)
            raise ModelError(f"{name}: expected one input of tensor(float) (n, c, h, w), found {found}")
        self._input = inputs[0].name
        self._output = self._session.get_outputs()[0].name
        self.input_shape = _sample_shape(inputs[0].shape, input_shape, name)
        self.width = self._probe()
        about = self._session.get_modelmeta()
        self.description = str(about.description)
        self.flops_per_sample = _count(about.custom_metadata_map.get("flops_per_sample", ""))

    def rows(self, x: Floats) -> Floats:
        """(n, c, h, w) -> (n, width).

        One sample at a time.  What a sample gives must not depend on its neighbours, or a device that restarts with an
        empty cache would not repeat its own bits; matrix kernels differ between batch sizes.  It also serves files
        that were exported for a batch of one, and for anything that is worth freezing costs little.
        """
        check_samples(self._name, x, self.input_shape)
        out = np.empty((len(x), self.width), np.float32)
        for i in range(len(x)):
            out[i] = self._run(x[i : i + 1])
        return out

    def _run(self, x: Floats) -> Any:
        return self._session.run([self._output], {self._input: x})[0]

    def _probe(self) -> int:
        zero = np.zeros((1, *self.input_shape), np.float32)
        try:
            out = np.asarray(self._run(zero))
        except Exception as error:  # the runtime's errors have no common base
            raise ModelError(f"{self._name}: one sample of shape {self.input_shape} does not run: {error}") from error
        if out.ndim != 2 or len(out) != 1 or out.dtype != np.float32:
            raise ModelError(
                f"{self._name}: output {self._output!r} is {out.dtype} of shape {out.shape} for one sample, "
                "expected float32 (1, width): end the exported graph with Flatten"
            )
        return int(out.shape[1])


def _count(text: str) -> int:
    """Return the file's own figure of its cost, or 0 if it has none."""
    return int(text) if text.isdecimal() else 0


def _open(file: OnnxFile, name: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _ONLY_ERRORS
    source = file if isinstance(file, bytes) else fspath(file)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's errors have no common base
        raise ModelError(f"{name}: not a model that ONNX Runtime {onnxruntime.__version__} loads: {error}") from error


def _sample_shape(declared: list[Any], given: tuple[int, int, int] | None, name: str) -> tuple[int, int, int]:
    """Return (c, h, w): the file's own sizes, or the caller's if the file leaves them open."""
    batch, *sizes = declared
    if isinstance(batch, int) and batch != 1:
        raise ModelError(f"{name}: exported for batches of exactly {batch}: export it with a dynamic batch")
    fixed = [size for size in sizes if isinstance(size, int)]
    if given is None and len(fixed) < 3:
        raise ModelError(f"{name}: the file leaves its input size open ({declared}): pass input_shape=(c, h, w)")
    sample = given or (fixed[0], fixed[1], fixed[2])
    if any(isinstance(size, int) and size != own for size, own in zip(sizes, sample, strict=True)):
        raise ModelError(f"{name}: takes samples of shape {tuple(sizes)}, but input_shape is {sample}")
    return sample

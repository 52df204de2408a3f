"""Small frozen extractors and teachers as content of .onnx files, for simulations and examples.

An extractor is convolution, ReLU, average pool over a grid of about 4 x 4 cells, flatten.  Its features are scaled to a
root mean square near 1 for pixels in 0..1, so that a linear head learns with the learning rates of the other models.
Where another width is asked for than these have, a frozen random projection gives it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import MissingExtra
from edge_sdk.models.base import Batches
from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.models.onnx_runtime.onnx_session import OnnxSession
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sim.models.kmeans_filters import kmeans_filters

try:
    import onnx
except ImportError as error:
    raise MissingExtra("onnx", "sim", "writing an .onnx file") from error

from onnx import TensorProto, helper, numpy_helper

_OPSET = 17
_IR_VERSION = 8
"""Version of the ONNX format, which every ONNX Runtime from 1.12 on can read."""
_CELLS = 4
_FILTERS = 32
_LARGE = 16
"""Images at least this high and wide get patches of 5 x 5 pixels, smaller ones of 3 x 3."""
_SCALED_ON = 500
"""Number of images that the scale of the features is measured on."""
_BATCH = 32
_LEARNING_RATE = 2e-3
_PIXEL_GAIN = 2.5
"""He initialisation supposes inputs of unit variance; pixels in 0..1 have about a sixth of that."""


def random_extractor(
    input_shape: tuple[int, int, int], seed: int, filters: int = _FILTERS, feature_dim: int = 0
) -> bytes:
    """Make an extractor with random 3 x 3 filters for samples (c, h, w) with pixels in 0..1."""
    rng = np.random.default_rng(seed)
    scale = _PIXEL_GAIN * np.sqrt(2 / (9 * input_shape[0]))
    weights = rng.normal(0, scale, (filters, input_shape[0], 3, 3)).astype(np.float32)
    chain = _Chain(input_shape).extractor(weights, np.zeros(filters, np.float32)).projected(feature_dim, seed)
    return chain.model(f"frozen random 3x3 filters, seed {seed}")


def kmeans_extractor(images: Floats, seed: int, filters: int = _FILTERS, feature_dim: int = 0) -> bytes:
    """Make an extractor with filters that k-means learns from unlabelled images (n, c, h, w)."""
    chain = _Chain(_shape_of(images)).extractor(*_scaled_filters(images, seed, filters)).projected(feature_dim, seed)
    return chain.model(f"frozen k-means filters from {len(images)} unlabelled images, seed {seed}")


def teacher(images: Floats, labels: Ints, classes: int, seed: int, steps: int = 500) -> bytes:
    """Make a trained classifier: a k-means extractor and a head trained on images (n, c, h, w), labels (n,)."""
    chain = _Chain(_shape_of(images)).extractor(*_scaled_filters(images, seed, _FILTERS))
    student = OnnxModel(chain.model("extractor"), classes, seed=seed)
    draws = np.random.default_rng(seed).integers(0, len(images), (steps, _BATCH))
    batches = Batches(inputs=images, labels=labels, indices=draws)
    student.fit(batches, (CrossEntropy(),), Optim(learning_rate=_LEARNING_RATE))
    chain.linear(student.head_rows())
    return chain.model(f"teacher trained on {len(images)} labelled images, seed {seed}")


def _scaled_filters(images: Floats, seed: int, filters: int) -> tuple[Floats, Floats]:
    """Return k-means filters (filters, c, s, s) and biases, scaled to a feature deviation of 1 on the images."""
    shape, some = _shape_of(images), images[:_SCALED_ON]
    weights, biases = kmeans_filters(images, filters, 5 if min(shape[1:]) >= _LARGE else 3, seed)
    raw = OnnxSession(read_graph(_Chain(shape).extractor(weights, biases).model("raw"), "k-means"), name="k-means")
    spread = raw.rows(some).reshape(len(some), filters, -1).std(axis=(0, 2))  # (filters,)
    scale = 1 / np.maximum(spread, 0.01 * spread.max())  # a filter that hardly fires must not become mere noise
    return weights * scale[:, None, None, None], biases * scale


def _shape_of(images: Floats) -> tuple[int, int, int]:
    _, c, h, w = images.shape
    return c, h, w


class _Chain:
    """An ONNX graph under construction: one operator after the other, from samples (n, c, h, w)."""

    def __init__(self, input_shape: tuple[int, int, int]) -> None:
        self._input_shape = input_shape
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._last = "samples"
        self._width = 0
        self._flops = 0

    def extractor(self, weights: Floats, biases: Floats) -> _Chain:
        """Add convolution (filters, c, s, s), ReLU, average pool and flatten."""
        _, h, w = self._input_shape
        filters, size = len(weights), weights.shape[2]
        cell = (max(1, h // _CELLS), max(1, w // _CELLS))
        self._add("Conv", weights, biases, pads=[size // 2] * 4)
        self._add("Relu")
        self._add("AveragePool", kernel_shape=cell, strides=cell)
        self._add("Flatten")
        self._width = filters * (h // cell[0]) * (w // cell[1])
        self._flops += 2 * weights.size * h * w
        return self

    def projected(self, width: int, seed: int) -> _Chain:
        """Add a random projection with ReLU; He's scale keeps the root mean square.  Width 0: add nothing."""
        if width not in (0, self._width):
            scale = np.sqrt(2 / self._width)
            weights = np.random.default_rng([seed, 1]).normal(0, scale, (self._width, width)).astype(np.float32)
            self._add("Gemm", weights, np.zeros(width, np.float32))
            self._add("Relu")
            self._width = width
            self._flops += 2 * weights.size
        return self

    def linear(self, rows: Floats) -> None:
        """Add the linear layer that gives logits, from head rows (k, d + 1)."""
        self._add("Gemm", np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, -1]), transB=1)
        self._width = len(rows)
        self._flops += 2 * len(rows) * (rows.shape[1] - 1)

    def model(self, description: str) -> bytes:
        """Return the finished file, with its cost and its origin as metadata."""
        samples = helper.make_tensor_value_info("samples", TensorProto.FLOAT, ["n", *self._input_shape])
        out = helper.make_tensor_value_info(self._last, TensorProto.FLOAT, ["n", self._width])
        graph = helper.make_graph(self._nodes, "edge-sdk", [samples], [out], self._constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION, doc_string=description
        )
        helper.set_model_props(model, {"flops_per_sample": str(self._flops)})
        onnx.checker.check_model(model)
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def _add(self, operator: str, *constants: Floats, **attributes: Any) -> None:
        """Add an operator on the output of the last one."""
        name = f"{operator.lower()}{len(self._nodes)}"
        names = [f"{name}.{i}" for i in range(len(constants))]
        self._constants += [numpy_helper.from_array(c, n) for c, n in zip(constants, names, strict=True)]
        self._nodes.append(helper.make_node(operator, [self._last, *names], [name], **attributes))
        self._last = name

"""Small frozen extractors and teachers as content of .onnx files, for simulations and examples.

An extractor is convolution, ReLU, average pool over a grid of about 4 x 4 cells, flatten.  Its features are scaled to a
root mean square near 1 for pixels in 0..1, so that a linear head learns with the learning rates of the other models.
Where another width is asked for than these have, a frozen random projection gives it.
"""

from __future__ import annotations

import warnings
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.models.base import Batches
from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.models.onnx_runtime.onnx_session import OnnxSession
from edge_sdk.objectives import CrossEntropy, Optim

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


# -- Convolution filters learned without labels: scikit-learn's k-means over small patches of images ------------------
# Coates and Ng, "Learning Feature Representations with K-means", 2012; Coates, Ng and Lee, "An Analysis of Single-Layer
# Networks in Unsupervised Feature Learning", 2011, for the triangle activation.

_Doubles: TypeAlias = NDArray[np.float64]

_PATCHES = 5000
"""Number of patches that are clustered: enough for some dozens of centres, which more patches change little."""
_ITERATIONS = 15
_FLAT = 0.1
"""Patches with at most this share of the largest contrast are background and left out; they would form a centre."""


def kmeans_filters(images: Floats, filters: int, size: int, seed: int) -> tuple[Floats, Floats]:
    """Return weights (filters, c, size, size) and biases (filters,) of a convolution for images (n, c, h, w).

    Its outputs are triangle activations.  Raises UsageError for images with too few patches that have contrast, and
    MissingExtra without scikit-learn.
    """
    rng = np.random.default_rng(seed)
    patches, contrast = _normalised_patches(images, size, rng)  # (m, c * size * size)
    if len(patches) < filters:
        raise UsageError(f"{len(images)} images have {len(patches)} patches with contrast, {filters} filters need more")
    centres = _centres(patches, filters, seed)  # (filters, c * size * size)
    weights, biases = triangle(centres)
    shape = (filters, images.shape[1], size, size)
    return (weights / contrast).reshape(shape).astype(np.float32), biases.astype(np.float32)


def triangle(centres: _Doubles) -> tuple[_Doubles, _Doubles]:
    """Return weights (k, d) and biases (k,) of the triangle activation of centres (k, d), without its ReLU.

    The triangle keeps how much nearer a centre is to a patch x than the centres are on average.  In squared distances
    |x|^2 cancels, and a linear layer computes it:

        (mean_j |x - c_j|^2 - |x - c_k|^2) / 2 = x . (c_k - mean_j c_j) - (|c_k|^2 - mean_j |c_j|^2) / 2
    """
    square = (centres**2).sum(axis=1)  # (k,)
    return centres - centres.mean(axis=0), -(square - square.mean()) / 2


def _centres(patches: _Doubles, count: int, seed: int) -> _Doubles:
    """Return `count` cluster centres (count, d) of patches (m, d), the same for the same seed.

    It runs on one thread: with several, the order of sums, and so the last bits, would depend on the machine.
    """
    try:
        from sklearn.cluster import KMeans  # heavy, and only needed here
        from sklearn.exceptions import ConvergenceWarning  # likewise
        from threadpoolctl import threadpool_limits  # comes with scikit-learn
    except ImportError:
        raise MissingExtra("scikit-learn", "sim", "filters by k-means") from None
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer patches differ than there are centres: harmless
        found = KMeans(count, n_init=1, max_iter=_ITERATIONS, random_state=seed).fit(patches)
    centres: _Doubles = found.cluster_centers_
    return centres


def _normalised_patches(images: Floats, size: int, rng: np.random.Generator) -> tuple[_Doubles, float]:
    """Return patches (m, c * size * size) with mean 0 and contrast 1, as f8, and their contrast before, on average."""
    margin = size // 2
    padded = np.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    windows = sliding_window_view(padded, (size, size), axis=(2, 3))  # (n, c, h, w, size, size)
    n, _, h, w = windows.shape[:4]
    some = rng.choice(n * h * w, min(n * h * w, _PATCHES), replace=False)
    at = np.unravel_index(some, (n, h, w))
    patches: _Doubles = windows[at[0], :, at[1], at[2]].reshape(len(some), -1).astype(np.float64)
    patches -= patches.mean(axis=1, keepdims=True)
    contrast = patches.std(axis=1)
    sharp = contrast > _FLAT * contrast.max()
    return patches[sharp] / contrast[sharp, None], float(contrast[sharp].mean()) if sharp.any() else 1.0

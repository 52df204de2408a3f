"""The extractors that simulations run: reproducible, small, and good enough to learn the digits from."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sim.models.onnx_extractors import kmeans_filters, triangle

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
sklearn_datasets = pytest.importorskip("sklearn.datasets")

from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel, OnnxTeacher
from edge_sim.models import onnx_extractors


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(images (n, 1, 8, 8) in 0..1, labels (n,), a shuffled order)."""
    bunch = sklearn_datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    return (bunch.images / 16).astype(np.float32)[:, None], bunch.target, order


@pytest.mark.parametrize(("kind", "least"), [("kmeans", 0.95), ("random", 0.93)])
def test_a_head_learns_the_digits(digits: tuple[np.ndarray, ...], kind: str, least: float) -> None:
    """400 public images without labels for the filters, 1,000 labelled ones for 500 steps of the head."""
    x, y, order = digits
    public, train, test = order[:400], order[400:1400], order[1400:]
    if kind == "kmeans":
        file = onnx_extractors.kmeans_extractor(x[public], 0)
    else:
        file = onnx_extractors.random_extractor((1, 8, 8), 0)
    model = OnnxModel(file, 10, seed=0)
    indices = np.random.default_rng(0).choice(train, (500, 32))
    model.fit(Batches(inputs=x, labels=y, indices=indices), (CrossEntropy(),), Optim(learning_rate=2e-3))
    assert (model.logits(x[test]).argmax(axis=1) == y[test]).mean() >= least
    assert 0.3 < np.sqrt((model.features(x[test]) ** 2).mean()) < 3


def test_a_teacher_knows_the_digits(digits: tuple[np.ndarray, ...]) -> None:
    x, y, order = digits
    train, test = order[:1000], order[1400:]
    model = OnnxTeacher(onnx_extractors.teacher(x[train], y[train], 10, seed=0), 10)
    assert (model.logits(x[test]).argmax(axis=1) == y[test]).mean() >= 0.95


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (2, 3, 5), (1, 1, 9)])
def test_any_input_shape(shape: tuple[int, int, int]) -> None:
    images = np.random.default_rng(0).random((20, *shape), np.float32)
    for file in (onnx_extractors.random_extractor(shape, 0, 8), onnx_extractors.kmeans_extractor(images, 0, 8)):
        f = OnnxModel(file, 10, seed=0).features(images)
        assert np.isfinite(f).all()
        assert f.std() > 0.1


def test_files_are_reproducible_and_old_runtimes_read_them(digits: tuple[np.ndarray, ...]) -> None:
    images = digits[0][:100]
    for make in (
        lambda seed: onnx_extractors.random_extractor((1, 8, 8), seed),
        lambda seed: onnx_extractors.kmeans_extractor(images, seed),
        lambda seed: onnx_extractors.teacher(images, digits[1][:100], 10, seed, steps=5),
    ):
        assert make(0) == make(0) != make(1)
        model = onnx.load_from_string(make(0))
        assert (model.ir_version, model.opset_import[0].version) == (8, 17)


def test_the_triangle_is_a_difference_of_squared_distances() -> None:
    rng = np.random.default_rng(0)
    centres, x = rng.normal(size=(5, 7)), rng.normal(size=(20, 7))
    weights, biases = triangle(centres)
    squares = ((x[:, None] - centres[None]) ** 2).sum(axis=2)  # (20, 5)
    expected = (squares.mean(axis=1, keepdims=True) - squares) / 2
    np.testing.assert_allclose(x @ weights.T + biases, expected, atol=1e-12)


def test_filters_are_blind_to_brightness_as_their_patches_were() -> None:
    images = np.random.default_rng(0).random((30, 2, 6, 6), np.float32)
    weights, biases = kmeans_filters(images, 5, 3, seed=0)
    assert (weights.shape, weights.dtype, biases.dtype) == ((5, 2, 3, 3), np.float32, np.float32)
    np.testing.assert_allclose(weights.sum(axis=(1, 2, 3)), 0, atol=1e-4)
    np.testing.assert_array_equal(weights, kmeans_filters(images, 5, 3, seed=0)[0])


def test_too_uniform_images_are_refused() -> None:
    with pytest.raises(UsageError, match="8 filters need more"):
        kmeans_filters(np.zeros((5, 1, 6, 6), np.float32), 8, 3, seed=0)


def test_filters_do_not_depend_on_the_number_of_threads() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    images = np.random.default_rng(1).random((40, 1, 12, 12), np.float32)
    found = []
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(limits=threads):
            found.append(kmeans_filters(images, 8, 3, seed=3))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_filters_are_finite_even_when_patches_repeat() -> None:
    """Two kinds of patches for six filters."""
    stripes = np.zeros((4, 1, 6, 6), np.float32)
    stripes[:, :, ::3] = 1
    weights, biases = kmeans_filters(stripes, 6, 3, seed=0)
    assert np.isfinite(weights).all()
    assert np.isfinite(biases).all()


def test_the_example_writes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parents[2] / "examples" / "make_extractors.py"
    spec = importlib.util.spec_from_file_location("make_extractors", file)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(tmp_path / "out")
    assert capsys.readouterr().out.count(".onnx: ") == 2
    for name in ("random", "kmeans"):
        assert OnnxModel(tmp_path / "out" / f"{name}.onnx", 10, seed=0).logits(example.public_images()).shape == (
            400,
            10,
        )

"""Nets that numpy alone trains: dense layers, and files."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cosine_suite import SCALE, CosineSuite
from model_suite import ADAM, CLASSES, SHAPE, ModelSuite, WeightSuite, batches, samples

from edge_sdk.errors import ModelError, UsageError
from edge_sdk.models.base import Batches
from edge_sdk.models.exporting import export
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.onnx_file.graph import port, samples_graph
from edge_sdk.models.onnx_file.node import node
from edge_sdk.objectives import CrossEntropy, Optim

SGD = Optim(kind="sgd", learning_rate=0.05)


class TestDense(ModelSuite, WeightSuite):
    """Two hidden layers."""

    def make(self, seed: int = 0) -> NumpyModel:
        return NumpyModel(CLASSES, SHAPE, seed=seed, hidden=(12, 8))


class TestDenseCosine(CosineSuite):
    """A hidden layer under a head that compares directions."""

    def make(self, seed: int = 0) -> NumpyModel:
        made = NumpyModel(CLASSES, SHAPE, seed=seed, hidden=(12,), head="cosine")
        made.set_scale(SCALE, trains=True)
        return made


def test_a_hidden_layer_by_hand() -> None:
    """Forward, and the gradient of one step of sgd with rate 1."""
    model = NumpyModel(2, (1, 1, 2), seed=0, hidden=(2,))
    w1, b1, w2, b2 = np.array([[1.0, -1], [2, 0]]), np.array([0.0, -1]), np.array([[1.0, 1], [0, 2]]), np.zeros(2)
    model.set_weights(np.concatenate([w.ravel() for w in (w1, b1, w2, b2)]).astype(np.float32))
    x = np.array([[3.0, 1]], np.float32).reshape(1, 1, 1, 2)
    np.testing.assert_allclose(model.features(x), [[2, 5]])
    np.testing.assert_allclose(model.logits(x), [[7, 10]])
    share = 1 / (1 + np.exp(-3))
    at_logits = np.array([1 - share - 0.0, share - 1])  # softmax less one-hot of class 1
    at_hidden = at_logits @ w2
    expected = [w1 - np.outer(at_hidden, [3, 1]), b1 - at_hidden, w2 - np.outer(at_logits, [2, 5]), b2 - at_logits]
    work = Batches(inputs=x, labels=np.array([1]), indices=np.array([[0]]), stochastic=False)
    model.fit(work, (CrossEntropy(),), Optim(kind="sgd", learning_rate=1.0))
    np.testing.assert_allclose(model.weights(), np.concatenate([e.ravel() for e in expected]), atol=1e-6)


def test_a_written_file_is_read_again(tmp_path: Path) -> None:
    model, x = NumpyModel(CLASSES, SHAPE, seed=0, hidden=(12, 8)), samples()[0]
    model.fit(batches(5), (CrossEntropy(),), ADAM)
    file = export(model, tmp_path / "net.onnx", x)
    again = NumpyModel.from_onnx(file)
    assert again.spec.layout == model.spec.layout
    np.testing.assert_array_equal(again.weights(), model.weights())
    np.testing.assert_array_equal(again.logits(x), model.logits(x))
    assert again.spec.note == "learns: 3 of 3 layers"
    assert NumpyModel.from_onnx(file, train="last-2").weights().size == 13 * 8 + 9 * CLASSES


def test_an_operator_that_numpy_lacks_is_one_line() -> None:

    graph = replace(samples_graph("x", (3,)), nodes=(node("Sinh", ["x"], "y"),), outputs={"y": port("y")})
    with pytest.raises(ModelError, match=r"numpy does not compute Sinh here: install onnxruntime$"):
        NumpyModel.from_onnx(graph.content(), 2, features="y")
    with pytest.raises(ModelError, match="without ONNX Runtime, its last linear layer does not show"):
        NumpyModel.from_onnx(graph.content(), 2)


def test_arguments_of_another_kind_are_one_line() -> None:
    for hidden in (64, "64,32"):
        with pytest.raises(UsageError, match=r"give the width of each layer, such as hidden=\(64, 32\)$"):
            NumpyModel(CLASSES, SHAPE, seed=0, hidden=hidden)
    with pytest.raises(UsageError, match=r"found int: give the path of an .onnx file, or its bytes$"):
        NumpyModel.from_onnx(3)
    with pytest.raises(UsageError, match=r"expected all, last-4, or a name: OnnxModel trains the head alone$"):
        NumpyModel.from_onnx(b"", train="head")
    with pytest.raises(ModelError, match=r"^no-such.onnx cannot be read"):
        NumpyModel.from_onnx("no-such.onnx")


def test_neither_torch_nor_onnx_runtime_is_loaded() -> None:
    code = (
        "import sys; from edge_sdk.models.numpy_model import NumpyModel; import numpy as np;"
        "m = NumpyModel(3, (1, 4, 4), seed=0, hidden=(5,)); m.logits(np.zeros((2, 1, 4, 4), 'f4'));"
        "assert not {'torch', 'onnxruntime', 'onnx'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.torch
class TestBesideTorch:
    """Numpy, ONNX Runtime and torch train one net to the same weights."""

    def test_dense_layers(self) -> None:
        torch = pytest.importorskip("torch")
        from edge_sdk.models.torch_nets.torch_model import TorchModel

        one = NumpyModel(CLASSES, SHAPE, seed=0, hidden=(12, 8))
        nn = torch.nn
        layers = nn.Flatten(), nn.Linear(36, 12), nn.ReLU(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, CLASSES)
        two = TorchModel(nn.Sequential(*layers), CLASSES, input_shape=SHAPE)
        assert one.spec.layout == two.spec.layout
        two.set_weights(one.weights())
        for each in (one, two):
            each.fit(batches(50), (CrossEntropy(),), SGD)
        np.testing.assert_allclose(one.weights(), two.weights(), atol=2e-6)

    def test_a_file(self) -> None:
        pytest.importorskip("onnxruntime")
        from test_onnx_training import exported, net

        from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel

        one, two = NumpyModel.from_onnx(exported(net())), OnnxModel(exported(net()), train="all")
        assert one.spec.layout == two.spec.layout
        assert (one.spec.feature_dim, one.spec.flops_per_sample) == (two.spec.feature_dim, two.spec.flops_per_sample)
        for each in (one, two):
            each.fit(batches(50), (CrossEntropy(),), SGD)
        np.testing.assert_allclose(one.weights(), two.weights(), atol=2e-6)
        np.testing.assert_allclose(one.logits(samples()[0]), two.logits(samples()[0]), atol=1e-5)

    def test_a_file_of_the_newer_exporter(self, tmp_path: Path) -> None:
        """It asks for parts of shapes, and for ranges."""
        torch = pytest.importorskip("torch")
        for package in ("onnxruntime", "onnxscript"):
            pytest.importorskip(package)
        from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel

        nn, path = torch.nn, tmp_path / "net.onnx"
        padded = nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")
        layers = padded, nn.ReLU(), nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 8)
        net = nn.Sequential(*layers, nn.ReLU(), nn.Linear(8, CLASSES)).eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter about itself
            torch.onnx.export(net, (torch.zeros(2, *SHAPE),), path, dynamo=True, optimize=False, verbose=False,
                              dynamic_shapes=({0: torch.export.Dim("n")},), external_data=False)  # fmt: skip
        one, two = NumpyModel.from_onnx(path), OnnxModel(path, train="all")
        assert (one.spec.layout, one.spec.note) == (two.spec.layout, two.spec.note.rpartition("; ")[2])
        for each in (one, two):
            each.fit(batches(20), (CrossEntropy(),), SGD)
        np.testing.assert_allclose(one.weights(), two.weights(), atol=2e-6)

"""Models written as .onnx files give the same logits in ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_suite import ADAM, CLASSES, SHAPE, batches, samples

import edge_sdk
from edge_sdk.errors import MissingExtra, ModelError, StoreError, Unsupported
from edge_sdk.models import export
from edge_sdk.models.spliced import Spliced
from edge_sdk.objectives import CrossEntropy

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx_files import answers, classifier  # only where onnx is installed


def trained(model: Any) -> Any:
    model.fit(batches(5), (CrossEntropy(),), ADAM)
    return model


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_numpy(head: Any, tmp_path: Path) -> None:
    model, (x, _) = trained(edge_sdk.NumpyModel(CLASSES, SHAPE, seed=0, head=head)), samples()
    file = export(model, tmp_path / "model.onnx", x[:1])
    np.testing.assert_allclose(answers(file.read_bytes(), x, "samples"), model.logits(x), atol=1e-4)
    assert [each.name for each in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.torch
@pytest.mark.parametrize("head", ["linear", pytest.param("cosine", marks=pytest.mark.long)])
def test_torch(head: Any, tmp_path: Path) -> None:
    """With a dynamic batch, from one sample, with normalisation and dropout as in inference."""
    pytest.importorskip("onnxscript")
    nn = pytest.importorskip("torch").nn
    body = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(64, 8))
    net = nn.Sequential(*body, nn.Linear(8, CLASSES))
    model, (x, _) = trained(edge_sdk.TorchModel(net, CLASSES, input_shape=SHAPE, head=head)), samples()
    file = export(model, tmp_path / "model.onnx", x[:1])
    for n in (1, 7):
        np.testing.assert_allclose(answers(file.read_bytes(), x[:n], "samples"), model.logits(x[:n]), atol=1e-4)
    again = edge_sdk.OnnxModel(file, CLASSES)
    np.testing.assert_allclose(again.logits(x), model.logits(x), atol=1e-4)


@pytest.mark.torch
@pytest.mark.long
def test_two_nets_that_predict_together_are_one_file(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    nn = pytest.importorskip("torch").nn
    own, proxy = (
        edge_sdk.TorchModel(
            nn.Sequential(nn.Flatten(), nn.Linear(36, d), nn.ReLU(), nn.Linear(d, CLASSES)), CLASSES, input_shape=SHAPE
        )
        for d in (8, 5)
    )
    both, (x, _) = Spliced(own, proxy, np.random.default_rng(0).normal(size=(8, 14)).astype(np.float32)), samples()
    file = export(both.serving_copy(), tmp_path / "model.onnx", x[:1])
    np.testing.assert_allclose(answers(file.read_bytes(), x, "samples"), both.logits(x), atol=1e-4)


@pytest.mark.torch
@pytest.mark.long
def test_a_net_that_torch_cannot_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    torch = pytest.importorskip("torch")

    class Odd(torch.nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x.flatten(1)) * (1 if x.sum() > 0 else 2)

    x, _ = samples()
    model = edge_sdk.TorchModel(Odd(36, CLASSES), CLASSES)
    with pytest.raises(ModelError) as refused:
        export(model, tmp_path / "model.onnx", x[:1])
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nn = pytest.importorskip("torch").nn
    model = edge_sdk.TorchModel(nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES)), CLASSES)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=package):
        export(model, tmp_path / "model.onnx", samples()[0][:1])


def test_models_that_cannot_be_exported(tmp_path: Path) -> None:
    model = edge_sdk.PredictOnly(lambda x: x, CLASSES)
    with pytest.raises(Unsupported, match="PredictOnly"):
        export(model, tmp_path / "model.onnx", samples()[0])


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    model = edge_sdk.OnnxModel(classifier())
    with pytest.raises(StoreError, match="nowhere"):
        export(model, tmp_path / "nowhere" / "model.onnx", samples()[0])


def test_from_an_agent(tmp_path: Path) -> None:
    x, y = samples()
    model = edge_sdk.OnnxModel(classifier())
    data = edge_sdk.LocalData(train=edge_sdk.Samples(x[:, 0], y))
    agent = edge_sdk.Agent(
        federation="f", broker="mqtt://127.0.0.1:1", identity="d", model=model, data=data, state=tmp_path / "state"
    )
    file = agent.export(tmp_path / "model.onnx")
    np.testing.assert_allclose(answers(file.read_bytes(), x), model.logits(x), atol=1e-4)
    agent.participant.context.store.close()

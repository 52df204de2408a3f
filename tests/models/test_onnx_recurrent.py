"""LSTM and GRU learn as in torch, step by step; what cannot be followed freezes what lies before it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from model_suite import CLASSES, batches
from test_onnx_training import SGD, exported

from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.torch

from torch import Tensor, nn

from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.models.torch_nets.torch_model import TorchModel

SHAPE = (1, 7, 5)


class Series(nn.Module):
    """A recurrent layer over seven steps of five numbers, and a last layer on its last step."""

    def __init__(self, kind: str, **how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](5, 6, batch_first=True, **how)
        self.last = nn.Linear(12 if how.get("bidirectional") else 6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found, _ = self.inner(x.flatten(1, 2))
        return self.last(found[:, -1])


def work(steps: int) -> Batches:
    given = batches(steps)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(given.inputs), *SHAPE)).astype(np.float32)
    return Batches(inputs=x, labels=given.labels, indices=given.indices, stochastic=False)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("how", [{}, {"bidirectional": True}, {"num_layers": 2}, {"bias": False}], ids=str)
def test_it_learns_as_in_torch(kind: str, how: dict[str, Any]) -> None:
    one = OnnxModel(exported(Series(kind, **how), SHAPE), train="all")
    two = TorchModel(Series(kind, **how), CLASSES, input_shape=SHAPE)
    assert one.spec.layout == two.spec.layout
    assert "freezes" not in one.spec.note
    x, start = work(1).inputs, one.logits(work(1).inputs)
    np.testing.assert_allclose(start, two.logits(x), atol=1e-5)
    for each in (one, two):
        each.fit(work(50), (CrossEntropy(),), SGD)
    np.testing.assert_allclose(one.logits(x), two.logits(x), atol=1e-5)
    assert np.abs(one.logits(x) - start).max() > 0.01


@pytest.mark.parametrize("kind", [pytest.param("lstm", marks=pytest.mark.long), "gru"])
def test_a_file_of_the_newer_exporter_learns_as_in_torch(kind: str, tmp_path: Any) -> None:
    pytest.importorskip("onnxscript")
    path, net = tmp_path / "net.onnx", Series(kind).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        torch.onnx.export(net, (torch.zeros(2, *SHAPE),), path, dynamo=True, optimize=False, verbose=False,
                          dynamic_shapes=({0: torch.export.Dim("n")},), external_data=False)  # fmt: skip
    one, two = OnnxModel(path, train="all"), TorchModel(net, CLASSES, input_shape=SHAPE)
    assert one.spec.layout == two.spec.layout
    for each in (one, two):
        each.fit(work(20), (CrossEntropy(),), SGD)
    np.testing.assert_allclose(one.weights(), two.weights(), atol=1e-5)


def test_the_other_form_of_a_gru() -> None:
    """linear_before_reset = 0, as Keras writes it: the slope is compared with small differences."""
    model = onnx.load_from_string(exported(Series("gru"), SHAPE))
    (gru,) = (each for each in model.graph.node if each.op_type == "GRU")
    (flag,) = (each for each in gru.attribute if each.name == "linear_before_reset")
    flag.i = 0
    content = model.SerializeToString()
    plain = OnnxModel(content)
    made, x = OnnxModel(content, train="all"), work(1).inputs
    np.testing.assert_allclose(made.logits(x), plain.logits(x), atol=1e-5)
    body = made.learning
    features, back = body.forward(x[:8])
    slope = np.random.default_rng(1).normal(size=features.shape).astype(np.float32)
    found = back(slope).copy()
    rng, start = np.random.default_rng(2), body.values.copy()
    for _ in range(5):
        way = rng.normal(size=start.shape).astype(np.float32)
        values = []
        for sign in (1, -1):
            body.values[:] = start + np.float32(sign * 1e-3) * way
            values.append(float((body.forward(x[:8])[0] * slope).sum(dtype=np.float64)))
        assert (values[0] - values[1]) / 2e-3 == pytest.approx(float(found @ way), rel=0.01, abs=0.01)


def test_one_with_a_limit_freezes_what_lies_before_it() -> None:
    model = onnx.load_from_string(exported(Series("lstm"), SHAPE))
    (lstm,) = (each for each in model.graph.node if each.op_type == "LSTM")
    lstm.attribute.append(onnx.helper.make_attribute("clip", 3.0))
    with pytest.raises(Exception, match=r"LSTM \(of more than 256 steps, or with .*\) freezes them: use train='head'"):
        OnnxModel(model.SerializeToString(), train="all")

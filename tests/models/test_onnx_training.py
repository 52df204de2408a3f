"""An .onnx file whose layers learn: the suite of every model, and torch's own steps on the net that was exported."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
from cosine_suite import SCALE, CosineSuite
from model_suite import ADAM, CLASSES, SHAPE, ModelSuite, WeightSuite, batches, samples

from edge_sdk.errors import ModelError
from edge_sdk.models.base import serving_copy
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import CrossEntropy, Optim, PrototypePull, Proximal

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.torch

from torch import Tensor, nn

from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.models.onnx_runtime.onnx_session import OnnxEngine
from edge_sdk.models.onnx_training import body as body_module
from edge_sdk.models.torch_nets.torch_model import TorchModel

SGD = Optim(kind="sgd", learning_rate=0.05)


def net(seed: int = 0) -> nn.Module:
    """A convolution, a norm with statistics, a pool and two layers."""
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.Hardswish(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(16, 8),
        nn.Tanh(),
        nn.Linear(8, CLASSES),
    )
    made[1].running_mean.copy_(torch.linspace(-0.2, 0.2, 4))  # those stay as they are in the file
    made[1].running_var.copy_(torch.linspace(0.5, 2, 4))
    return made.eval()


def exported(made: nn.Module, shape: Sequence[int] = SHAPE, size: int = 0, **options: Any) -> bytes:
    """The file of a net, by torch's older exporter: without folding, its weights keep their names.

    size: of the batch, if it is fixed.
    """
    file = io.BytesIO()
    axes = {} if size else {"dynamic_axes": {"x": {0: "n"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = {"dynamo": False, "do_constant_folding": False, "opset_version": 17, **axes, **options}
        torch.onnx.export(made, (torch.zeros(size or 2, *shape),), file, input_names=["x"], **chosen)
    return file.getvalue()


class TestAll(ModelSuite, WeightSuite):
    """All layers learn."""

    def make(self, seed: int = 0) -> OnnxModel:
        return OnnxModel(exported(net(seed)), train="all")

    def test_its_note_says_what_learns(self, model: OnnxModel) -> None:
        assert model.spec.note.endswith("learns: 3 of 3 layers")
        assert model.spec.parameters == sum(p.numel() for p in net().parameters())


class TestCosine(CosineSuite):
    """All layers learn, under a head that compares directions."""

    def make(self, seed: int = 0) -> OnnxModel:
        made = OnnxModel(exported(net(seed)), train="all", head="cosine")
        made.set_scale(SCALE, trains=True)
        return made


@pytest.mark.parametrize("optim", [Optim(kind="sgd", learning_rate=0.01, momentum=0.9, weight_decay=0.1),
                                   Optim(kind="sgd", learning_rate=0.05, weight_decay=0.1, decay_all=True),
                                   Optim(learning_rate=0.01, clip_norm=0.5)],
                         ids=["momentum", "decay of all", "adam, clipped"])  # fmt: skip
@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_fifty_steps_are_those_of_torch(optim: Optim, head: Literal["linear", "cosine"]) -> None:
    """On logits, features and weights together; layout and weights are those of the torch net from the start."""
    file = exported(net())
    one = OnnxModel(file, train="all", head=head, seed=1)
    two = TorchModel(net(), CLASSES, input_shape=SHAPE, head=head)
    assert one.spec.layout == two.spec.layout
    assert one.spec.shapes == two.spec.shapes
    if head == "cosine":
        two.set_weights(one.weights())
    np.testing.assert_array_equal(one.weights(), two.weights())
    np.testing.assert_array_equal(one.head_mask(), two.head_mask())
    rows = np.random.default_rng(1).normal(size=(2, 8)).astype(np.float32)
    pull = PrototypePull(classes=np.array([0, 2]), rows=rows)
    anchor = one.weights() + 1
    for _ in range(50):
        objective = (CrossEntropy(), pull, Proximal(anchor=anchor, weight=0.1))
        losses = [each.fit(batches(1), objective, optim).loss for each in (one, two)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    difference = np.abs(one.weights() - two.weights()).max() / np.abs(two.weights()).max()
    assert difference < 1e-5
    np.testing.assert_allclose(one.features(samples()[0]), two.features(samples()[0]), atol=1e-5)


@pytest.mark.parametrize("optim", [SGD, Optim(learning_rate=0.01, clip_norm=0.5)], ids=["sgd", "adam, clipped"])
def test_a_step_on_the_cross_entropy_alone_is_one_session(optim: Optim, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the steps of torch, and those that it takes in parts where another term is there."""
    one, other = OnnxModel(exported(net()), train="all"), OnnxModel(exported(net()), train="all")
    two = TorchModel(net(), CLASSES, input_shape=SHAPE)
    nothing = Proximal(anchor=one.weights(), weight=0.0)
    other.fit(batches(20), (CrossEntropy(), nothing), optim)
    monkeypatch.setattr(OnnxEngine, "passes", lambda *_: pytest.fail("the passes are computed one by one"))
    losses = [each.fit(batches(20), (CrossEntropy(),), optim).loss for each in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for each in (two, other):
        assert np.abs(one.weights() - each.weights()).max() < 1e-5 * np.abs(each.weights()).max()


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_part_trains_as_in_torch(part: Literal["head", "body"]) -> None:
    one, two = OnnxModel(exported(net()), train="all"), TorchModel(net(), CLASSES, input_shape=SHAPE)
    for each in (one, two):
        each.fit(batches(5), (CrossEntropy(),), SGD, part)
    np.testing.assert_allclose(one.weights(), two.weights(), atol=1e-6)


@pytest.mark.parametrize(
    ("train", "names"),
    [
        ("last-1", ["7.weight", "7.bias"]),
        ("last-2", ["5.weight", "5.bias", "7.weight", "7.bias"]),
        ("5", ["5.weight", "5.bias", "7.weight", "7.bias"]),
        ("5.weight", ["5.weight", "5.bias", "7.weight", "7.bias"]),
    ],
)
def test_some_layers_learn(train: str, names: list[str]) -> None:
    if train == "last-1":
        with pytest.raises(ModelError, match=r"no layer before the last one can learn .*use train='head'"):
            OnnxModel(exported(net()), train=train)
        return
    one = OnnxModel(exported(net()), train=train)
    assert list(one.weight_names()) == names
    given = net()
    for name, parameter in given.named_parameters():
        parameter.requires_grad_(name in names)
    two = TorchModel(given, CLASSES, input_shape=SHAPE)
    assert one.spec.layout == two.spec.layout
    for each in (one, two):
        each.fit(batches(5), (CrossEntropy(),), SGD)
    np.testing.assert_allclose(one.weights(), two.weights(), atol=1e-6)
    assert "learns: 2 of 3 layers" in one.spec.note


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(ModelError, match=r"train='5\.wieght': expected head, all, last-4, .*nearest: 5\.weight"):
        OnnxModel(exported(net()), train="5.wieght")


@pytest.mark.parametrize("model", [OnnxModel, NumpyModel.from_onnx])
def test_a_layer_is_named_by_a_text(model: Any) -> None:
    with pytest.raises(ModelError, match=r"train=5: expected head, all, last-4, or the name of a layer"):
        model(exported(net()), train=5)


def test_the_written_file_holds_the_trained_weights_and_the_same_structure() -> None:
    model, x = OnnxModel(exported(net()), train="all"), samples()[0]
    model.fit(batches(5), (CrossEntropy(),), SGD)
    written = model.onnx_bytes(x)
    again = OnnxModel(written, train="all")
    np.testing.assert_array_equal(again.weights(), model.weights())
    assert again.spec.layout == model.spec.layout
    session = onnx.load_from_string(written)
    assert {each.name for each in session.graph.initializer} >= {name for name, _ in net().named_parameters()}
    np.testing.assert_allclose(OnnxModel(written).logits(x), model.logits(x), atol=1e-5)


def test_a_copy_predicts_while_the_model_trains() -> None:
    model, x = OnnxModel(exported(net()), train="all"), samples()[0]
    served = serving_copy(model)
    before = model.logits(x)
    model.fit(batches(3), (CrossEntropy(),), ADAM)
    np.testing.assert_array_equal(served.logits(x), before)
    assert not np.array_equal(model.logits(x), before)


class TestSplitBatches:
    """Where the memory does not hold a mini-batch, its parts follow each other."""

    def steps(self, objective: tuple[Any, ...]) -> np.ndarray:
        model = OnnxModel(exported(net()), train="all")
        model.fit(batches(5), objective, SGD)
        return model.weights()

    def test_their_sum_is_that_of_the_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = np.ones((CLASSES, 8), np.float32)
        objective = (CrossEntropy(), PrototypePull(classes=np.arange(CLASSES), rows=rows))
        whole = self.steps(objective)
        need = OnnxModel(exported(net()), train="all").learning.written_bytes
        monkeypatch.setattr(body_module, "free_memory_bytes", lambda: int(2 * 3 * need / body_module.SHARE))
        np.testing.assert_allclose(self.steps(objective), whole, atol=1e-6)

    def test_no_room_for_one_sample_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(body_module, "free_memory_bytes", lambda: 100)
        with pytest.raises(ModelError, match=r"training takes 0 MiB for one sample, and 0 MiB are free: .*last-4"):
            self.steps((CrossEntropy(),))

    def test_a_file_for_single_samples_alone(self) -> None:
        """The size of the batch stands in a Reshape."""

        class Fixed(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net()

            def forward(self, x: Tensor) -> Tensor:
                return self.net(x.reshape(1, 6, 6, 1).permute(0, 3, 1, 2))

        one, two = OnnxModel(exported(Fixed(), size=1), train="all"), OnnxModel(exported(net()), train="all")
        assert one.learning.most == 1
        for each in (one, two):
            each.fit(batches(5), (CrossEntropy(),), SGD)
        np.testing.assert_allclose(one.weights(), two.weights(), atol=1e-6)

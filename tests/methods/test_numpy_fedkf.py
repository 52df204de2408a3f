"""FedKF without torch: its generator and its teacher by ONNX Runtime and by numpy, step for step as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edge_sdk.errors import ModelError, StoreError, Unsupported
from edge_sdk.methods.parts.fedkf_term import DataFree, Plan, first_weights, looks_of
from edge_sdk.methods.parts.numpy_fedkf import GraphGenerator
from edge_sdk.models.base import Batches, pack_arrays, preparing, unpack_arrays
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.onnx_file.graph import OPSET, Graph, port, rows_port
from edge_sdk.models.onnx_file.node import node
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of
from edge_sdk.models.onnx_training.engine import to_its_end
from edge_sdk.models.onnx_training.numpy_body import NumpyEngine
from edge_sdk.objectives import CrossEntropy, Optim, Seen

SGD = Optim(kind="sgd", learning_rate=0.1)
CLASSES = 4
SHAPE = (3, 9, 10)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, *SHAPE)).astype(np.float32)
Y = np.arange(30) % CLASSES


def batches(seed: int = 5, steps: int = 1, size: int = 6) -> Batches:
    rng = np.random.default_rng(seed)
    return Batches(inputs=X, labels=Y, indices=rng.integers(0, len(X), (steps, size)), seed=seed)


def pictures_file(*, last_axis: bool = False, operator: str = "Tanh") -> bytes:
    """A convolution, an operator and two layers; last_axis: it takes pictures (n, h, w, c)."""
    rng, (c, h, w) = np.random.default_rng(3), SHAPE
    shapes = {"conv": (5, c, 3, 3), "first": (7, 5 * (h - 2) * (w - 2)), "last": (CLASSES, 7), "bias": (CLASSES,)}
    held = {
        name: (rng.normal(size=shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32) for name, shape in shapes.items()
    }
    nodes = [
        node("Transpose", ["x"], "turned", perm=[0, 3, 1, 2]) if last_axis else node("Identity", ["x"], "turned"),
        node("Conv", ["turned", "conv"], "maps"),
        node(operator, ["maps"], "active"),
        node("Flatten", ["active"], "flat"),
        node("Gemm", ["flat", "first"], "sum", transB=1),
        node("Sigmoid", ["sum"], "features"),
        node("Gemm", ["features", "last", "bias"], "logits", transB=1),
    ]
    constants = {name: Constant(name, tensor_of(name, values), None) for name, values in held.items()}
    inputs = {"x": rows_port("x", *((h, w, c) if last_axis else SHAPE))}
    return Graph(tuple(nodes), constants, inputs, {"logits": port("logits")}, {"": OPSET}, 8).content()


def by_numpy(file: bytes) -> Any:
    return NumpyModel.from_onnx(file)


def by_runtime(file: bytes) -> Any:
    pytest.importorskip("onnxruntime")
    from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel  # only where it is installed

    return OnnxModel(file, train="all")


ENGINES = pytest.mark.parametrize("model_of", [by_numpy, by_runtime])


def term_for(model: Any, **how: Any) -> DataFree:
    moved = model.weights() + 0.3 * np.random.default_rng(2).normal(size=model.spec.parameters).astype(np.float32)
    return DataFree(teacher=moved, **how)


# -- against torch --------------------------------------------------------------------------------------------------


@pytest.mark.torch
@ENGINES
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"adversarial": True, "active": 1.0},
        {"raw": True, "samples": 5, "warm": False},
        {"weight": 3.0, "rate": 0.01},
    ],
    ids=["warm", "adversarial", "cold", "fast"],
)
def test_each_step_is_that_of_torch(model_of: Callable[[bytes], Any], how: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from torch import nn

    from edge_sdk.models.torch_nets.torch_model import TorchModel

    ours = model_of(pictures_file())
    layers = nn.Conv2d(3, 5, 3, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(280, 7, bias=False), nn.Sigmoid()
    theirs = TorchModel(nn.Sequential(*layers, nn.Linear(7, CLASSES)), CLASSES, input_shape=SHAPE)
    theirs.set_weights(ours.weights())
    objective = (CrossEntropy(), term_for(ours, **how))
    for step in range(12):
        found = [each.fit(batches(step), objective, SGD) for each in (ours, theirs)]
        np.testing.assert_allclose(ours.weights(), theirs.weights(), atol=2e-6)
        assert found[0].loss == pytest.approx(found[1].loss, abs=1e-5)
        assert found[0].instruments == pytest.approx(found[1].instruments, abs=1e-4)
    assert found[0].extra_flops == pytest.approx(found[1].extra_flops, rel=0.01)
    plain = model_of(pictures_file())
    for step in range(12):
        plain.fit(batches(step), objective[:1], SGD)
    assert np.abs(plain.weights() - ours.weights()).max() > 1e-2  # the tolerance means something


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 5, 7), (3, 4, 4)])
@pytest.mark.parametrize("size", ["board", "paper"])
def test_a_generator_makes_what_torchs_does(shape: tuple[int, int, int], size: str) -> None:
    torch = pytest.importorskip("torch")
    from edge_sdk.methods.parts.torch_fedkf import Maker

    plan = Plan(size, 6, shape)
    maker = Maker(plan, 1e-3, 4, torch.device("cpu"))
    noise = np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)
    low, span = (np.full((1, shape[0], 1, 1), value, np.float32) for value in (-1, 3))
    made = GraphGenerator(plan, 1e-3, 4, NumpyEngine()).samples(noise, low, span)
    np.testing.assert_allclose(made, 3 * maker.net(torch.from_numpy(noise)).detach().numpy() - 1, atol=1e-5)
    sizes = {name: tuple(each.shape) for name, each in maker.net.named_parameters()}
    assert sizes == {**plan.arrays}


def test_first_weights_are_drawn_as_torch_draws_them() -> None:
    drawn = first_weights(Plan("board", 100, (1, 8, 8)), 0)
    assert np.abs(drawn["layers.0.weight"]).max() == pytest.approx(100**-0.5, rel=0.01)
    assert np.abs(drawn["layers.0.bias"]).max() == pytest.approx(100**-0.5, rel=0.1)
    assert np.abs(drawn["layers.4.weight"]).max() == pytest.approx((16 * 9) ** -0.5, rel=0.01)
    assert (drawn["layers.3.weight"] == 1).all()
    assert not drawn["layers.5.bias"].any()


# -- slopes ---------------------------------------------------------------------------------------------------------


def central(value: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    found = np.zeros(at.shape)
    for place in np.ndindex(at.shape):
        nudge = np.zeros(at.shape)
        nudge[place] = 1e-4
        found[place] = (value(at + nudge) - value(at - nudge)) / 2e-4
    return found


@pytest.mark.parametrize("raw", [True, False])
def test_the_slopes_of_the_generators_loss(raw: bool) -> None:
    rng = np.random.default_rng(1)
    logits, features = 2 * rng.normal(size=(5, 3)), rng.normal(size=(5, 6))
    term: Any = DataFree(teacher=np.zeros(1, np.float32), raw=raw, certain=0.7, active=0.3)
    at_logits, at_features = term.generator_slopes(logits, features)
    np.testing.assert_allclose(at_logits, central(lambda x: term.generator_loss(x, features), logits), atol=1e-6)
    np.testing.assert_allclose(at_features, central(lambda x: term.generator_loss(logits, x), features), atol=1e-6)


def test_the_slopes_of_the_adversarial_part() -> None:
    teacher, own = np.random.default_rng(1).normal(size=(2, 5, 3))
    term: Any = DataFree(teacher=np.zeros(1, np.float32), weight=2.0)
    found = term.adversarial_slopes(teacher, own)
    np.testing.assert_allclose(found[0], central(lambda x: -term.value(Seen(own=(x, own))), teacher), atol=1e-6)
    np.testing.assert_allclose(found[1], central(lambda x: -term.value(Seen(own=(teacher, x))), own), atol=1e-6)


def test_a_teacher_that_never_takes_a_class_gives_numbers() -> None:
    logits = np.array([[200, 0, 0], [300, 0, 0]], np.float32)
    term = DataFree(teacher=np.zeros(1, np.float32))
    assert all(np.isfinite(each).all() for each in term.generator_slopes(logits, np.zeros((2, 4), np.float32)))
    assert looks_of(logits)["generated_class_entropy"] == pytest.approx(0)


@ENGINES
@pytest.mark.parametrize("last_axis", [False, True])
def test_slopes_of_samples(model_of: Callable[[bytes], Any], last_axis: bool) -> None:
    model = model_of(pictures_file(last_axis=last_axis))
    x, (at_logits, at_features) = X[:3], (RNG.normal(size=(3, n)).astype(np.float32) for n in (CLASSES, 7))
    logits, _, back = model.samples_pass(x)
    np.testing.assert_allclose(logits, model.logits(x), atol=1e-5)
    found = back(at_logits, at_features)
    assert found.shape == x.shape
    step = np.random.default_rng(1).normal(size=x.shape).astype(np.float32) * 1e-2
    ends = [
        (at_logits * model.logits(x + s * step)).sum() + (at_features * model.features(x + s * step)).sum()
        for s in (1, -1)
    ]
    assert (found * step).sum() == pytest.approx((ends[0] - ends[1]) / 2, rel=1e-2)
    model.learning_body.most = 2  # the memory holds no more samples at once
    model.learning_body._to_samples.clear()
    np.testing.assert_allclose(model.samples_pass(x)[2](at_logits, at_features), found, atol=1e-6)


# -- refusals -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_made_up_is_refused_at_join() -> None:
    assert "data-free" in by_numpy(pictures_file()).spec.terms
    flat = NumpyModel(CLASSES, (1, 1, 90), seed=0, hidden=(7,))
    assert "data-free" not in flat.spec.terms
    assert "data-free" not in NumpyModel(CLASSES, SHAPE, seed=0).spec.terms
    with pytest.raises(Unsupported, match="cannot minimise 'data-free'"):
        flat.fit(batches(), (DataFree(teacher=flat.weights()),), SGD)


def test_a_file_with_an_operator_without_a_rule_before_its_layers_is_refused() -> None:
    pytest.importorskip("onnxruntime")
    model = by_runtime(pictures_file(operator="Round"))
    assert "weights" in model.spec.capabilities  # the layers behind it learn
    assert "data-free" not in model.spec.terms


def test_a_teacher_of_another_size_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'data-free': .*\(3,\).*model"):
        by_numpy(pictures_file()).fit(batches(), (CrossEntropy(), DataFree(teacher=np.zeros(3, np.float32))), SGD)


# -- a restart, and pauses ------------------------------------------------------------------------------------------


@ENGINES
def test_a_warm_generator_survives_a_restart(model_of: Callable[[bytes], Any]) -> None:
    whole = model_of(pictures_file())
    first, second = term_for(whole), term_for(whole, adversarial=True)
    before = whole.state_bytes()
    whole.fit(batches(), (CrossEntropy(), first), SGD)
    state = whole.state_bytes()
    again = model_of(pictures_file())
    again.load_state(state)
    assert again.state_bytes() == state
    for model in (whole, again):
        model.fit(batches(seed=8), (CrossEntropy(), second), SGD)
    assert again.state_bytes() == whole.state_bytes()
    again.load_state(before)  # a state without a generator
    assert again.state_bytes() == before


def test_a_cold_generator_leaves_nothing_behind() -> None:
    model = by_numpy(pictures_file())
    model.fit(batches(), (CrossEntropy(), term_for(model, warm=False)), SGD)
    assert not [name for name in unpack_arrays(model.state_bytes()) if name.startswith("generator")]
    again, new = term_for(model, warm=False), by_numpy(pictures_file())
    for each in (model, new):  # the next term begins with a new generator
        each.fit(batches(seed=8), (CrossEntropy(), again), SGD)
    made = [each._forms._made["data-free"].generator.values for each in (model, new)]
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize(
    "change",
    [
        {"generator.about": np.array([9, 1, 1, 8, 8])},
        {"generator.about": np.array([0, 1])},
        {"generator.about": np.array([0, 16, 1, 8, 8])},
        {"generator.part.values": np.zeros(3, np.float32)},
    ],
)
def test_a_damaged_generator_changes_nothing(change: dict[str, np.ndarray]) -> None:
    model = by_numpy(pictures_file())
    model.fit(batches(), (CrossEntropy(), term_for(model)), SGD)
    state = model.state_bytes()
    with pytest.raises(StoreError, match=r"emove FEDERATION\.db in the state folder"):
        model.load_state(pack_arrays({**unpack_arrays(state), **change}))
    assert model.state_bytes() == state


def test_a_copy_that_serves_has_no_generator() -> None:
    model = by_numpy(pictures_file())
    model.fit(batches(), (CrossEntropy(), term_for(model)), SGD)
    copied = model.serving_copy()
    assert not [name for name in unpack_arrays(copied.state_bytes()) if name.startswith("generator")]


@ENGINES
def test_the_first_step_is_prepared_with_pauses(
    model_of: Callable[[bytes], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = model_of(pictures_file()), model_of(pictures_file())
    objective = (CrossEntropy(), term_for(model, adversarial=True, samples=4))
    pauses = sum(1 for _ in preparing(model, batches(), objective, "all"))
    assert pauses >= 12
    other.fit(batches(), objective, SGD)
    with monkeypatch.context() as patched:
        patched.setattr(type(model.learning_body.engine), "passes", None)  # what it would make is there
        model.fit(batches(), objective, SGD)
    np.testing.assert_array_equal(model.weights(), other.weights())


def test_a_generator_of_another_number_of_samples_makes_its_passes() -> None:
    generator = GraphGenerator(Plan("board", 5, (1, 8, 8)), 1e-3, 0, NumpyEngine())
    one = np.ones((1, 1, 1, 1), np.float32)
    to_its_end(generator.preparing(2))
    for count in (2, 3):
        assert generator.samples(np.zeros((count, 5), np.float32), one, one).shape == (count, 1, 8, 8)

"""FedKF's data-free distillation in torch: generators, the losses, and what it must leave alone."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn

from edge_sdk.errors import ModelError, StoreError, Unsupported
from edge_sdk.methods.parts.fedkf_term import DataFree, Plan
from edge_sdk.methods.parts.torch_fedkf import Generator, Imitation, divergence, generator_loss
from edge_sdk.models.base import Batches, pack_arrays, unpack_arrays
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.torch_nets.torch_anatomy import survey
from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.models.torch_nets.torch_forms import Host
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.objectives import CrossEntropy, Optim, Seen

SGD = Optim(kind="sgd", learning_rate=0.1)
CLASSES = 3


def parameter_count(generator: nn.Module) -> int:
    """Return the number of trainable scalars."""
    return sum(p.numel() for p in generator.parameters())


def net(*, norm: bool = False, shape: tuple[int, int, int] = (1, 8, 8)) -> nn.Module:
    channels, height, width = shape
    with seeded(3):
        return nn.Sequential(
            nn.Conv2d(channels, 4, 3, padding=1),
            nn.BatchNorm2d(4) if norm else nn.Identity(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(4 * height * width, 5),
            nn.ReLU(),
            nn.Linear(5, CLASSES),
        )


def model_of(**how: Any) -> TorchModel:
    return TorchModel(net(**how), CLASSES, input_shape=how.get("shape", (1, 8, 8)))


def batches(steps: int = 2, size: int = 6, seed: int = 5, shape: tuple[int, int, int] = (1, 8, 8)) -> Batches:
    rng = np.random.default_rng(1)
    return Batches(
        inputs=rng.normal(size=(20, *shape)).astype(np.float32),
        labels=rng.integers(0, CLASSES, 20),
        indices=rng.integers(0, 20, (steps, size)),
        seed=seed,
    )


def term_for(model: TorchModel, **how: Any) -> DataFree:
    moved = model.weights() + np.random.default_rng(2).normal(size=model.spec.parameters).astype(np.float32)
    return DataFree(teacher=moved, **how)


# -- generators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "noise_dim", "count"), [((3, 32, 32), 1000, 8_423_939), ((1, 32, 32), 100, 1_049_985)]
)
def test_the_papers_generator_has_as_many_parameters(shape: tuple[int, int, int], noise_dim: int, count: int) -> None:
    """methods.md C.5: 8.42 M at CIFAR's size, 1.05 M at EMNIST's."""
    assert parameter_count(Generator(Plan("paper", noise_dim, shape))) == count


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (1, 4, 4), (2, 5, 7), (3, 30, 17)])
@pytest.mark.parametrize("count", [1, 3])
def test_pictures_of_any_size(shape: tuple[int, int, int], count: int) -> None:
    generator = Generator(Plan("board", 10, shape))
    made = generator(torch.randn(count, 10))
    assert made.shape == (count, *shape)
    assert made.min() >= 0
    assert made.max() <= 1
    assert not list(generator.buffers())  # it normalises by the batch that it makes


@pytest.mark.parametrize(("shape", "most"), [((1, 8, 8), 7_000), ((1, 28, 28), 32_000), ((3, 32, 32), 40_000)])
def test_the_boards_generator_is_small(shape: tuple[int, int, int], most: int) -> None:
    assert parameter_count(Generator(Plan("board", 32, shape))) < most


def test_what_is_no_picture_is_refused_at_join_or_where_it_shows() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    assert "data-free" not in TorchModel(flat, CLASSES, input_shape=(1, 1, 12)).spec.terms
    unknown = TorchModel(flat, CLASSES)
    assert "data-free" in unknown.spec.terms
    with pytest.raises(ModelError, match=r"\(1, 1, 12\): .*generator .*pictures"):
        unknown.fit(batches(shape=(1, 1, 12)), (CrossEntropy(), term_for(unknown)), SGD)
    headless = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES), nn.Softplus())
    assert "data-free" in model_of().spec.terms
    assert "data-free" not in NumpyModel(CLASSES, (1, 8, 8), seed=0).spec.terms
    assert TorchModel(headless, CLASSES, input_shape=(1, 8, 8)).spec.capabilities >= {"features"}


def test_a_runtime_that_cannot_says_so() -> None:
    model = NumpyModel(CLASSES, (1, 8, 8), seed=0)
    with pytest.raises(Unsupported, match="cannot minimise 'data-free'"):
        model.fit(batches(), (DataFree(teacher=model.weights()),), SGD)


def test_a_teacher_of_another_size_is_refused() -> None:
    with pytest.raises(ModelError, match=r"'data-free': .*\(3,\).*model"):
        model_of().fit(batches(), (CrossEntropy(), DataFree(teacher=np.zeros(3, np.float32))), SGD)


# -- losses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [True, False])
def test_the_losses_are_those_of_the_reference(raw: bool) -> None:
    rng = np.random.default_rng(4)
    logits, own = rng.normal(size=(2, 7, 5)).astype(np.float32) * 3
    features = rng.normal(size=(7, 11)).astype(np.float32)
    term = DataFree(teacher=np.zeros(1, np.float32), raw=raw, certain=0.7, active=0.3)
    found = generator_loss(term, torch.from_numpy(logits), torch.from_numpy(features))
    assert found.item() == pytest.approx(term.generator_loss(logits, features), abs=1e-5)
    x = torch.from_numpy(own).requires_grad_()
    loss = divergence(torch.from_numpy(logits), x)
    assert loss.item() == pytest.approx(term.value(Seen(own=(logits, own))), abs=1e-5)
    (slope,) = torch.autograd.grad(loss, x)
    np.testing.assert_allclose(slope.numpy(), term.slope(Seen(own=(logits, own))), atol=1e-6)


def test_a_teacher_that_never_takes_a_class_is_no_nan() -> None:
    logits = torch.tensor([[200.0, 0, 0], [300.0, 0, 0]], requires_grad=True)
    term = DataFree(teacher=np.zeros(1, np.float32))
    (slope,) = torch.autograd.grad(generator_loss(term, logits, torch.zeros(2, 4)), logits)
    assert torch.isfinite(slope).all()


# -- a fit ----------------------------------------------------------------------------------------------------------


def test_a_model_learns_from_the_teacher_what_its_own_data_lack() -> None:
    """It sees one class only, and keeps what the teacher knows of the others.

    Of eight seeds, the loss is 0.26 to 0.50 of that without a teacher; at a rate of 0.1 some nets diverge.
    """
    rng = np.random.default_rng(0)
    labels = np.arange(240) % CLASSES
    x = (rng.normal(size=(CLASSES, 1, 8, 8))[labels] + 2 * rng.normal(size=(240, 1, 8, 8))).astype(np.float32)
    model = model_of()
    draws = rng.integers(0, 240, (60, 16))
    model.fit(Batches(inputs=x, labels=labels, indices=draws), (CrossEntropy(),), SGD)
    knows = model.weights()
    one_class = Batches(inputs=x, labels=labels, indices=rng.integers(0, 240, (60, 16)) // CLASSES * CLASSES)
    slow = Optim(kind="sgd", learning_rate=0.03)
    losses = {}
    for weight in (0.0, 1.0):
        model.set_weights(knows)
        model.fit(one_class, (CrossEntropy(), DataFree(teacher=knows, weight=weight, active=0.0, warm=False)), slow)
        losses[weight] = CrossEntropy().value(Seen(model.logits(x), labels))
    assert losses[1.0] < 0.65 * losses[0.0]


def test_samples_that_are_made_up_touch_no_running_statistics() -> None:
    plain, full = model_of(norm=True), model_of(norm=True)
    objective = (CrossEntropy(), term_for(full))
    plain.fit(batches(steps=1), (CrossEntropy(),), SGD)
    full.fit(batches(steps=1), objective, SGD)
    for name, values in plain.net.named_buffers():
        assert torch.equal(values, dict(full.net.named_buffers())[name])
    assert (plain.weights() != full.weights()).any()
    full.fit(batches(steps=3), objective, SGD)  # in training mode again after each step on fakes
    assert np.isfinite(full.weights()).all()


def test_steps_one_by_one_keep_the_generator_and_the_teacher() -> None:
    """A device fits slice by slice: the term is the same object, and so its teacher is taken up once."""
    model = model_of()
    cold, inputs = term_for(model, warm=False), batches().inputs
    anatomy = survey(model.net, CLASSES, features=None, input_shape=(1, 8, 8), name="net")
    form = Imitation(Host(model.net, anatomy, torch.device("cpu"), (1, 8, 8)))
    makers = [form.take_up(cold, inputs, seed) for seed in range(3)]
    assert makers[0] is makers[1] is makers[2]
    assert form.take_up(term_for(model, warm=False), inputs, 3) is not makers[0]


def test_its_cost_is_told() -> None:
    model = model_of()
    objective = (CrossEntropy(), term_for(model))
    assert model.fit(batches(), (CrossEntropy(),), SGD).extra_flops == 0
    plain, adversarial = (
        model.fit(batches(), (CrossEntropy(), term), SGD).extra_flops
        for term in (objective[1], term_for(model, adversarial=True))
    )
    assert adversarial - plain == 3 * model.spec.flops_per_sample * 12
    assert plain > 7 * model.spec.flops_per_sample * 12
    more = model.fit(batches(), (CrossEntropy(), term_for(model, samples=12)), SGD).extra_flops
    assert more == 2 * plain


def test_a_generator_larger_than_the_model_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of()
    with caplog.at_level(logging.WARNING):
        model.fit(batches(), (CrossEntropy(), term_for(model, noise_dim=8)), SGD)
        assert ("W7" in caplog.text) is (
            parameter_count(Generator(Plan("board", 8, (1, 8, 8)))) > model.spec.parameters
        )
        model.fit(batches(), (CrossEntropy(), term_for(model, generator="paper")), SGD)
    assert re.search(r"W7: .*\(paper, noise_dim 32\)", caplog.text)


# -- a restart ------------------------------------------------------------------------------------------------------


def test_a_warm_generator_survives_a_restart_to_the_bit() -> None:
    whole = model_of()
    first, second = term_for(whole), term_for(whole, adversarial=True)
    whole.fit(batches(), (CrossEntropy(), first), SGD)
    state = whole.state_bytes()
    again = model_of()
    again.load_state(state)
    assert again.state_bytes() == state
    for model in (whole, again):
        model.fit(batches(seed=8), (CrossEntropy(), second), SGD)
    assert again.state_bytes() == whole.state_bytes()


def test_a_cold_generator_leaves_nothing_behind() -> None:
    model = model_of()
    model.fit(batches(), (CrossEntropy(), term_for(model, warm=False)), SGD)
    assert not [name for name in unpack_arrays(model.state_bytes()) if name.startswith("generator")]


def test_going_back_to_a_state_without_a_generator_forgets_it() -> None:
    model = model_of()
    model.fit(batches(), (CrossEntropy(),), SGD)
    before = model.state_bytes()
    model.fit(batches(), (CrossEntropy(), term_for(model)), SGD)
    model.load_state(before)
    assert model.state_bytes() == before


def test_a_damaged_generator_changes_nothing() -> None:
    model = model_of()
    model.fit(batches(), (CrossEntropy(), term_for(model)), SGD)
    state = model.state_bytes()
    arrays = unpack_arrays(state)
    for change in (
        {"generator.about": np.array([9, 1, 1, 8, 8])},
        {"generator.about": np.array([0, 1])},
        {"generator.about": np.array([0, 16, 1, 8, 8])},
        {"generator.net.layers.0.bias": np.zeros(3, np.float32)},
    ):
        with pytest.raises(StoreError, match=r"emove FEDERATION\.db in the state folder"):
            model.load_state(pack_arrays({**arrays, **change}))
        assert model.state_bytes() == state


def test_a_net_without_features_does_not_take_up_a_generator() -> None:
    model = model_of()
    model.fit(batches(), (CrossEntropy(), term_for(model)), SGD)
    other = TorchModel(nn.Sequential(nn.Flatten(), nn.Unflatten(1, (64,)), nn.Softmax(1)), 64)
    with pytest.raises(StoreError, match=r"does not fit .*'steps'"):
        other.load_state(model.state_bytes())

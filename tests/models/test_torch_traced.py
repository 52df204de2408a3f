"""Traced fits: equal to eager ones to the bit for every net, term and optimiser that ships, or left alone."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from loss_terms import head_terms, logit_terms

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from edge_sdk.data import Preprocess
from edge_sdk.errors import UsageError
from edge_sdk.models.base import Batches, FitReport
from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.models.torch_nets.torch_tracing import answers_of
from edge_sdk.models.torch_training import torch_traced
from edge_sdk.models.torch_training.torch_recording import recorded
from edge_sdk.objectives import (
    BoundedDistance,
    ClassContrast,
    CrossEntropy,
    FeatureGradient,
    FeatureMatch,
    HeadDivergence,
    ModelContrast,
    Objective,
    Optim,
    PrototypeDistance,
    PrototypePull,
    Proximal,
    Term,
    names_on,
)
from edge_sim.models import torch_families

pytestmark = pytest.mark.torch

CLASSES, WIDTH, SHAPE = 4, 12, (1, 8, 8)
SAMPLES = np.random.default_rng(0)
X = SAMPLES.normal(size=(40, *SHAPE)).astype(np.float32)
Y = SAMPLES.integers(0, CLASSES, 40)
SGD = Optim(kind="sgd", learning_rate=0.05)
OPTIMS = {
    "sgd": SGD,
    "momentum": Optim(kind="sgd", learning_rate=0.05, momentum=0.9),
    "decay": Optim(kind="sgd", learning_rate=0.05, momentum=0.9, weight_decay=0.01, clip_norm=0.5),
    "adam": Optim(kind="adam"),
    "adam, all": Optim(kind="adam", beta1=0.8, weight_decay=0.01, decay_all=True, clip_norm=0.1),
}


class Adding(nn.Module):
    """Two ways beside one another, as in a residual net, of a class that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Deciding(nn.Module):
    """Computes one thing or another, as its input tells."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if float(x.detach().sum()) > 0 else x


class Comparing(nn.Module):
    """Computes one thing or another, as the number of samples tells."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if len(x) > 6 else x


class Listing(nn.Module):
    """Decides by numbers that Python reads, past torch's operators."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + sum(each > 0.3 for each in x.detach()[0].tolist()))


class Reading(nn.Module):
    """The same by numpy, in a number that becomes a tensor again."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tensor(float(np.tanh(x.detach().numpy()).mean()))


class Finding(nn.Module):
    """Computes with the length of what it finds."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + torch.nonzero(x.detach() > 0.3).shape[0])


class Masking(nn.Module):
    """Picks by a mask."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (1 + x[x > 0].mean())


class Refusing(nn.Module):
    """Takes samples below some number alone."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.all(x.detach() < 1e6):
            raise ValueError("too large")
        return x


class Drawing(nn.Module):
    """Draws from Python's generator in training."""

    def forward(self, x: Tensor) -> Tensor:
        return x * random.random() if self.training else x


class Counting(nn.Module):
    """Counts its passes in an attribute."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return x / self.passes


class Averaging(nn.Module):
    """Keeps a mean of what it sees, each time in another tensor."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        return x - self.mean


class Recurrent(nn.Module):
    """Rows of a picture, read one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(8, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rows(x.squeeze(1))[0][:, -1]


def dense(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), *more, nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def convolving(*more: nn.Module) -> nn.Sequential:
    pooled = nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)
    return nn.Sequential(nn.Conv2d(1, 8, 3), *more, nn.MaxPool2d(2), *pooled)


NETS: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "convolutions": lambda: convolving(nn.ReLU()),
    "batch norm": lambda: convolving(nn.BatchNorm2d(8)),
    "residual": lambda: convolving(Adding()),
    "dropout": lambda: dense(nn.Dropout(0.3)),
}


def model(net: str) -> TorchModel:
    with seeded(0):
        return TorchModel(NETS[net](), CLASSES, input_shape=SHAPE)


def objectives(steps: int, size: int, parameters: int) -> dict[str, Objective]:
    """Every term that torch has a form for, beside a cross-entropy where it is not on the logits."""
    rng, classes = np.random.default_rng([steps, size]), np.array([0, 1, 3])

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    rows = drawn(3, WIDTH)
    more: list[Term] = [
        FeatureMatch(targets=drawn(steps, size, 5), projection=drawn(5, WIDTH)),
        FeatureGradient(gradient=drawn(steps, size, WIDTH)),
        PrototypePull(classes=classes, rows=rows, weight=0.7),
        PrototypeDistance(classes=classes, rows=rows),
        BoundedDistance(classes=classes, rows=rows, most=1.0),
        HeadDivergence(features=rows, soft=drawn(3, CLASSES) ** 2),
        ModelContrast(near=drawn(steps, size, WIDTH), away=drawn(steps, size, WIDTH)),
        ClassContrast(),
        Proximal(anchor=drawn(parameters)),
    ]
    beside = [*head_terms(rng, CLASSES, WIDTH).values(), *more]
    alone = logit_terms(rng, steps, size, CLASSES)
    return {**{name: (term,) for name, term in alone.items()}, **{term.name: (CrossEntropy(), term) for term in beside}}


def batches(steps: int, size: int) -> Batches:
    rng = np.random.default_rng([steps, size, 1])
    return Batches(inputs=X, labels=Y, indices=rng.integers(0, len(X), (steps, size)), seed=3)


@pytest.fixture(autouse=True)
def nothing_recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("edge_sdk.models.torch_nets.torch_tracing.TRACES", torch_traced.Traces())
    monkeypatch.setattr("edge_sdk.models.torch_nets.torch_tracing.PASSES", torch_traced.Passes())
    monkeypatch.delenv(torch_traced.VARIABLE, raising=False)
    return


def fitted(monkeypatch: pytest.MonkeyPatch, when: str, own: TorchModel, *arguments: Any) -> FitReport:
    monkeypatch.setenv(torch_traced.VARIABLE, when)
    return own.fit(*arguments)


SIZES = ((5, 7), (3, 7), (4, 9), (2, 2), (6, 12), (1, 5))
"""Steps and mini-batches of fits that follow one another, the tail of an epoch among them."""


def check_equal(monkeypatch: pytest.MonkeyPatch, net: str, term: str, optim: Optim) -> None:
    """Train a model both ways, and compare state and reports."""
    eager, traced = model(net), model(net)
    for steps, size in SIZES:
        objective = objectives(steps, size, eager.spec.parameters)[term]
        expected = fitted(monkeypatch, "off", eager, batches(steps, size), objective, optim)
        assert fitted(monkeypatch, "always", traced, batches(steps, size), objective, optim) == expected
        assert traced.state_bytes() == eager.state_bytes()


def was_traced(caplog: pytest.LogCaptureFixture) -> bool:
    return not [record for record in caplog.records if record.name == torch_traced.__name__]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("optim", OPTIMS.values(), ids=OPTIMS)
def test_every_net_and_optimiser_gives_the_bits_of_autograd(
    net: str, optim: Optim, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check_equal(monkeypatch, net, "prototype-pull", optim)
    assert was_traced(caplog)


def test_a_recurrent_net_gives_the_bits_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those of its script differ, as on some processors, it trains without a trace."""
    monkeypatch.setitem(NETS, "recurrent", lambda: nn.Sequential(Recurrent(), nn.Linear(WIDTH, CLASSES)))
    check_equal(monkeypatch, "recurrent", "prototype-pull", OPTIMS["adam"])


TERMS = sorted(set(objectives(1, 2, 10)))


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("net", ["dense", "convolutions"])
def test_every_term_gives_the_bits_of_autograd(
    term: str, net: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check_equal(monkeypatch, net, term, OPTIMS["decay"])
    assert was_traced(caplog)


def texts(recording: Any) -> list[str]:
    return [each.text for each in recording.shortened().lines]


def test_lines_that_only_give_a_tensor_again_are_left_out() -> None:
    x, whole = torch.randn(3, 4), torch.ones(3, dtype=torch.int64)
    found = recorded({"x": x, "whole": whole}, lambda: [(x.t().t() * 1.0 + 2).pow(1), whole * 1.0])
    assert texts(found) == [
        "t0 = torch.ops.aten.t(x)",
        "t3 = torch.ops.aten.add(x, {})",
        "t5 = torch.ops.aten.mul(whole, {})",  # makes floats of whole numbers
    ]
    assert found.shortened().results == ("t3", "t5")


def test_a_copy_that_is_written_into_stays() -> None:
    x = torch.randn(3)
    found = recorded({"x": x}, lambda: [x, (x * 1.0).add_(1)])
    assert texts(found) == ["t0 = torch.ops.aten.mul(x, {})", "t1 = torch.ops.aten.add_(t0, {})"]


BY_SLOPE = {"class-logit-match"}
"""Terms without a form in torch."""


def test_the_terms_above_are_all_that_ship() -> None:
    assert {name.removesuffix(" squared") for name in TERMS} == names_on(
        "logits", "features", "head", "weights"
    ) - BY_SLOPE


DEEP = ("resnet18", "resnet34", "mobilenet-v3-small", "shufflenet-v2")
"""Families whose test takes seconds."""


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=pytest.mark.long if each in DEEP else ()) for each in torch_families.NETS]
)
def test_families_of_the_simulator(
    family: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    eager, traced = (torch_families.torch_model(family, CLASSES, SHAPE, Preprocess(), 0) for _ in range(2))
    for _ in range(2):
        expected = fitted(monkeypatch, "off", eager, batches(2, 6), (CrossEntropy(),), SGD)
        assert fitted(monkeypatch, "always", traced, batches(2, 6), (CrossEntropy(),), SGD) == expected
        assert traced.state_bytes() == eager.state_bytes()
    assert was_traced(caplog)


@pytest.mark.parametrize("part", ["body", "head"])
def test_parts_of_a_model(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    eager, traced = model("dense"), model("dense")
    for each in (part, "all", part):
        fitted(monkeypatch, "off", eager, batches(3, 5), (CrossEntropy(),), OPTIMS["adam"], each)
        fitted(monkeypatch, "always", traced, batches(3, 5), (CrossEntropy(),), OPTIMS["adam"], each)
        assert traced.state_bytes() == eager.state_bytes()


DECIDING: tuple[type[nn.Module], ...] = (Deciding, Listing, Reading, Finding, Masking, Refusing)
"""Layers that compute this or that, as the numbers tell that they are given."""


@pytest.mark.parametrize("layer", [*DECIDING, Drawing, Counting, Averaging])
def test_a_net_that_cannot_be_traced_trains_as_without_and_says_so_once(
    layer: type[nn.Module], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(NETS, "own", lambda: dense(layer()))
    states = []
    for when in ("off", "always"):
        own = model("own")
        random.seed(1)
        for _ in range(3):
            fitted(monkeypatch, when, own, batches(2, 5), (CrossEntropy(),), SGD)
        states.append(own.state_bytes())
        assert bool(own.untraced) == (when == "always")
    assert states[0] == states[1]
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING


def test_a_model_does_not_report_what_was_found_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets without a name have the same one."""
    monkeypatch.setitem(NETS, "own", lambda: dense(Deciding()))
    other, own, again = model("own"), model("dense"), model("own")
    for each in (other, own, again):
        fitted(monkeypatch, "always", each, batches(2, 5), (CrossEntropy(),), SGD)
    assert other.spec.name == own.spec.name
    assert not own.untraced
    assert again.untraced == other.untraced != frozenset()


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_hooks_are_called_in_each_step_and_pass_even_after_a_trace(
    register: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    traced = model("dense")
    for _ in range(2):
        fitted(monkeypatch, "always", traced, batches(2, 5), (CrossEntropy(),), SGD)
        traced.logits(X)
    with getattr(traced.net, register)(lambda *_given: calls.append(1)):
        fitted(monkeypatch, "always", traced, batches(3, 5), (CrossEntropy(),), SGD)
        assert len(calls) == 3
        traced.logits(X)
        assert len(calls) == 4


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that has an entry for each recording."""
    made, real = [], torch_traced.recorded
    monkeypatch.setattr(torch_traced, "recorded", lambda *given: made.append(1) or real(*given))
    return made


def test_a_fleet_is_recorded_once(recordings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        fitted(monkeypatch, "always", model("dense"), batches(2, 5), (CrossEntropy(),), SGD)
    assert len(recordings) == 2  # at two steps, to tell what depends on them


def test_two_sizes_of_mini_batches_tell_all_others(recordings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (5, 7, 3, 12, 8):
        fitted(monkeypatch, "always", model("convolutions"), batches(2, size), (CrossEntropy(),), SGD)
    assert len(recordings) == 4


def test_short_runs_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_traced, "recorded", lambda *_: pytest.fail("recorded"))
    fitted(monkeypatch, "auto", model("dense"), batches(torch_traced.WORTH_STEPS, 5), (CrossEntropy(),), SGD)


@pytest.mark.parametrize("net", ["dense", "batch norm", "dropout"])
def test_models_are_traced_from_where_it_pays(net: str, recordings: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a training, with moments and buffers that earlier steps left."""
    eager, own = model(net), model(net)
    for recorded_before, steps in ((0, torch_traced.WORTH_STEPS - 4), (0, 4), (2, 6), (2, 3)):
        expected = fitted(monkeypatch, "off", eager, batches(steps, 5), (CrossEntropy(),), OPTIMS["adam"])
        assert fitted(monkeypatch, "auto", own, batches(steps, 5), (CrossEntropy(),), OPTIMS["adam"]) == expected
        assert own.state_bytes() == eager.state_bytes()
        assert len(recordings) == recorded_before


@pytest.mark.parametrize("when", ["off", "always"])
def test_a_fit_ends_with_a_loss_that_is_not_finite(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = model("dense")
    first = fitted(monkeypatch, when, own, batches(2, 5), (CrossEntropy(),), SGD)
    report = fitted(monkeypatch, when, own, batches(9, 5), (CrossEntropy(),), Optim(kind="sgd", learning_rate=1e30))
    assert first.steps == 2
    assert report.steps < 9
    assert not np.isfinite(report.loss)


def test_several_steps_in_one_fit_are_as_one_fit_each() -> None:
    once, each = model("convolutions"), model("convolutions")
    many = batches(6, 5)
    assert once.fits_at_once((CrossEntropy(),), stochastic=True)
    report = once.fit(many, (CrossEntropy(),), OPTIMS["adam"])
    for row in many.indices:
        last = each.fit(Batches(inputs=X, labels=Y, indices=row[None]), (CrossEntropy(),), OPTIMS["adam"])
    assert once.state_bytes() == each.state_bytes()
    assert report.loss == last.loss


def test_dropout_takes_its_seed_step_by_step() -> None:
    assert not model("dropout").fits_at_once((CrossEntropy(),), stochastic=True)
    assert model("dropout").fits_at_once((CrossEntropy(),), stochastic=False)


def test_an_unknown_word_in_the_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=torch_traced.VARIABLE):
        fitted(monkeypatch, "sometimes", model("dense"), batches(2, 5), (CrossEntropy(),), SGD)


@pytest.mark.parametrize("net", NETS)
def test_answers_of_several_nets_are_those_of_each(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(torch_traced.VARIABLE, "off")
    nets = [model(net) for _ in range(3)]
    for at, each in enumerate(nets):
        each.fit(batches(at + 1, 5), (CrossEntropy(),), SGD)
    expected = [each.outputs(X) for each in nets]
    monkeypatch.setenv(torch_traced.VARIABLE, "always")
    assert answers_of([each.tracing for each in nets], "outputs", X) is None  # nothing is known of them yet
    own = [each.outputs(X) for each in nets]
    together = answers_of([each.tracing for each in nets], "outputs", X)
    assert together is not None
    for one, two, three in zip(expected, own, together, strict=True):
        for a, b, c in zip(one, two, three, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize("net", [*NETS, "comparing"])
def test_passes_over_two_numbers_of_samples_tell_all_others(
    net: str, recordings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETS, "comparing", lambda: dense(Comparing()))
    own = model(net)
    sizes = (5, 9, 3, 12, 1, 20)
    monkeypatch.setenv(torch_traced.VARIABLE, "off")
    expected = {size: own.outputs(X[:size]) for size in sizes}
    monkeypatch.setenv(torch_traced.VARIABLE, "always")
    for size in sizes * 3:
        for a, b in zip(expected[size], own.outputs(X[:size]), strict=True):
            np.testing.assert_array_equal(a, b)
    numbers = 3 if net == "comparing" else 2  # 9 tells nothing of what 5 is, but 3 does
    assert len(recordings) == 2 * numbers  # each twice, to see whether they are the same


@pytest.mark.parametrize("layer", DECIDING)
def test_a_net_that_decides_by_its_samples_answers_as_without_traces(
    layer: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETS, "own", lambda: dense(layer()))
    own = model("own")
    found = []
    for when in ("off", "always"):
        monkeypatch.setenv(torch_traced.VARIABLE, when)
        found.append([own.logits(X[at : at + 2] * scale) for at in range(9) for scale in (1, -1, 0.01)])
    np.testing.assert_array_equal(*found)

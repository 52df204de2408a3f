from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from cosine_suite import SCALE, CosineSuite
from model_suite import (
    ADAM,
    BATCH,
    CLASSES,
    OPTIMS,
    RECIPES,
    SHAPE,
    ModelSuite,
    WeightSuite,
    batches,
    check_unsupported,
    objectives,
    pull,
    samples,
)

from edge_sdk.data import LocalData, Preprocess, Samples
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import ModelError, StoreError, Unsupported, UsageError
from edge_sdk.models.base import Batches
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import CrossEntropy, HeadMatch, LogitGradient, Optim, Proximal, Seen, names_on

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.flop_counter import FlopCounterMode

from edge_sdk.models.torch_nets.torch_cosine import TorchCosineHead, Unit
from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.models.torch_training.torch_optim import TorchOptimiser
from edge_sim.models.torch_families import torch_model


class FamilySuite(ModelSuite, WeightSuite):
    family: str

    def make(self, seed: int = 0) -> TorchModel:
        return torch_model(self.family, CLASSES, SHAPE, Preprocess(), seed)


class TestMlp(FamilySuite):
    family = "mlp"


@pytest.mark.traced
class TestCnn(FamilySuite):
    family = "cnn"


class TestResnet(FamilySuite):
    family = "resnet"


@pytest.mark.traced
class TestCosineMlp(CosineSuite):
    def make(self, seed: int = 0) -> TorchModel:
        model = torch_model("mlp", CLASSES, SHAPE, Preprocess(), seed, head="cosine")
        model.set_scale(SCALE, trains=True)
        return model


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))


def wrap(net: nn.Module, **options: object) -> TorchModel:
    return TorchModel(net, CLASSES, input_shape=SHAPE, **options)


class TestAgainstNumpy:
    """A single linear layer in torch and the numpy oracle, from equal weights."""

    def pair(self) -> tuple[TorchModel, NumpyModel]:
        ours, oracle = wrap(linear()), NumpyModel(CLASSES, SHAPE, seed=1)
        ours.set_head_rows(np.arange(CLASSES), oracle.head_rows())
        return ours, oracle

    @pytest.mark.parametrize("optim", RECIPES.values(), ids=RECIPES)
    @pytest.mark.parametrize("name", objectives(1))
    def test_five_steps_of_every_term(self, name: str, optim: Optim) -> None:
        ours, oracle = self.pair()
        work, objective = batches(5), objectives(5)[name]
        one, two = ours.fit(work, objective, optim), oracle.fit(work, objective, optim)
        assert one.steps == two.steps == 5
        assert one.loss == pytest.approx(two.loss, abs=1e-5)
        np.testing.assert_allclose(ours.head_rows(), oracle.head_rows(), atol=1e-5)
        assert np.abs(ours.head_rows() - self.pair()[1].head_rows()).max() > 1e-3

    @pytest.mark.traced
    @pytest.mark.parametrize("optim", RECIPES.values(), ids=RECIPES)
    def test_moments_go_on_at_another_rate(self, optim: Optim) -> None:
        ours, oracle = self.pair()
        slow = replace(optim, learning_rate=optim.learning_rate / 4)
        for model in (ours, oracle):
            model.fit(batches(3), (CrossEntropy(),), optim)
            model.load_state(model.state_bytes())
            model.fit(batches(3, seed=1), (CrossEntropy(),), slow)
        np.testing.assert_allclose(ours.head_rows(), oracle.head_rows(), atol=1e-5)

    def test_same_predictions_features_and_cost(self) -> None:
        ours, oracle = self.pair()
        x, _ = samples()
        np.testing.assert_allclose(ours.logits(x), oracle.logits(x), atol=1e-6)
        np.testing.assert_array_equal(ours.features(x), oracle.features(x))
        assert ours.spec.flops_per_sample == oracle.spec.flops_per_sample
        assert ours.spec.parameters == oracle.spec.parameters == CLASSES * 37
        assert ours.spec.capabilities == oracle.spec.capabilities


class TestCosineAgainstNumpy:
    """The same for a head that compares directions, part by part."""

    def pair(self) -> tuple[TorchModel, NumpyModel]:
        ours, oracle = wrap(linear(), head="cosine"), NumpyModel(CLASSES, SHAPE, seed=1, head="cosine")
        oracle.set_scale(SCALE, trains=True)
        ours.set_weights(self.in_torchs_order(oracle.weights()))
        return ours, oracle

    def in_torchs_order(self, values: np.ndarray) -> np.ndarray:
        """Rows with the bias as last column, scale -> weights, biases, scale."""
        rows = values[:-1].reshape(CLASSES, -1)
        return np.concatenate([rows[:, :-1].ravel(), rows[:, -1], values[-1:]])

    @pytest.mark.parametrize("part", ["all", "body", "head"])
    @pytest.mark.parametrize("optim", RECIPES.values(), ids=RECIPES)
    @pytest.mark.parametrize("name", ["cross-entropy", "all"])
    def test_five_steps(self, name: str, optim: Optim, part: str) -> None:
        ours, oracle = self.pair()
        before, rng = oracle.weights(), np.random.default_rng(5)
        head = HeadMatch(
            features=rng.normal(size=(2, 36)).astype(np.float32), soft=np.full((2, CLASSES), 0.25, np.float32)
        )
        anchor = before + rng.normal(0, 0.1, len(before)).astype(np.float32)
        slow = replace(optim, learning_rate=optim.learning_rate / 10)
        losses = []
        for model, at in ((ours, self.in_torchs_order(anchor)), (oracle, anchor)):
            more = (head, Proximal(anchor=at)) if name == "all" else ()
            losses.append(model.fit(batches(5), (*objectives(5)[name], *more), slow, part).loss)
        assert losses[0] == pytest.approx(losses[1], abs=1e-4)
        np.testing.assert_allclose(ours.weights(), self.in_torchs_order(oracle.weights()), atol=1e-5)
        moved = np.abs(oracle.weights() - before) > 1e-5
        assert moved[oracle.head_mask()].any() == (part != "body")
        assert moved[-1] == (part != "head")

    def test_rows_of_any_length(self) -> None:
        ours, oracle = self.pair()
        rows = np.random.default_rng(0).normal(0, 5, (CLASSES, 37)).astype(np.float32)
        rows[2] = 0
        for model in (ours, oracle):
            model.set_head_rows(np.arange(CLASSES), rows)
        np.testing.assert_allclose(ours.logits(samples()[0]), oracle.logits(samples()[0]), atol=1e-4)
        assert (oracle.logits(samples()[0])[:, 2] == 0).all()


class TestPuttingOnACosineHead:
    def test_the_relu_in_front_stays_and_layouts_differ(self) -> None:
        plain = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, CLASSES))
        layout = wrap(deepcopy(plain)).spec.layout
        model = wrap(plain, head="cosine")
        assert [type(layer).__name__ for layer in plain] == ["Flatten", "Linear", "ReLU", "Sequential"]
        assert model.spec.layout != layout
        assert model.features(samples()[0]).min() == 0

    def test_a_net_that_is_one_layer_and_one_that_has_none(self) -> None:
        only = TorchModel(nn.Linear(3, CLASSES), CLASSES, head="cosine")
        assert "cosine-head" in only.spec.capabilities
        with pytest.raises(ModelError, match=r"nn\.Linear .*4 outputs.* cosine"):
            wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, 5)), head="cosine")

    def test_a_plain_head_has_no_scale(self) -> None:
        for model in (wrap(linear()), NumpyModel(CLASSES, SHAPE, seed=0)):
            with pytest.raises(Unsupported, match="cannot do 'cosine-head'"):
                model.set_scale(1.0, trains=True)

    def test_one_that_has_been_put_on_stays(self) -> None:
        net = nn.Sequential(nn.Flatten(), Unit(), TorchCosineHead(36, CLASSES, scale=3.0))
        assert np.linalg.norm(wrap(net, head="cosine").head_rows()[0]) == pytest.approx(3.0)


@pytest.mark.parametrize("optim", RECIPES.values(), ids=RECIPES)
def test_the_optimisers_are_torchs(optim: Optim) -> None:
    """Also after the learning rate changed: the moments go on."""
    parameters = [torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    copies = [p.clone().requires_grad_() for p in parameters]
    ours, theirs = TorchOptimiser(optim, parameters, decayed=[True, False]), torchs(optim, copies[:1], copies[1:])
    generator = torch.Generator().manual_seed(9)
    for step in range(20):
        if step == 10:
            slow = replace(optim, learning_rate=optim.learning_rate / 4)
            ours = TorchOptimiser(slow, parameters, ours.moments, ours.steps, decayed=[True, False])
            for group in theirs.param_groups:
                group["lr"] = slow.learning_rate
        gradients = [torch.randn(3, 4, generator=generator) for _ in parameters]
        ours.step(gradients)
        take_torchs_step(optim, theirs, copies, gradients)
    for mine, other in zip(parameters, copies, strict=True):
        torch.testing.assert_close(mine, other.detach(), atol=1e-6, rtol=1e-5)


def torchs(optim: Optim, decayed: list[Tensor], spared: list[Tensor]) -> torch.optim.Optimizer:
    """torch's own optimiser under these settings; spared: parameters that do not decay, unless all do."""
    groups = [
        {"params": decayed, "weight_decay": optim.weight_decay},
        {"params": spared, "weight_decay": optim.weight_decay if optim.decay_all else 0.0},
    ]
    if optim.kind == "adam":
        return torch.optim.Adam(groups, lr=optim.learning_rate, betas=(optim.beta1, optim.beta2))
    return torch.optim.SGD(groups, lr=optim.learning_rate, momentum=optim.momentum)


def take_torchs_step(
    optim: Optim, theirs: torch.optim.Optimizer, parameters: list[Tensor], gradients: list[Tensor]
) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    if optim.clip_norm:
        torch.nn.utils.clip_grad_norm_(parameters, optim.clip_norm)
    theirs.step()


@pytest.mark.traced
@pytest.mark.parametrize("optim", RECIPES.values(), ids=RECIPES)
def test_fits_of_a_net_are_torchs(optim: Optim) -> None:
    """A net with normalisation, fitted in two rounds at different rates, and put away and read in between."""

    def net() -> nn.Sequential:
        torch.manual_seed(3)
        return nn.Sequential(nn.LayerNorm(SHAPE), nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, CLASSES))

    ours, again, oracle = wrap(net()), wrap(net()), net()
    work, slow = batches(6), replace(optim, learning_rate=optim.learning_rate / 4)
    ours.fit(replace(work, indices=work.indices[:3]), (CrossEntropy(),), optim)
    again.load_state(ours.state_bytes())
    again.fit(replace(work, indices=work.indices[3:]), (CrossEntropy(),), slow)
    theirs = torchs(
        optim, [oracle[2].weight, oracle[4].weight], [*oracle[0].parameters(), oracle[2].bias, oracle[4].bias]
    )
    for step, index in enumerate(work.indices):
        for group in theirs.param_groups:
            group["lr"] = (optim if step < 3 else slow).learning_rate
        loss = nn.functional.cross_entropy(oracle(torch.tensor(work.inputs[index])), torch.tensor(work.labels[index]))
        parameters = list(oracle.parameters())
        take_torchs_step(optim, theirs, parameters, list(torch.autograd.grad(loss, parameters)))
    for mine, other in zip(again.trained, oracle.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["mlp", "mlp-wide", "cnn", "cnn-wide", "resnet"])
def test_flops_are_those_that_torch_counts(family: str) -> None:
    model = torch_model(family, 10, (3, 9, 11), Preprocess(), 0)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.net(torch.zeros(1, 3, 9, 11))
    assert model.spec.flops_per_sample == counter.get_total_flops()


@pytest.mark.traced
class TestPullOnFeatures:
    def test_steps_down_the_reference_gradient_at_the_features(self) -> None:
        """A step on the pull equals a step on <G, R(x)>, G the numpy reference's gradient at the features."""
        model = torch_model("mlp", CLASSES, SHAPE, Preprocess(), 0)
        oracle = torch_model("mlp", CLASSES, SHAPE, Preprocess(), 0)
        work, term, rate = batches(1), pull(model), 0.5
        index = work.indices[0]
        gradient = term.slope(Seen(labels=work.labels[index], features=oracle.features(work.inputs[index])))
        oracle.tap(torch.tensor(work.inputs[index]))[1].backward(torch.tensor(gradient))
        model.fit(work, (term,), Optim(kind="sgd", learning_rate=rate))
        for ours, theirs in zip(model.trained, oracle.trained, strict=True):
            moved = theirs - rate * theirs.grad if theirs.grad is not None else theirs
            torch.testing.assert_close(ours, moved, atol=1e-6, rtol=0)
        assert model.weights().tolist() != torch_model("mlp", CLASSES, SHAPE, Preprocess(), 0).weights().tolist()

    def test_a_net_without_features_cannot(self) -> None:
        net = nn.Sequential(nn.Conv2d(1, CLASSES, 6), nn.Flatten())
        model = wrap(net)
        assert "features" not in model.spec.capabilities
        assert "prototype-pull" not in model.spec.terms
        assert "cross-entropy" in model.spec.terms

    def test_a_frozen_extractor_says_so(self) -> None:
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, CLASSES))
        assert wrap(net).spec.inert_terms == frozenset()
        net[1].requires_grad_(requires_grad=False)
        frozen = wrap(net)
        assert frozen.spec.inert_terms == names_on("features")
        before = net[1].weight.clone()
        frozen.fit(batches(2), (CrossEntropy(), pull(frozen)), ADAM)
        assert torch.equal(net[1].weight, before)


class TestFeatureLayer:
    def net(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5), nn.Tanh(), nn.Linear(5, CLASSES)
        )

    def test_the_input_of_the_last_linear_by_default(self) -> None:
        model = wrap(self.net())
        assert model.spec.feature_dim == 5
        assert np.abs(model.features(samples()[0])).max() <= 1

    def test_a_named_layer_in_front_of_the_last_linear_has_head_rows(self) -> None:
        model = wrap(self.net(), features="4")
        assert {"features", "head-rows"} <= model.spec.capabilities
        np.testing.assert_array_equal(model.features(samples()[0]), wrap(model.net).features(samples()[0]))

    def test_a_named_layer_further_down_has_none(self) -> None:
        model = wrap(self.net(), features="1")
        assert model.features(samples()[0]).shape == (40, 48) == (40, model.spec.feature_dim)
        check_unsupported(model, "head-rows")

    def test_an_unknown_name_brings_the_nearest(self) -> None:
        net = nn.ModuleDict({"body": linear(), "features": linear()})
        with pytest.raises(ModelError, match=r"layer 'feature'; .*'features'"):
            wrap(net, features="feature")
        with pytest.raises(ModelError, match="did you mean 'body'"):
            wrap(net, features="zzz")

    def test_a_layer_that_is_never_run(self) -> None:
        net = self.net()
        net.forward = net[:4].append(net[5]).forward
        with pytest.raises(ModelError, match="gives no tensor"):
            wrap(net, features="4")

    def test_needs_the_input_shape(self) -> None:
        with pytest.raises(ModelError, match="pass input_shape"):
            TorchModel(self.net(), CLASSES, features="4")

    def test_logits_that_are_not_made_by_a_linear_layer(self) -> None:
        model = wrap(nn.Sequential(linear(), nn.LogSoftmax(1)))
        assert model.features(samples()[0]).shape == (40, 36)
        check_unsupported(model, "head-rows")
        with pytest.raises(ModelError, match="head-rows"):
            model.head(np.zeros((1, 36), np.float32))

    @pytest.mark.parametrize("normed", [parametrizations.weight_norm, parametrizations.spectral_norm])
    @pytest.mark.parametrize("shape", [(1, 6, 6), None])
    def test_a_last_layer_whose_rows_follow_from_other_parameters(
        self, normed: Callable[[nn.Module], nn.Module], shape: tuple[int, int, int] | None
    ) -> None:
        below = nn.Sequential(nn.Flatten(), normed(nn.Linear(36, 8)), nn.Linear(8, CLASSES))
        assert "head-rows" in TorchModel(below, CLASSES, input_shape=shape).spec.capabilities
        model = TorchModel(nn.Sequential(nn.Flatten(), normed(nn.Linear(36, CLASSES))), CLASSES, input_shape=shape)
        assert model.spec.capabilities == {"predict", "logit-gradients", "weights", "features", "guidance-gradients"}
        check_unsupported(model, "head-rows")

    def test_a_net_without_a_linear_layer(self) -> None:
        model = wrap(nn.Sequential(nn.Conv2d(1, CLASSES, 6), nn.Flatten()))
        assert model.spec.capabilities == {"predict", "logit-gradients", "weights", "guidance-gradients"}
        check_unsupported(model, "features")
        check_unsupported(model, "head-rows")

    def test_a_head_without_bias_trades_rows_without_bias(self) -> None:
        model = wrap(nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES, bias=False)))
        x, _ = samples()
        np.testing.assert_allclose(model.head(model.features(x)), model.logits(x), atol=1e-6)
        assert "head-rows" not in model.spec.capabilities
        assert "head-weights" in model.spec.capabilities
        rows = np.arange(2 * 37, dtype=np.float32).reshape(2, 37)
        model.set_head_rows(np.array([0, 2]), rows)
        assert model.head_rows()[[0, 2], :-1].tolist() == rows[:, :-1].tolist()
        assert not model.head_rows()[:, -1].any()

    def test_without_an_input_shape_the_last_linear_is_trusted(self) -> None:
        model = TorchModel(self.net(), CLASSES)
        assert (model.spec.feature_dim, model.spec.flops_per_sample) == (5, 0)
        assert model.features(samples()[0]).shape == (40, 5)


class Ordered(nn.Module):
    """A net whose layers are registered in another order than they run."""

    def __init__(self, body: int, *extra: nn.Module, first: bool = False) -> None:
        super().__init__()
        layers = {"body": nn.Linear(36, body), "last": nn.Linear(body, CLASSES)}
        for name in reversed(layers) if first else layers:
            self.add_module(name, layers[name])
        self.extra = nn.ModuleList(extra)

    def forward(self, x: Tensor) -> Tensor:
        f = torch.relu(self.body(x.flatten(1)))
        out: Tensor = self.last(f)
        return out + 0 * sum(layer(f) for layer in self.extra) if self.training else out


ORDERS: dict[str, Callable[[], nn.Module]] = {
    "the last is unused": lambda: Ordered(8, nn.Linear(8, CLASSES)),
    "the last is unused and of another width": lambda: Ordered(8, nn.Linear(8, 1)),
    "the last is registered first": lambda: Ordered(CLASSES, first=True),
}


@pytest.mark.traced
@pytest.mark.parametrize("make", ORDERS.values(), ids=ORDERS)
class TestLayersOutOfOrder:
    def test_the_layer_that_makes_the_logits_is_the_head(self, make: Callable[[], nn.Module]) -> None:
        net = make()
        model, x = wrap(net), samples()[0]
        assert "head-rows" in model.spec.capabilities
        assert model.head_rows()[:, :-1].tolist() == net.last.weight.tolist()
        np.testing.assert_allclose(model.head(model.features(x)), model.logits(x), atol=1e-6)

    def test_a_cosine_head_takes_its_place(self, make: Callable[[], nn.Module]) -> None:
        net = make()
        model = wrap(net, head="cosine")
        assert isinstance(net.last, nn.Sequential)
        assert {"head-rows", "cosine-head"} <= model.spec.capabilities

    def test_without_an_input_shape_the_first_samples_show_another(self, make: Callable[[], nn.Module]) -> None:
        model = TorchModel(make(), CLASSES)
        if "head-rows" in model.spec.capabilities:
            with pytest.raises(ModelError, match=r"does not make its logits: pass input_shape"):
                model.logits(samples()[0])
            with pytest.raises(ModelError, match=r"does not make its logits: pass input_shape"):
                model.fit(batches(1), (CrossEntropy(),), ADAM)


class TestWrongNets:
    def test_logits_of_another_width_show_at_once(self) -> None:
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 7))
        with pytest.raises(ModelError, match=r"\(1, 7\), .*\(1, 4\)"):
            wrap(net)

    def test_or_at_the_first_batch(self) -> None:
        model = TorchModel(nn.Sequential(nn.Flatten(), nn.Linear(36, 7)), CLASSES)
        with pytest.raises(ModelError, match=r"\(40, 7\), .*\(40, 4\)"):
            model.logits(samples()[0])
        with pytest.raises(ModelError, match=r"\(8, 7\), .*\(8, 4\)"):
            model.fit(batches(1), (CrossEntropy(),), ADAM)

    def test_a_sample_that_does_not_fit(self) -> None:
        with pytest.raises(ModelError, match=r"\(1, 6, 6\).* not run"):
            wrap(nn.Sequential(nn.Flatten(), nn.Linear(35, CLASSES)))

    def test_a_sample_that_does_not_run_is_told_in_one_line(self) -> None:
        class Failing(nn.Module):
            def forward(self, _x: Tensor) -> Tensor:
                raise ValueError("my layer\nhas had enough")

        with pytest.raises(ModelError, match=r"does not run: my layer has had enough$"):
            wrap(Failing())

    def test_other_number_types(self) -> None:
        with pytest.raises(ModelError, match=r"1\.weight .*torch\.float64, .*torch\.float32: .*net\.float"):
            wrap(linear().double())

    def test_another_optimiser(self) -> None:
        with pytest.raises(UsageError, match="known are sgd, adam"):
            wrap(linear()).fit(batches(1), (CrossEntropy(),), Optim(kind="adamw"))


@pytest.mark.traced
class TestFrozenParts:
    def test_a_frozen_net_only_predicts(self) -> None:
        model = wrap(linear().requires_grad_(requires_grad=False))
        assert model.spec.capabilities == {"predict", "features", "head-rows", "head-weights"}
        assert model.spec.terms == frozenset()
        check_unsupported(model, "logit-gradients")
        check_unsupported(model, "weights")

    def test_frozen_parameters_are_no_weights_but_are_kept(self) -> None:
        net = nn.Sequential(nn.Flatten(), nn.Linear(36, 5).requires_grad_(requires_grad=False), nn.Linear(5, CLASSES))
        model, frozen = wrap(net), net[1].weight.clone()
        model.fit(batches(3), (CrossEntropy(),), ADAM)
        assert torch.equal(net[1].weight, frozen)
        assert model.weights().shape == (CLASSES * 6,)
        other = nn.Sequential(nn.Flatten(), nn.Linear(36, 5).requires_grad_(requires_grad=False), nn.Linear(5, CLASSES))
        wrap(other).load_state(model.state_bytes())
        assert torch.equal(other[1].weight, frozen)

    def test_parameters_that_the_loss_does_not_reach_stay(self) -> None:
        class Spare(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.spare = nn.Linear(2, 2)
                self.used = linear()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.used(x)

        net = Spare()
        before = net.spare.weight.clone()
        for optim in OPTIMS.values():
            wrap(net).fit(batches(2), (CrossEntropy(),), optim)
        assert torch.equal(net.spare.weight, before)


@pytest.mark.traced
class TestRandomness:
    def model(self) -> TorchModel:
        with seeded(0):
            return wrap(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, CLASSES)))

    def trained(self, *, stochastic: bool, seed: int) -> np.ndarray:
        model, work = self.model(), batches(2)
        work = Batches(inputs=work.inputs, labels=work.labels, indices=work.indices, stochastic=stochastic, seed=seed)
        model.fit(work, (CrossEntropy(),), ADAM)
        return model.weights()

    def test_dropout_follows_the_seed_of_the_batches(self) -> None:
        once = self.trained(stochastic=True, seed=1)
        np.testing.assert_array_equal(once, self.trained(stochastic=True, seed=1))
        assert np.abs(once - self.trained(stochastic=True, seed=2)).max() > 1e-4

    def test_there_is_none_where_logits_were_sent(self) -> None:
        once = self.trained(stochastic=False, seed=1)
        np.testing.assert_array_equal(once, self.trained(stochastic=False, seed=2))
        assert np.abs(once - self.trained(stochastic=True, seed=1)).max() > 1e-4

    def test_nor_in_inference_after_training(self) -> None:
        model = self.model()
        model.fit(batches(1, stochastic=True), (CrossEntropy(),), ADAM)
        np.testing.assert_array_equal(model.logits(samples()[0]), model.logits(samples()[0]))

    def test_torchs_own_generator_is_left_alone(self) -> None:
        before = torch.get_rng_state()
        self.trained(stochastic=True, seed=1)
        torch_model("cnn", CLASSES, SHAPE, Preprocess(), 7)
        assert torch.equal(torch.get_rng_state(), before)

    def test_the_differentiated_pass_is_the_one_that_was_sent(self) -> None:
        """Loss <g, f> with g the logits themselves: its value is the mean of |f|^2 only if f is what logits() gave."""
        model, work = self.model(), batches(1)
        sent = model.logits(work.inputs[work.indices[0]])
        report = model.fit(work, (LogitGradient(gradient=sent[None]),), ADAM)
        assert report.loss == pytest.approx(float((sent**2).sum() / BATCH), rel=1e-5)


@pytest.mark.traced
class TestBatchNorm:
    def model(self) -> TorchModel:
        return wrap(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, CLASSES)))

    def test_statistics_see_private_samples_only(self) -> None:
        model = self.model()
        norm = model.net[1]
        model.fit(batches(3, stochastic=False), (CrossEntropy(),), ADAM)
        assert (norm.running_mean == 0).all()
        model.fit(batches(3, stochastic=True), (CrossEntropy(),), ADAM)
        assert (norm.running_mean != 0).all()

    def test_statistics_belong_to_the_state(self) -> None:
        one, two = self.model(), self.model()
        one.fit(batches(3, stochastic=True), (CrossEntropy(),), ADAM)
        two.load_state(one.state_bytes())
        assert two.net[1].num_batches_tracked == 3
        np.testing.assert_array_equal(one.logits(samples()[0]), two.logits(samples()[0]))

    def test_a_state_of_another_architecture_changes_nothing(self) -> None:
        model = self.model()
        before = model.state_bytes()
        with pytest.raises(StoreError, match=r"'net\.0\.weight' .*nothing"):
            model.load_state(wrap(linear()).state_bytes())
        assert model.state_bytes() == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_an_accelerator_gives_the_same_within_rounding() -> None:
    here, there = wrap(linear()), wrap(linear(), device="cuda")
    there.set_weights(here.weights())
    before = torch.cuda.get_rng_state()
    for model in (here, there):
        model.fit(batches(5, stochastic=True), objectives(5)["all"], ADAM)
    np.testing.assert_allclose(there.weights(), here.weights(), atol=1e-4)
    here.load_state(there.state_bytes())
    assert here.state_bytes() == there.state_bytes()
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.traced
def test_large_inputs_go_through_in_chunks() -> None:
    seen = []

    class Spy(nn.Flatten):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(len(x))
            return super().forward(x)

    model = TorchModel(nn.Sequential(Spy(), nn.Linear(36, CLASSES)), CLASSES)
    x = np.random.default_rng(0).random((600, *SHAPE), np.float32)
    whole = model.logits(x)
    assert max(seen) <= 256
    np.testing.assert_allclose(whole[590:], model.logits(x[590:]), atol=1e-6)


@pytest.mark.traced
def test_trains_without_loading_torchs_compiler() -> None:
    """It takes seconds and some hundred megabytes, which a small board does not have."""
    script = """
import sys, numpy as np
from torch import nn
from edge_sdk.models import Batches, TorchModel
from edge_sdk.objectives import CrossEntropy, Optim
model = TorchModel(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, 2)), 2, input_shape=(1, 2, 2))
x = np.zeros((3, 1, 2, 2), np.float32)
model.fit(Batches(inputs=x, labels=np.array([0, 1, 0]), indices=np.array([[0, 1]])), (CrossEntropy(),), Optim())
model.load_state(model.state_bytes())
print(model.logits(x).shape, "torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(3, 2) False"


@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_named(wrong: float, head: Literal["linear", "cosine"]) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.Linear(4, 3))
    with torch.no_grad():
        net[2].bias[1] = wrong
    with pytest.raises(ModelError, match=r"2\.bias has NaN or Inf"):
        TorchModel(net, classes=3, head=head)


def test_buffers_that_are_not_finite_are_named() -> None:
    for wrong in (float("nan"), float("inf")):
        net = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(8), nn.Linear(8, 3))
        net[1].running_var[2] = wrong
        with pytest.raises(ModelError, match=r"1\.running_var has NaN or Inf"):
            TorchModel(net, classes=3)


@pytest.mark.parametrize("first", [nn.ReLU(inplace=True), nn.Hardtanh(inplace=True)])
@pytest.mark.parametrize("features", ["2", None])
def test_a_net_that_writes_into_its_samples_is_refused(first: nn.Module, features: str | None) -> None:
    net = nn.Sequential(nn.Flatten(), first, nn.Linear(8, 3))
    with pytest.raises(ModelError, match=r"the net writes into its input.*x\.clone\(\)"):
        TorchModel(net, 3, input_shape=(1, 2, 4), features=features)
    deeper = nn.Sequential(nn.Flatten(), nn.Linear(8, 8), first, nn.Linear(8, 3))
    TorchModel(deeper, 3, input_shape=(1, 2, 4))


@pytest.mark.parametrize("pass_", ["logits", "features", "outputs", "fit", "step_norms"])
def test_without_an_input_shape_it_is_refused_at_the_first_samples(pass_: str) -> None:
    model = TorchModel(nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(8, CLASSES)), CLASSES)
    x = np.full((5, 1, 2, 4), -1, np.float32)
    given = Batches(inputs=x, labels=np.zeros(5, np.int64), indices=np.arange(5)[None])
    arguments = {"fit": (given, (CrossEntropy(),), Optim()), "step_norms": (given, (CrossEntropy(),))}
    for _ in range(2):
        with pytest.raises(ModelError, match=r"the net writes into its input.*x\.clone\(\)"):
            getattr(model, pass_)(*arguments.get(pass_, (x,)))
    assert (x == -1).all()


def test_without_an_input_shape_a_device_is_refused_before_it_joins() -> None:
    model = TorchModel(nn.Sequential(nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(8, CLASSES)), CLASSES)
    data = LocalData(train=Samples(np.full((5, 1, 2, 4), -1, np.float32), np.zeros(5, np.int64)))
    with pytest.raises(ModelError, match="the net writes into its input"):
        Workbench(model, data)
    assert (data.train.x == -1).all()


class _Words(nn.Module):
    """Means of the vectors of a sample's words."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.vectors = nn.Embedding(20, 8, sparse=sparse)

    def forward(self, x: Tensor) -> Tensor:
        return self.vectors((x.flatten(1).abs() * 5).long().clamp(0, 19)).mean(1)


@pytest.mark.traced
@pytest.mark.parametrize("optim", OPTIMS.values(), ids=OPTIMS)
def test_sparse_gradients_train_like_dense_ones(optim: Optim) -> None:
    states = []
    for sparse in (False, True):
        with seeded(3):
            model = TorchModel(nn.Sequential(_Words(sparse=sparse), nn.Linear(8, CLASSES)), CLASSES, input_shape=SHAPE)
        model.fit(batches(4), (CrossEntropy(),), optim)
        states.append(model.weights())
    np.testing.assert_allclose(states[1], states[0], rtol=1e-5, atol=1e-6)


@pytest.mark.traced
def test_weights_that_are_turned_in_their_own_memory_are_read_as_they_are() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False), nn.Linear(4, 3))
    model = TorchModel(net, 3, input_shape=(1, 2, 2))
    before = model.weights()
    net[1].weight.data = net[1].weight.data.t()
    turned = np.concatenate([before[:16].reshape(4, 4).T.ravel(), before[16:]])
    np.testing.assert_array_equal(model.weights(), turned)
    model.set_weights(before)
    np.testing.assert_array_equal(net[1].weight.detach().numpy(), before[:16].reshape(4, 4))


@pytest.mark.traced
def test_huge_weights_and_masks_with_infinity_are_sound() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    nn.init.constant_(net[1].weight, 3e38)  # their sum is not finite
    net.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
    net.register_buffer("none", torch.empty(0))
    assert TorchModel(net, classes=3).spec.parameters == 27


def test_a_net_that_does_not_flatten_is_told_to():
    model = TorchModel(nn.Linear(8, 3), classes=3)
    with pytest.raises(ModelError, match=r"must flatten .*nn\.Flatten"):
        model.logits(np.zeros((1, 1, 1, 8), np.float32))


@pytest.mark.traced
@pytest.mark.parametrize("features", [None, "0"])
def test_one_pass_gives_the_bits_of_logits_and_of_features(features: str | None) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    model = TorchModel(net, 3, input_shape=(1, 3, 4), features=features)
    x = np.random.default_rng(0).normal(size=(300, 1, 3, 4)).astype(np.float32)
    passes: list[int] = []
    net.register_forward_hook(lambda _net, args, _out: passes.append(len(args[0])))
    logits, found = model.outputs(x)
    assert sum(passes) == len(x)
    np.testing.assert_array_equal(logits, model.logits(x))
    np.testing.assert_array_equal(found, model.features(x))


@pytest.mark.traced
@pytest.mark.parametrize("features", [None, "1"])
def test_a_deep_copy_reads_its_own_net(features: str | None) -> None:
    model = TorchModel(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Linear(3, 2)), 2, input_shape=(1, 2, 2), features=features
    )
    copied, x = deepcopy(model), np.ones((2, 1, 2, 2), np.float32)
    before = copied.features(x)
    model.set_weights(model.weights() + 1)
    np.testing.assert_array_equal(copied.features(x), before)
    assert not np.array_equal(model.features(x), before)

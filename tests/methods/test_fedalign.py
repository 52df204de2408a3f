"""FedAlign: Lipschitz constants by hand, the loss against plain autograd, and models without a width switch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, spec_of

torch = pytest.importorskip("torch")

from edge_sdk.data import Preprocess
from edge_sdk.methods.contract.requests import Fit, ReadWeights, WriteWeights
from edge_sdk.methods.parts.fedalign_term import Alignment
from edge_sdk.methods.parts.torch_fedalign import Alignments, flow, largest_singular_value
from edge_sdk.models.base import Batches
from edge_sdk.models.torch_nets.torch_width import last_switch
from edge_sdk.objectives import CrossEntropy, Optim, Seen
from edge_sdk.protocol.knowledge import Weights
from edge_sim.config import settings
from edge_sim.models.torch_families import torch_model

pytestmark = pytest.mark.torch
SWITCHED = ("resnet", "resnet8", "wresnet-10-1")
SGD = Optim(kind="sgd", learning_rate=0.1)
SHAPE = (3, 8, 8)


def model(family: str = "resnet") -> Any:
    return torch_model(family, 4, SHAPE, Preprocess(), 3)


def work(steps: int = 2) -> Batches:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, *SHAPE)).astype(np.float32)
    return Batches(inputs=x, labels=np.arange(12) % 4, indices=np.arange(6 * steps).reshape(steps, 6) % 12)


# -- the worked number ----------------------------------------------------------------------------------------------


def test_the_worked_number() -> None:
    before, after = (torch.tensor(each).reshape(1, 2, 1, 2) for each in ([[1.0, 0], [0, 2]], [[1.0, 1], [1, 0]]))
    x = flow(before, after)
    assert x.tolist() == [[[0.5, 0.5], [1, 0]]]
    assert largest_singular_value(x).item() == pytest.approx(1.144123, abs=1e-6)


def test_the_constant_is_the_largest_singular_value() -> None:
    x = torch.tensor(np.random.default_rng(1).uniform(size=(5, 4, 6)))
    expected = np.linalg.svd(x.numpy(), compute_uv=False)[:, 0]
    np.testing.assert_allclose(largest_singular_value(x), expected, rtol=1e-4)


def test_maps_without_any_flow_have_a_finite_slope() -> None:
    zero = torch.zeros(2, 3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(largest_singular_value(zero).sum(), [zero])
    assert torch.isfinite(slope).all()


def test_slopes_are_those_of_the_value_with_its_factor_held() -> None:
    rng = np.random.default_rng(0)
    ce, sub, full = np.array([0.7]), rng.normal(size=5), rng.normal(size=5)
    term = Alignment(weight=0.45)
    slope = term.slope(Seen(own=(ce, sub, full)))
    factor = 0.45 * 0.7 / ((sub - full) ** 2).mean()
    for at in range(5):
        step = np.eye(5)[at] * 1e-6
        values = [factor * ((sub + sign * step - full) ** 2).mean() for sign in (1, -1)]
        assert slope[at] == pytest.approx((values[0] - values[1]) / 2e-6, abs=1e-5)
    assert term.value(Seen(own=(ce, sub, full))) == pytest.approx(0.45 * 0.7)


# -- widths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SWITCHED)
def test_a_block_at_a_quarter_of_its_width_is_that_with_the_other_channels_gone(family: str) -> None:
    made = model(family)
    assert "width" in made.spec.capabilities
    block = last_switch(made.net)
    convolution, norm, second = block.body[0], block.body[1], block.body[3]
    x = torch.tensor(np.random.default_rng(0).normal(size=(2, convolution.in_channels, 4, 4)).astype(np.float32))
    inner = max(1, round(0.25 * norm.num_groups)) * (norm.num_channels // norm.num_groups)
    with torch.no_grad():
        whole, quarter = block(x), block.at_width(x, 0.25)
        assert whole.shape == quarter.shape
        second.weight[:, inner:] = 0  # what comes later no longer sees them
        np.testing.assert_allclose(block(x), quarter, atol=1e-5)
    assert not torch.allclose(whole, quarter)


def test_a_net_without_a_switch_does_not_offer_it() -> None:
    for family in ("mlp", "cnn", "lenet5"):
        spec = model(family).spec
        assert "width" not in spec.capabilities
        assert "alignment" not in spec.terms


def test_a_model_without_a_width_switch_is_refused_before_training(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedalign", devices=3, quorum=2)
    tables["fleet"] = [{"count": 2, "model": "resnet"}, {"count": 1, "model": "mlp"}]
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    (refused,) = run.result.refused_devices
    assert (refused["device"], refused["reason"]) == ("device-02", "capability")
    assert "width" in refused["message"]
    assert "width switch" in refused["remedy"]
    assert run.begun["device-02"] == 0


# -- the loss -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SWITCHED)
def test_a_step_is_that_of_plain_autograd(family: str) -> None:
    """One step: the factor CE / L is large, so that two runs in f4 and f8 soon part."""
    made, twin, batches = model(family), model(family).net.double(), work(1)
    begun = made.weights()
    made.fit(batches, (CrossEntropy(), Alignment(weight=0.45)), SGD)
    block, seen = last_switch(twin), []
    x, y = torch.tensor(batches.inputs[batches.indices[0]]).double(), torch.tensor(batches.labels[batches.indices[0]])
    with block.register_forward_hook(lambda _block, args, out: seen.append((args[0], out))):
        ce = torch.nn.functional.cross_entropy(twin(x), y)
    before, after = (each.detach() for each in seen[0])
    full, narrow = (top(flow(before, each)) for each in (after, block.at_width(before, 0.25)))
    gap = ((narrow - full) ** 2).mean()
    slopes = torch.autograd.grad(ce + 0.45 * (ce / gap).detach() * gap, list(twin.parameters()))
    expected = -0.1 * np.concatenate([slope.numpy().ravel() for slope in slopes])
    np.testing.assert_allclose(made.weights() - begun, expected, atol=1e-3 * np.abs(expected).max())
    plain = model(family)
    plain.fit(batches, (CrossEntropy(),), SGD)
    assert (
        np.abs(plain.weights() - made.weights()).max() > 0.1 * np.abs(expected).max()
    )  # the tolerance means something


def top(x: Any) -> Any:
    """The largest singular value as the authors' code finds it."""
    square = x @ x.transpose(1, 2)
    v = torch.ones(len(x), x.shape[1], 1).to(x)
    for _ in range(10):
        m = square @ v
        n = m.norm(dim=1, keepdim=True)
        v = m / n
    return n.flatten().sqrt()


def test_nothing_is_held_after_a_fit() -> None:
    """Whether it ends, or the next one begins in its middle."""
    made = model()
    batches, objective = work(1), (CrossEntropy(), Alignment())
    (one, two) = (made.fit(batches, objective, SGD) for _ in range(2))
    assert one.extra_flops == two.extra_flops > 0
    assert not last_switch(made.net)._forward_hooks
    form = Alignments(made._forms.host)
    form.loss(Alignment(), batches)
    form.loss(Alignment(), batches)
    assert len(last_switch(made.net)._forward_hooks) == 1


def test_a_restart_in_the_middle_changes_no_bit() -> None:
    objective, adam = (CrossEntropy(), Alignment()), Optim(kind="adam", learning_rate=1e-3)
    one, other = model(), model()
    one.fit(work(), objective, adam)
    other.load_state(one.state_bytes())
    for each in (one, other):
        each.fit(work(), objective, adam)
    assert one.state_bytes() == other.state_bytes()


# -- the device -----------------------------------------------------------------------------------------------------


class Recording(FakeDevice):
    """Also gives weights."""

    def answer(self, request: Any) -> Any:
        if isinstance(request, (ReadWeights, WriteWeights)):
            return Weights(values=np.ones(9, np.float32), layout=bytes(16))
        return super().answer(request)


@pytest.mark.parametrize(("mu", "terms"), [(0.45, ["cross-entropy", "alignment"]), (0.0, ["cross-entropy"])])
def test_what_is_trained_on(mu: float, terms: list[str]) -> None:
    device = Recording()
    device.run(first_step({}, job(spec_of("fedalign", mu=mu), 0)))
    (fit,) = (request for request in device.requests if isinstance(request, Fit))
    assert [term.name for term in fit.objective] == terms

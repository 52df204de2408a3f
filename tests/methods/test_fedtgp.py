"""FedTGP: margin, loss and what each half does in a round, and whole runs against a twin in plain autograd."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, rows_of, spec_of

from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import WriteHead
from edge_sdk.methods.fedtgp import _STREAM, margin
from edge_sdk.objectives import PrototypePull
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.reductions import Contribution
from edge_sim.config import settings

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from edge_sdk.methods.parts import torch_fedtgp

naive = importlib.import_module("naive")  # needs torch
RATE = 0.1
SPEC = spec_of("fedtgp", feature_dim=2, server_epochs=3, mse_weight=0.5)
MEANS = rows_of([0, 2], [[1, 2], [3, 4]], [4, 5])
PROTOTYPES = rows_of([0, 1, 2], [[1, 0], [0, 1], [2, 2]])


def reduced(spec: Any, *ups: ClassRows) -> Any:
    method = method_of(spec)
    bag = method.zero()
    for number, rows in enumerate(ups):
        bag = method.add(bag, Contribution(number=number, samples=9, knowledge={"means": rows}))
    return bag, method.finish(spec, method.begin(spec), ExchangeId(0, 0), bag)


# -- the worked numbers ---------------------------------------------------------------------------------------------


def test_the_margin() -> None:
    """docs/reference/methods/fedtgp.md: class means (0, 0), (3, 4) and (3, 0) have gaps 3, 4 and 3."""
    x = np.array([[-1, 0], [1, 0], [3, 4], [3, 0]], np.float32)
    y = np.array([0, 0, 1, 2])
    assert margin(x, y, 100.0) == 4
    assert margin(x, y, 2.5) == 2.5
    assert margin(x[:2], y[:2], 100.0) == 100  # one class has no other


@pytest.mark.parametrize(("delta", "expected"), [(0.0, 0.313262), (1.0, 0.693147)])
def test_the_loss(delta: float, expected: float) -> None:
    """Distances 1 and 2 of the mean (1, 0) of class 0 from (0, 0) and (1, 2)."""
    embedding = np.array([[0, 0], [1, 2]], np.float32)
    same = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    found = torch_fedtgp.separation_loss((embedding, same, same), np.array([[1, 0]], np.float32), np.array([0]), delta)
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_mean_that_lies_on_its_prototype_has_a_finite_slope() -> None:
    same = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    x, rng = np.array([[1.0, 2.0]], np.float32), np.random.default_rng(0)
    net = np.array([[1, 2], [0, 0]], np.float32), same, same
    net = torch_fedtgp.trained_net(net, x, np.array([0]), epochs=2, rate=0.1, batch=2, margin=1.0, rng=rng)
    assert all(np.isfinite(each).all() for each in net)


# -- the two halves -------------------------------------------------------------------------------------------------


def test_the_first_round_has_labels_alone() -> None:
    device = FakeDevice(means=MEANS)
    _, up = device.run(first_step({}, job(SPEC, 0)))
    assert device.kinds == ["fit private: cross-entropy", "class means"]
    assert up == {"means": rows_of([0, 2], [[1, 2], [3, 4]], [1, 1])}


def test_later_rounds_measure_by_prototypes_and_pull() -> None:
    device = FakeDevice(means=MEANS)
    device.run(first_step({"prototypes": PROTOTYPES}, job(SPEC, 1)))
    assert device.kinds == ["evaluate 1 with prototypes", "fit private: cross-entropy + prototype-pull", "class means"]
    assert device.requests[0].predicts_by == "prototype"
    pull = device.requests[1].objective[1]
    assert isinstance(pull, PrototypePull)
    assert (pull.rows.tolist(), pull.weight) == ([[1, 0], [0, 1], [2, 2]], 0.5)


def test_at_the_end_the_model_predicts_by_what_was_measured() -> None:
    device = FakeDevice(means=MEANS)
    device.run(first_step({"prototypes": PROTOTYPES}, job(SPEC, SPEC.rounds)))
    written = device.requests[1]
    assert isinstance(written, WriteHead)
    x = np.random.default_rng(0).normal(size=(50, 2))
    nearest = ((x[:, None] - PROTOTYPES.rows) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal((x @ written.rows[:, :-1].T + written.rows[:, -1]).argmax(1), nearest)
    by_head = spec_of("fedtgp", feature_dim=2, predict="head")
    device.run(first_step({"prototypes": PROTOTYPES}, job(by_head, by_head.rounds)))
    assert [each.predicts_by for each in device.requests] == ["head"]


def test_every_class_has_a_prototype_and_the_instruments_show_the_training() -> None:
    bag, state = reduced(SPEC, MEANS, rows_of([0], [[1, 3]]))
    method = method_of(SPEC)
    assert state.prototypes.classes.tolist() == [0, 1, 2]
    found = method.instruments(SPEC, method.begin(SPEC), state, ExchangeId(0, 0), bag)
    assert found["prototype_margin"] == pytest.approx(np.hypot(2, 1.5))
    assert found["prototype_loss_after"] < found["prototype_loss_before"]


# -- whole runs -----------------------------------------------------------------------------------------------------


def made(pictures: Path, **params: Any) -> settings.Config:
    tables = fleets.tables(pictures, "fedtgp", devices=4, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = params
    tables["fleet"] = [{"count": 2, "model": "mlp"}, {"count": 2, "model": "mlp-wide"}]
    return settings.parse(tables, Path("test.toml"))


@pytest.mark.parametrize("most", [100.0, 0.5])
def test_a_run_is_its_naive_twin(pictures: Path, most: float) -> None:
    """Own models of two architectures; the net of prototypes as modules of torch."""
    run = fleets.Run(made(pictures, server_epochs=5, server_rate=0.05, margin_most=most, predict="head"))
    spec = run.fleet.federation.spec
    twins = [naive.Naive(run, device) for device in run.fleet.devices]
    begun = method_of(spec).begin(spec)
    net = torch.nn.Sequential(naive.linear(begun.first), torch.nn.ReLU(), naive.linear(begun.second))
    embedding = torch.tensor(begun.embedding).double().requires_grad_()
    ce, mse, prototypes = torch.nn.functional.cross_entropy, torch.nn.MSELoss(), None
    for round_ in range(3):
        items: list[tuple[Any, int]] = []
        for twin in twins:
            for batch in twin.batches(round_):
                features, labels = twin.body(twin.x[batch]), twin.y[batch]
                loss = ce(twin.head(features), labels)
                if prototypes is not None:
                    loss = loss + 10 * mse(features, prototypes[labels])
                naive.step(loss, twin.net.parameters(), RATE)
            items += [(mean, label) for label, mean in twin.means().items()]
        rows, labels = torch.stack([row for row, _ in items]), torch.tensor([label for _, label in items])
        means = torch.stack([rows[labels == label].mean(dim=0) for label in labels.unique()])
        apart = torch.cdist(means, means) + torch.diag(torch.full((len(means),), torch.inf))
        delta = min(apart.min(dim=1).values.max().item(), most)
        rng = np.random.default_rng([spec.seed, _STREAM, round_])
        for _ in range(5):
            for part in torch.split(torch.tensor(rng.permutation(len(labels))), spec.train.batch_size):
                distances = torch.cdist(rows[part], net(embedding))
                distances = distances + delta * torch.eye(spec.classes).double()[labels[part]]
                naive.step(ce(-distances, labels[part]), [embedding, *net.parameters()], 0.05)
        prototypes = net(embedding).detach()
    run.finished()
    state = run.server.method_state
    np.testing.assert_allclose(state.prototypes.rows, prototypes.numpy(), atol=2e-6)
    np.testing.assert_allclose(state.embedding, embedding.detach().numpy(), atol=2e-6)
    for virtual, twin in zip(run.devices, twins, strict=True):
        np.testing.assert_allclose(virtual.agent.participant.context.bench.model.weights(), twin.weights, atol=2e-6)
    assert np.abs(state.embedding - begun.embedding).max() > 1e-3  # the tolerance means something


def test_both_inferences_are_reported(pictures: Path) -> None:
    """By prototypes as the result, and by the head beside it; the model that a device keeps gives the result."""
    run = fleets.Run(made(pictures, server_epochs=50)).finished()
    for device in run.result.devices:
        assert "head_accuracy" in device.metrics
    for virtual, device in zip(run.devices, run.result.devices, strict=True):
        bench = virtual.agent.participant.context.bench
        right = (bench.logits(bench.test).argmax(axis=1) == bench.data.test.y).mean()
        assert right == pytest.approx(device.accuracy)
    by_head = fleets.Run(made(pictures, server_epochs=50, predict="head")).finished()
    for device in by_head.result.devices:
        assert "prototype_accuracy" in device.metrics
    found = [each.metrics["prototype_accuracy_all"] for each in by_head.result.devices]
    assert found == [each.accuracy for each in run.result.devices]

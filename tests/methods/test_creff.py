"""CReFF: gradients by class, features that match them, and a whole run against a literal twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import job, spec_of

torch = pytest.importorskip("torch")

from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.last_layer import random_rows
from edge_sdk.methods.contract.requests import HeadGradients
from edge_sdk.methods.creff import _STREAM
from edge_sdk.methods.parts import torch_creff
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol.messages import Upload
from edge_sim.config import settings

pytestmark = pytest.mark.torch
RATE = 0.1
MATCH = {"features_per_class": 3, "match_steps": 4, "retrain_epochs": 2, "retrain_batch": 5}


# -- the worked number ----------------------------------------------------------------------------------------------

IDENTITY = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
MEAN = np.array([[[-0.484732, -0.731059, -0.425131], [0.484732, 0.731059, 0.425131]]], np.float32)


def answer(work: Any) -> Any:
    """Drive the work to its end."""

    def drive() -> Any:
        found.append((yield from work))

    found: list[Any] = []
    list(drive())
    return found[0]


def test_the_gradients_of_the_worked_number() -> None:
    x = np.array([[1, 2], [2, 0]], np.float32)
    bench = Workbench(NumpyModel(2, (1, 1, 2), seed=0), LocalData(train=Samples(x, np.array([0, 0]))))
    found = answer(bench.serve(HeadGradients(IDENTITY), job(spec_of("creff"), 1)))
    assert (found.classes.tolist(), found.counts.tolist()) == ([0], [2])
    np.testing.assert_allclose(found.rows, MEAN.reshape(1, -1), atol=1e-6)


def test_the_distance_of_the_worked_number() -> None:
    gradient = torch_creff.gradient_of(torch.tensor([[1.0, 0.0]]), 0, torch.tensor(IDENTITY))
    assert torch_creff.distance(gradient, torch.tensor(MEAN[0])).item() == pytest.approx(0.894780, abs=1e-5)


def test_a_gradient_of_zero_has_a_distance() -> None:
    assert torch_creff.distance(torch.zeros(2, 3), torch.tensor(MEAN[0])).item() == 3


def test_matching_comes_nearer_and_leaves_other_classes_alone() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(2, 5, 2)).astype(np.float32)
    found = torch_creff.matched(features, IDENTITY, np.array([0]), MEAN, steps=50, rate=0.1)
    assert found[1].tolist() == features[1].tolist()
    apart = [
        torch_creff.distance(
            torch_creff.gradient_of(torch.tensor(each[0]), 0, torch.tensor(IDENTITY)), torch.tensor(MEAN[0])
        ).item()
        for each in (features, found)
    ]
    assert apart[1] < apart[0] / 10


# -- whole runs -----------------------------------------------------------------------------------------------------


def made(pictures: Path, **params: Any) -> fleets.Run:
    tables = fleets.tables(pictures, "creff", devices=4, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = {"start": "equal", **MATCH, **params}
    return fleets.Run(settings.parse(tables, Path("test.toml")))


def test_a_run_is_its_naive_twin(pictures: Path) -> None:
    """With a model that is all last layer, whose extractor is the identity."""
    run = made(pictures)
    devices, spec = run.fleet.devices, run.fleet.federation.spec
    rng = np.random.default_rng([spec.seed, _STREAM])
    features = torch.tensor(rng.normal(size=(12, spec.feature_dim)).astype(np.float32)).double().reshape(4, 3, -1)
    layer = torch.tensor(random_rows(spec.classes, spec.feature_dim, rng)).double()
    shared = torch.tensor(devices[0].kit.model(None).head_rows()).double()
    ce = torch.nn.functional.cross_entropy
    for round_ in range(3):
        trained, brought = [], {}
        for device in devices:
            x = torch.tensor(device.kit.model(None).spec.preprocess(device.data.train.x)).double().flatten(1)
            x, y = torch.cat([x, torch.ones(len(x), 1)], dim=1), torch.tensor(device.data.train.y)
            for label in y.unique().tolist() if round_ else []:
                at = layer.clone().requires_grad_()
                ce(x[y == label] @ at.T, y[y == label]).backward()
                brought.setdefault(label, []).append(at.grad)
            own = shared.clone().requires_grad_()
            for batch in fleets.private_batches(run, device, round_):
                (slope,) = torch.autograd.grad(ce(x[batch] @ own.T, y[batch]), [own])
                own = (own - RATE * slope).detach().requires_grad_()
            trained.append(own.detach())
        samples = torch.tensor([float(len(device.data.train)) for device in devices])
        shared = (torch.stack(trained) * samples[:, None, None]).sum(dim=0) / samples.sum()
        if brought:
            features = matched(features, layer, {k: torch.stack(v).mean(dim=0) for k, v in brought.items()})
            rng = np.random.default_rng([spec.seed, _STREAM, round_])
            layer = retrained(torch.tensor(random_rows(spec.classes, spec.feature_dim, rng)).double(), features, rng)
    run.finished()
    state = run.server.method_state
    np.testing.assert_allclose(state.weights.values, shared.flatten(), atol=1e-5)
    np.testing.assert_allclose(state.features, features.flatten(0, 1), atol=1e-4)
    np.testing.assert_allclose(state.classifier, layer, atol=1e-4)
    for virtual in run.devices:  # the result: the extractor of the mean under the layer that was trained anew
        np.testing.assert_array_equal(virtual.participant.context.bench.model.head_rows(), state.classifier)


def matched(features: Any, layer: Any, wanted: dict[int, Any]) -> Any:
    """As the paper's code: autograd through the gradient."""
    for _ in range(MATCH["match_steps"]):
        features = features.clone().requires_grad_()
        loss = torch.zeros(())
        for label, gradient in wanted.items():
            at = layer.clone().requires_grad_()
            h = torch.cat([features[label], torch.ones(len(features[label]), 1)], dim=1)
            value = torch.nn.functional.cross_entropy(h @ at.T, torch.full((len(h),), label))
            (own,) = torch.autograd.grad(value, [at], create_graph=True)
            pairs = [*zip(own[:, :-1], gradient[:, :-1], strict=True), (own[:, -1], gradient[:, -1])]
            loss = loss + sum(1 - (a * b).sum() / (a.norm() * b.norm() + 1e-6) for a, b in pairs)
        (slope,) = torch.autograd.grad(loss, [features])
        features = (features - 0.1 * slope).detach()
    return features


def retrained(layer: Any, features: Any, rng: np.random.Generator) -> Any:
    """Plain SGD on the balanced features."""
    x, y = features.flatten(0, 1), torch.arange(len(features)).repeat_interleave(features.shape[1])
    x = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    for _ in range(MATCH["retrain_epochs"]):
        order = rng.permutation(len(y))
        for start in range(0, len(y), MATCH["retrain_batch"]):
            index = order[start : start + MATCH["retrain_batch"]]
            layer = layer.clone().requires_grad_()
            (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x[index] @ layer.T, y[index]), [layer])
            layer = (layer - 0.01 * slope).detach()
    return layer


def test_gradients_travel_of_classes_held_from_the_second_round_on(pictures: Path) -> None:
    run = made(pictures)
    sent = run.tap()
    run.finished()
    ups = [message for message in sent if isinstance(message, Upload) and not message.closing]
    assert all(("gradients" in up.knowledge) == (up.round > 0) for up in ups)
    held = {d.kit.id: sorted(set(d.data.train.y.tolist())) for d in run.fleet.devices}
    for up in ups:
        if up.round:
            rows = up.knowledge["gradients"]
            assert rows.classes.tolist() == held[up.device]
            assert rows.counts.tolist() == [1] * len(held[up.device])  # tells no number of samples
            assert rows.rows.shape[1] == fleets.CLASSES * (fleets.WIDTH + 1)


def test_the_trained_last_layer_is_measured_and_training_goes_on_from_fedavgs(pictures: Path) -> None:
    """Weights are FedAvg's whatever the last layer; accuracies are not."""
    creff = made(pictures, retrain_epochs=30, retrain_rate=0.5).finished()
    other = made(pictures, retrain_epochs=1).finished()
    assert creff.server.method_state.weights == other.server.method_state.weights
    assert creff.result.metrics != other.result.metrics

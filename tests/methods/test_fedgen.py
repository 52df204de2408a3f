"""FedGen: what travels, what the generator learns, and a whole run against a twin in plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import job, rows_of, spec_of

torch = pytest.importorskip("torch")

from edge_sdk.methods.contract.base import NoState, OnDevice
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import ReadHead, ReadWeights
from edge_sdk.methods.fedgen import _STREAM, FedGen, Params, generator_shapes, loss, mean_head
from edge_sdk.methods.parts import torch_fedgen as generators
from edge_sdk.objectives import CrossEntropy, HeadLabels
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.wires import check_roles, expectation
from edge_sdk.reductions import Contribution
from edge_sdk.reductions.bag import Bag
from edge_sim.config import settings
from edge_sim.fleet.fleet import Device

pytestmark = pytest.mark.torch
RATE = 0.1


def head_shared(rows: np.ndarray, counts: tuple[int, ...]) -> dict[str, Any]:
    """What a device with this last layer shares beside its weights."""
    spec = spec_of("fedgen")
    device = OnDevice(job=job(spec, 0, class_counts=counts), state=NoState(), down={})
    stage = method_of(spec).share(device)
    answers = {ReadHead: rows, ReadWeights: Weights(values=np.ones(5, np.float32), layout=bytes(16))}
    request = next(stage)
    try:
        while True:
            request = stage.send(answers[type(request)])
    except StopIteration as stop:
        return {role: payload for role, payload in stop.value.items() if role != "weights"}


# -- the device -----------------------------------------------------------------------------------------------------


def test_the_last_layer_travels_in_two_parts() -> None:
    rows = np.arange(9, dtype=np.float32).reshape(3, 3)
    up = head_shared(rows, (4, 0, 5))
    assert up == {"header": rows_of([0, 2], rows[[0, 2]], [4, 5]), "others": rows_of([1], rows[[1]])}
    assert set(head_shared(rows, (1, 1, 1))) == {"header"}


def test_generated_features_are_told_their_labels() -> None:
    params = Params(samples_per_class=2, alpha=3.0)
    made = rows_of([0, 2], [[1, 2, 3, 4], [5, 6, 7, 8]])
    _, term = loss(params, made)
    assert isinstance(term, HeadLabels)
    assert (term.features.tolist(), term.labels.tolist()) == ([[1, 2], [3, 4], [5, 6], [7, 8]], [0, 0, 2, 2])
    assert term.weight == 3.0
    for absent, generated in ((params, None), (Params(alpha=0.0), made)):
        (only,) = loss(absent, generated)
        assert isinstance(only, CrossEntropy)


# -- the coordinator ------------------------------------------------------------------------------------------------


def test_the_mean_of_last_layers_and_how_often_a_label_is_drawn() -> None:
    spec = spec_of("fedgen", feature_dim=2)
    a = {"header": rows_of([0], [[1, 0, 0]], [3]), "others": rows_of([1, 2], [[0, 0, 0], [2, 2, 2]])}
    b = {"header": rows_of([0, 2], [[3, 2, 1], [4, 4, 4]], [1, 4]), "others": rows_of([1], [[1, 1, 1]])}
    bag = Bag()
    for number, known in ((1, b), (0, a)):
        bag = bag.add(Contribution(number=number, samples=9, knowledge=known))
    header, counts = mean_head(bag, spec, only_first=False)
    np.testing.assert_allclose(header, [[2, 1, 0.5], [0.5, 0.5, 0.5], [3, 3, 3]])
    assert (counts / counts.sum()).tolist() == [0.5, 0, 0.5]
    header, counts = mean_head(bag, spec, only_first=True)
    np.testing.assert_allclose(header, [[1, 0, 0], [0, 0, 0], [2, 2, 2]])
    assert counts.tolist() == [4, 0, 4]


def test_what_keeps_features_apart() -> None:
    noise, features = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    assert float(generators.sameness(noise, features)) == pytest.approx(0.606531, abs=1e-6)
    assert float(generators.sameness(noise, torch.zeros(2, 2))) == 1


def test_the_generator_learns_what_a_head_calls_each_class() -> None:
    rng = np.random.default_rng(1)
    header = rng.normal(size=(3, 5)).astype(np.float32)
    shapes = generator_shapes(spec_of("fedgen", feature_dim=4), Params(noise_dim=8, hidden=32))
    how = generators.GeneratorTraining(steps=200, batch=32, rate=0.01, diversity=1.0)
    layers = generators.initial_generator(shapes, rng)
    layers = generators.trained(layers, header, np.array([0.5, 0, 0.5]), how, rng)
    made = generators.made(layers, np.array([0, 2]), 50, 3, rng)  # (2, 50, 4)
    called = (made @ header[:, :-1].T + header[:, -1]).argmax(axis=2)  # (2, 50)
    assert np.mean(called == [[0], [2]]) > 0.95
    assert made.std(axis=1).mean() > 0.1  # and not one feature for each


def test_what_comes_down_fits_its_slot() -> None:
    spec = spec_of("fedgen", feature_dim=2, samples_per_class=3, start="equal")
    weights = Weights(values=np.ones(5, np.float32), layout=bytes(16))
    known = {"weights": weights, "header": rows_of([0, 2], [[1, 2, 3]] * 2, [4, 5])}
    aggregate = FedGen().add(FedGen().zero(), Contribution(number=0, samples=9, knowledge=known))
    state = method_of(spec).finish(spec, method_of(spec).begin(spec), ExchangeId(0, 0), aggregate)
    down = FedGen().common(state, ExchangeId(1, 0))
    assert down["generated"].rows.shape == (2, 6)
    check_roles(down, method_of(spec).exchanges[0].down, expectation(spec))
    assert set(FedGen().common(state, ExchangeId(spec.rounds, 0))) == {"weights"}
    assert storage.serialise(storage.deserialise(type(state), storage.serialise(state))) == storage.serialise(state)


# -- a whole run ----------------------------------------------------------------------------------------------------


def batches(run: fleets.Run, device: Device, round_: int) -> list[tuple[Any, Any]]:
    x = device.kit.model(None).spec.preprocess(device.data.train.x).reshape(len(device.data.train), -1)
    return [
        (torch.tensor(x[each]), torch.tensor(device.data.train.y[each]))
        for each in fleets.private_batches(run, device, round_)
    ]


class Generator(torch.nn.Module):
    """As the paper draws it."""

    def __init__(self, layers: tuple[np.ndarray, ...]) -> None:
        super().__init__()
        hidden, out = (torch.nn.Linear(*reversed(layers[i].shape)) for i in (0, 2))
        for linear, i in ((hidden, 0), (out, 2)):
            linear.load_state_dict({"weight": torch.tensor(layers[i]), "bias": torch.tensor(layers[i + 1])})
        self.net = torch.nn.Sequential(hidden, torch.nn.ReLU(), out)

    def forward(self, noise: Any, labels: Any) -> Any:
        return self.net(torch.cat([noise, torch.eye(fleets.CLASSES)[labels]], dim=1))


def test_a_run_is_its_naive_twin(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedgen", devices=3, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    sizes = {"samples_per_class": 4, "generator_steps": 5, "generator_batch": 16, "hidden": 8, "noise_dim": 3}
    tables["method"] = {"start": "equal", "alpha": 2.0, "diversity": 0.5, "generator_rate": 0.05, **sizes}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    devices, seed = run.fleet.devices, run.fleet.federation.spec.seed
    shapes = generator_shapes(run.fleet.federation.spec, Params(noise_dim=3, hidden=8))
    generator = Generator(generators.initial_generator(shapes, np.random.default_rng([seed, _STREAM])))
    mean = torch.tensor(devices[0].kit.model(None).head_rows())
    counts = [len(device.data.train) for device in devices]
    labels = np.bincount(np.concatenate([device.data.train.y for device in devices]), minlength=fleets.CLASSES)
    lessons: tuple[Any, Any] | None = None
    for round_ in range(3):
        trained = []
        for device in devices:
            rows = mean.clone().requires_grad_()
            for x, y in batches(run, device, round_):
                loss = torch.nn.functional.cross_entropy(x @ rows[:, :-1].T + rows[:, -1], y)
                if lessons is not None:
                    said = lessons[0] @ rows[:, :-1].T + rows[:, -1]
                    loss = loss + 2.0 * torch.nn.functional.cross_entropy(said, lessons[1])
                (slope,) = torch.autograd.grad(loss, rows)
                rows = (rows - RATE * slope).detach().requires_grad_()
            trained.append(rows.detach())
        mean = sum(n * rows for n, rows in zip(counts, trained, strict=True)) / sum(counts)
        head = sum(trained) / len(trained)
        rng = np.random.default_rng([seed, _STREAM, round_])
        optim = torch.optim.Adam(generator.parameters(), lr=0.05)
        for _ in range(5):
            y = torch.tensor(rng.choice(fleets.CLASSES, 16, p=labels / labels.sum()))
            noise = torch.tensor(rng.normal(size=(16, 3)).astype(np.float32))
            made = generator(noise, y)
            same = 0.0
            for i in range(16):
                for j in range(16):
                    same = same + (noise[i] - noise[j]).square().mean() * (made[i] - made[j]).abs().mean()
            loss = torch.nn.functional.cross_entropy(made @ head[:, :-1].T + head[:, -1], y)
            loss = loss + 0.5 * torch.exp(-same / 16**2)
            optim.zero_grad()
            loss.backward()
            optim.step()
        y = torch.tensor(np.repeat(np.flatnonzero(labels), 4))
        noise = torch.tensor(rng.normal(size=(len(y), 3)).astype(np.float32))
        lessons = (generator(noise, y).detach(), y)
    run.finished()
    state = run.server.method_state
    np.testing.assert_allclose(state.weights.values, mean.numpy().ravel(), atol=1e-4)
    np.testing.assert_allclose(state.generated.rows.reshape(-1, fleets.WIDTH), lessons[0].numpy(), atol=1e-4)


@pytest.mark.torch
def test_nets_that_differ_share_a_last_layer_and_what_the_generator_makes(pictures: Path) -> None:
    pytest.importorskip("torch")
    runs = {}
    for shares in ("weights", "head"):
        tables = fleets.tables(pictures, "fedgen", devices=4)
        tables["method"] = {"shares": shares, "generator_steps": 2}
        tables["fleet"] = [{"count": 2, "model": "mlp"}, {"count": 2, "model": "mlp-wide"}]
        runs[shares] = fleets.Run(settings.parse(tables, Path("test.toml")))
        sent = runs[shares].tap()
        runs[shares].finished()
    assert {each["device"] for each in runs["weights"].result.refused_devices} == {"device-02", "device-03"}
    assert 'method.shares = "head"' in runs["weights"].result.refused_devices[0]["remedy"]
    result = runs["head"].result
    assert result.completed
    assert not result.refused_devices
    assert {role for each in sent for role in getattr(each, "knowledge", {})} <= {"header", "others"}
    assert {role for each in sent for role in getattr(each, "down", {})} == {"header", "generated"}
    assert runs["head"].server.method_state.weights is None

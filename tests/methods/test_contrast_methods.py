"""MOON and FedClassAvg: what a device is asked, and whole runs against twins straight from the papers."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, rows_of, spec_of

from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import Features, Request, WriteWeights
from edge_sdk.methods.fedclassavg import Params
from edge_sdk.models.base import FitReport
from edge_sdk.objectives import HeadProximal, ModelContrast, Seen
from edge_sdk.protocol.knowledge import Weights
from edge_sim.config import settings
from edge_sim.fleet.fleet import Device

RATE = 0.1


# -- the worked numbers ---------------------------------------------------------------------------------------------


def test_the_worked_number_of_moon() -> None:
    z = np.array([[3, 4], [0, 2]], np.float32)
    near, away = np.array([[[4, 3], [1, 0]]], np.float32), np.array([[[0, 1], [0, 5]]], np.float32)
    term = ModelContrast(near=near, away=away, weight=5.0)
    assert term.value(Seen(features=z)) == pytest.approx(6.682053, abs=1e-5)


# -- what a device is asked -----------------------------------------------------------------------------------------


def asked(spec: Any, round_: int, down: dict[str, Any]) -> list[Request]:
    """The requests of one exchange of Moon(); features tell how often they were asked for before."""
    step, requests, answer = first_step(down, job(spec, round_)), [], None
    while True:
        try:
            request = step.send(answer)
        except StopIteration:
            return requests
        requests.append(request)
        answer = {
            "Features": np.full((2, 4, 3), sum(isinstance(r, Features) for r in requests), np.float32),
            "ReadWeights": Weights(values=np.zeros(5, np.float32), layout=bytes(16)),
            "Fit": FitReport(steps=2, loss=0.5),
            "Evaluate": {},
        }.get(type(request).__name__)


MEAN = {"weights": Weights(values=np.ones(5, np.float32), layout=bytes(16))}


def test_moon_looks_at_the_former_model_before_it_is_overwritten() -> None:
    spec = spec_of("moon", mu=2.0, temperature=0.3)
    requests = asked(spec, 1, MEAN)
    names = [type(request).__name__ for request in requests]
    assert names == ["Features", "WriteWeights", "Evaluate", "Features", "Fit", "ReadWeights", "Evaluate"]
    former, mean = (request for request in requests if isinstance(request, Features))
    np.testing.assert_array_equal(former.source.indices, mean.source.indices)
    fit = requests[4]
    np.testing.assert_array_equal(fit.source.indices, mean.source.indices)
    _, term = fit.objective
    assert (term.away[0, 0, 0], term.near[0, 0, 0], term.weight, term.temperature) == (1, 2, 2.0, 0.3)
    assert isinstance(requests[1], WriteWeights)


@pytest.mark.parametrize(
    ("round_", "down", "params"), [(0, {}, {}), (1, MEAN, {"mu": 0.0}), (1, MEAN, {"local_steps": 0}), (5, MEAN, {})]
)
def test_moon_asks_for_no_features_that_it_has_no_use_for(round_: int, down: dict, params: dict) -> None:
    requests = asked(spec_of("moon", **params), round_, down)
    assert not any(isinstance(request, Features) for request in requests)


def test_an_exchange_of_fedclassavg() -> None:
    spec = spec_of("fedclassavg", feature_dim=2, rho=0.5)
    device, header = FakeDevice(), rows_of([0, 1, 2], [[1, 2, 3]] * 3)
    device.run(first_step({"header": header}, job(spec, 1)))
    assert device.kinds == [
        "write head [0, 1, 2]", "fit private: cross-entropy + class-contrast + head-proximal", "read head", "evaluate 2"
    ]  # fmt: skip
    (pull,) = [term for term in device.requests[1].objective if isinstance(term, HeadProximal)]
    np.testing.assert_array_equal(pull.rows, header.rows)
    assert pull.weight == 0.5
    device.run(first_step({}, job(spec, 0)))
    assert device.kinds[0].startswith("fit private: ")
    assert [term.name for term in device.requests[0].objective] == ["cross-entropy", "class-contrast"]


def test_without_its_terms_fedclassavg_is_lg_fedavg() -> None:
    spec = spec_of("fedclassavg", feature_dim=2, rho=0.0, contrast=0.0)
    device = FakeDevice()
    device.run(
        method_of(spec).step(
            method_of(spec).device_state(), {"header": rows_of([0, 1, 2], [[1, 2, 3]] * 3)}, job(spec, 1)
        )
    )
    assert device.kinds[1] == "fit private: cross-entropy"
    assert Params().rho == 0.1


# -- whole runs -----------------------------------------------------------------------------------------------------


def made(pictures: Path, method: str, **params: Any) -> fleets.Run:
    tables = fleets.tables(pictures, method, devices=3, rounds=3, feature_dim=64)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE, "batch_size": 6}
    tables["method"] = params
    tables["fleet"] = [{"count": 3, "model": "mlp"}]
    return fleets.Run(settings.parse(tables, Path("test.toml")))


def batches(run: fleets.Run, device: Device, round_: int) -> list[tuple[Any, Any]]:
    torch = pytest.importorskip("torch")
    spec = run.fleet.federation.spec
    drawn = Job(
        spec=spec,
        number=device.kit.number,
        round=round_,
        exchange=0,
        closing=False,
        samples=len(device.data.train),
        learns=True,
    ).private_batches(3)
    x = torch.tensor(device.kit.model(None).spec.preprocess(device.data.train.x).astype(np.float64))
    y = torch.tensor(device.data.train.y)
    return [(x[each], y[each]) for each in drawn.indices]


def flat(net: Any) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])


@pytest.mark.torch
def test_moon_is_its_naive_twin(pictures: Path) -> None:
    """Three nets a device, at each step: its own, the mean, and the former one."""
    torch = pytest.importorskip("torch")
    run = made(pictures, "moon", mu=3.0, start="equal")
    devices = run.fleet.devices
    former: list[Any] = [device.kit.model(None).net.double() for device in devices]
    mean, counts = deepcopy(former[0]), [len(device.data.train) for device in devices]
    cosine = torch.nn.CosineSimilarity(dim=-1)
    for round_ in range(3):
        trained = []
        for device, old in zip(devices, former, strict=True):
            net = deepcopy(mean)
            optim = torch.optim.SGD(net.parameters(), lr=RATE)
            for x, y in batches(run, device, round_):
                z = net[:-1](x)
                loss = torch.nn.functional.cross_entropy(net[-1](z), y)
                if round_:
                    likeness = torch.stack([cosine(z, each[:-1](x).detach()) for each in (mean, old)], dim=1) / 0.5
                    loss = loss + 3.0 * torch.nn.functional.cross_entropy(likeness, torch.zeros(len(x)).long())
                optim.zero_grad()
                loss.backward()
                optim.step()
            trained.append(net)
        former = trained
        mean = deepcopy(mean)
        with torch.no_grad():
            for place, parameter in enumerate(mean.parameters()):
                parts = [list(net.parameters())[place] * n for net, n in zip(trained, counts, strict=True)]
                parameter.copy_(sum(parts) / sum(counts))
    run.finished()
    np.testing.assert_allclose(run.server.method_state.weights.values, flat(mean), atol=2e-5)
    plain = made(pictures, "moon", mu=0.0, start="equal").finished()
    assert np.abs(plain.server.method_state.weights.values - flat(mean)).max() > 1e-3  # the term means something


@pytest.mark.torch
def test_fedclassavg_is_its_naive_twin(pictures: Path) -> None:
    torch = pytest.importorskip("torch")
    run = made(pictures, "fedclassavg", rho=2.0, temperature=0.5, weighting="samples")
    devices = run.fleet.devices
    nets = [device.kit.model(None).net.double() for device in devices]
    optims = [torch.optim.SGD(net.parameters(), lr=RATE) for net in nets]
    counts = [len(device.data.train) for device in devices]
    anchor: list[Any] | None = None
    for round_ in range(3):
        for device, net, optim in zip(devices, nets, optims, strict=True):
            head = net[-1]
            if anchor is not None:
                with torch.no_grad():
                    head.weight.copy_(anchor[0])
                    head.bias.copy_(anchor[1])
            for x, y in batches(run, device, round_):
                z = net[:-1](x)
                loss = torch.nn.functional.cross_entropy(head(z), y) + contrast(torch, z, y, 0.5)
                if anchor is not None:
                    gaps = [(now - then).square().sum() for now, then in zip(head.parameters(), anchor, strict=True)]
                    loss = loss + 2.0 / 2 * sum(gaps)
                optim.zero_grad()
                loss.backward()
                optim.step()
        heads = [[p.detach().clone() for p in net[-1].parameters()] for net in nets]
        anchor = [
            sum(n * part for n, part in zip(counts, parts, strict=True)) / sum(counts)
            for parts in zip(*heads, strict=True)
        ]
    run.finished()
    for virtual, net in zip(run.devices, nets, strict=True):
        np.testing.assert_allclose(virtual.agent.bench.model.weights(), flat(net), atol=2e-5)


def contrast(torch: Any, z: Any, y: Any, temperature: float) -> Any:
    """Sample by sample, as Khosla et al. write it."""
    unit = torch.nn.functional.normalize(z, dim=1)
    total = torch.zeros((), dtype=z.dtype)
    for i in range(len(y)):
        others = [a for a in range(len(y)) if a != i]
        partners = [p for p in others if y[p] == y[i]]
        likeness = {a: unit[i] @ unit[a] / temperature for a in others}
        spread = torch.logsumexp(torch.stack(list(likeness.values())), dim=0)
        total = total + sum(spread - likeness[p] for p in partners) / max(1, len(partners))
    return total / len(y)

"""FML: the two losses, and whole runs against a twin in plain autograd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sdk.methods.fml import Mutual
from edge_sdk.objectives import Seen, logit_gradient, objective_loss
from edge_sdk.protocol.messages import Hello
from edge_sim.config import settings
from edge_sim.fleet import feasible
from edge_sim.fleet import fleet as sim_fleet

RATE = 0.1
F, G, Y = np.array([[2, 0]], np.float32), np.array([[0, 1]], np.float32), np.array([0])


def made(pictures: Path, rows: list[dict[str, Any]] | None = None, **params: Any) -> settings.Config:
    tables = fleets.tables(pictures, "fml", devices=4, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = {"proxy": "softmax", "start": "equal", **params}
    tables["fleet"] = rows or tables["fleet"]
    return settings.parse(tables, Path("test.toml"))


def test_the_worked_number() -> None:
    own, proxy = Seen(F, Y), Seen(G, Y)
    for_own, for_proxy = Mutual(alpha=0.5, beta=0.5).objectives(own, proxy)
    assert objective_loss(for_own, own) == pytest.approx(0.566885, abs=1e-6)
    assert objective_loss(for_proxy, proxy) == pytest.approx(1.070993, abs=1e-6)
    np.testing.assert_allclose(logit_gradient(for_own, own), [[0.246326, -0.246326]], atol=1e-6)
    np.testing.assert_allclose(logit_gradient(for_proxy, proxy), [[-0.671457, 0.671457]], atol=1e-6)


@pytest.mark.parametrize(("share", "terms"), [(1.0, ["cross-entropy"]), (0.0, ["distill"])])
def test_what_has_no_weight_is_no_term(share: float, terms: list[str]) -> None:
    for objective in Mutual(alpha=share, beta=share).objectives(Seen(F, Y), Seen(G, Y)):
        assert [term.name for term in objective] == terms


@pytest.mark.torch
def test_a_run_is_its_naive_twin(pictures: Path) -> None:
    """Own models of two architectures, and a third one as the proxy."""
    torch = pytest.importorskip("torch")
    rows = [{"count": 2, "model": "mlp"}, {"count": 2, "model": "mlp-wide"}]
    run = fleets.Run(made(pictures, rows, proxy="mlp", alpha=0.7, beta=0.4))
    devices = run.fleet.devices
    own = [device.kit.model(None).net.double() for device in devices]
    proxies = [device.kit.proxy_model(None).net.double() for device in devices]
    begun = [_flat(net) for net in proxies]
    assert all(np.array_equal(begun[0], each) for each in begun)
    shared = begun[0]
    ce, kl, log = torch.nn.functional.cross_entropy, torch.nn.KLDivLoss(reduction="batchmean"), torch.log_softmax
    for round_ in range(3):
        trained = []
        for device, f, g in zip(devices, own, proxies, strict=True):
            torch.nn.utils.vector_to_parameters(torch.tensor(shared), g.parameters())
            optims = [torch.optim.SGD(net.parameters(), lr=RATE) for net in (f, g)]
            x = torch.tensor(device.kit.model(None).spec.preprocess(device.data.train.x)).double()
            y = torch.tensor(device.data.train.y)
            for batch in fleets.private_batches(run, device, round_):
                a, b = f(x[batch]), g(x[batch])
                p, q = torch.softmax(a, 1).detach(), torch.softmax(b, 1).detach()
                losses = (
                    0.7 * ce(a, y[batch]) + 0.3 * kl(log(a, 1), q),
                    0.4 * ce(b, y[batch]) + 0.6 * kl(log(b, 1), p),
                )
                for loss, optim in zip(losses, optims, strict=True):
                    optim.zero_grad()
                    loss.backward()
                    optim.step()
            trained.append(_flat(g))
        shared = np.average(trained, axis=0, weights=[len(device.data.train) for device in devices])
    run.finished()
    np.testing.assert_allclose(run.server.method_state.weights.values, shared, atol=1e-5)
    for virtual, f in zip(run.devices, own, strict=True):
        np.testing.assert_allclose(virtual.participant.context.bench.model.weights(), _flat(f), atol=1e-5)
        np.testing.assert_allclose(virtual.participant.context.bench.proxy.model.weights(), shared, atol=1e-5)
    assert np.abs(shared - begun[0]).max() > 0.02  # the tolerance means something


def test_both_models_are_measured(pictures: Path) -> None:
    """The proxies are one global model, the own models are personal; devices that were not asked count, too."""
    config = made(pictures)
    tables = {**config.tables, "federation": {**config.tables["federation"], "participants": 2}}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    last = run.result.history[-1]
    assert len(set(last.global_accuracy.values())) == 1
    assert len(last.accuracy) == len(last.global_accuracy) == 4
    assert run.result.gm_of(last.global_accuracy) is not None


def _flat(net: Any) -> np.ndarray:
    return np.concatenate([each.detach().numpy().ravel() for each in net.parameters()])


def test_models_of_any_layout_share_a_proxy_and_no_own_weight_travels(pictures: Path) -> None:
    rows = [{"count": 2, "model": "softmax"}, {"count": 2, "model": "softmax", "size": [3, 3]}]
    run = fleets.Run(made(pictures, rows))
    sent = run.tap()
    run.finished()
    hellos = {message.device: message for message in sent if isinstance(message, Hello)}
    assert {hello.weight_count for hello in hellos.values()} == {4 * 17, 4 * 10}
    assert all("proxy" in hello.capabilities and "weights" not in hello.capabilities for hello in hellos.values())
    for virtual in run.devices:
        bench = virtual.participant.context.bench
        assert hellos[virtual.device.kit.id].layout == bench.proxy.model.spec.layout
    refused = {each["device"]: each for each in run.result.refused_devices}  # its pictures are smaller: another proxy
    assert {each["reason"] for each in refused.values()} == {"layout"}
    assert "its proxy" in next(iter(refused.values()))["message"]


def test_a_device_without_a_proxy_is_refused_before_training(pictures: Path) -> None:
    run = fleets.Run(made(pictures))
    virtual = run.devices[1]
    virtual.participant.context.bench.proxy = None
    virtual.participant.context.shares_weights = False
    run.finished()
    (refused,) = run.result.refused_devices
    assert (refused["device"], refused["reason"]) == ("device-01", "capability")
    assert "proxy" in refused["message"]
    assert "App(proxy=...)" in refused["remedy"]


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("mpl", "method.proxy: no model family 'mpl'"),
        ("onnx-random", "method.proxy: the models of onnx-random share no weights"),
        ("two words", "method.proxy: expected a model family"),
    ],
)
def test_a_family_that_is_no_proxy_is_one_line(pictures: Path, family: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        sim_fleet.build_fleet(made(pictures, proxy=family))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_factory_that_fails_is_one_line_that_names_it(pictures: Path) -> None:
    with pytest.raises(UsageError) as caught:
        feasible.check_feasible(sim_fleet.build_fleet(made(pictures, proxy="numpy:zeros")))
    assert "numpy:zeros" in str(caught.value)


def test_memory_and_time_count_both_models(pictures: Path) -> None:
    fleet = sim_fleet.build_fleet(made(pictures))
    device, federation = fleet.devices[0], fleet.federation.spec
    own, proxy = device.kit.model(None).spec, device.kit.proxy_model(None).spec
    alone, both = (feasible.memory_need(device, own, federation, each) for each in (None, proxy))
    assert both.model - alone.model == 4 * 68 * 3  # weights, gradients and saved weights; both send 68
    assert feasible.least_s(device, own, federation, proxy) > feasible.least_s(device, own, federation)


def test_effort_of_both_models_is_counted(pictures: Path) -> None:
    run = fleets.Run(made(pictures)).finished()
    flops = run.devices[0].device.kit.model(None).spec.flops_per_sample
    assert (
        run.devices[0].participant.context.bench.meter.train_flops == 2 * 3 * flops * 3 * 3 * 8
    )  # models, passes, rounds, steps, samples

"""FedKD: its losses, its compressed updates, and whole runs against a twin in plain autograd."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import job, spec_of

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.base import OnDevice
from edge_sdk.methods.fedkd import _STREAM, Adaptive, DeviceState, Params, compressed, energy, received_base
from edge_sdk.objectives import Seen, logit_gradient, objective_loss
from edge_sdk.protocol.low_rank import LowRank, expanded, rank_of
from edge_sdk.protocol.messages import Assign, Upload
from edge_sdk.transport.memory.hub import Faults
from edge_sim.config import settings
from edge_sim.fleet import fleet as sim_fleet

RATE = 0.1
F, G, Y = np.array([[2, 0]], np.float32), np.array([[0, 1]], np.float32), np.array([0])


def made(pictures: Path, rows: list[dict[str, Any]] | None = None, rounds: int = 3, **params: Any) -> settings.Config:
    tables = fleets.tables(pictures, "fedkd", devices=4, rounds=rounds, feature_dim=0)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = {"proxy": "softmax", "start": "equal", **params}
    tables["fleet"] = rows or tables["fleet"]
    return settings.parse(tables, Path("test.toml"))


# -- the losses -----------------------------------------------------------------------------------------------------


def test_the_worked_number() -> None:
    own, proxy = Seen(F, Y), Seen(G, Y)
    for_own, for_proxy = Adaptive(match=False, rate=0.0).objectives(own, proxy)
    (distill,) = for_own[1:]
    assert 1 / distill.weight == pytest.approx(1.440190, abs=1e-6)
    np.testing.assert_allclose(logit_gradient(for_own, own), [[0.305641, -0.305641]], atol=1e-6)
    np.testing.assert_allclose(logit_gradient(for_proxy, proxy), [[-1.155902, 1.155902]], atol=1e-6)


def test_the_projection_descends_on_the_match_in_both_losses() -> None:
    """Against differences of the two losses, S a constant."""
    rng = np.random.default_rng(0)
    own = Seen(rng.normal(size=(5, 2)), np.array([0, 1, 0, 1, 1]), features=rng.normal(size=(5, 3)))
    proxy = replace(own, logits=rng.normal(size=(5, 2)), features=rng.normal(size=(5, 4)))
    begun = Adaptive(match=True, rate=1.0, projection=rng.normal(size=(3, 4)))

    def both(projection: np.ndarray) -> float:
        losses = replace(begun, projection=projection).objectives(own, proxy)
        return objective_loss(losses[0], own) + objective_loss(losses[1], proxy)

    moved = begun.after(own, proxy).projection - begun.projection
    for at in np.ndindex(3, 4):
        step = np.zeros((3, 4))
        step[at] = 1e-5
        slope = (both(begun.projection + step) - both(begun.projection - step)) / 2e-5
        assert moved[at] == pytest.approx(-slope, abs=1e-5)


# -- the updates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "rank", "product"), [(0.85, 1, [[1.5, 1.5], [1.5, 1.5]]), (0.95, 2, [[2, 1], [1, 2]])]
)
def test_the_worked_matrix(share: float, rank: int, product: list[list[float]]) -> None:
    matrix = np.array([[2.0, 1], [1, 2]])
    u, s, v = np.linalg.svd(matrix)
    assert rank_of(s, share) == rank
    np.testing.assert_allclose((u[:, :rank] * s[:rank]) @ v[:rank], product, atol=1e-9)


def test_the_share_of_energy_moves_evenly() -> None:
    spec = spec_of("fedkd", rounds=10)
    found = [energy(Params(), spec, round_) for round_ in (0, 4, 9)]
    np.testing.assert_allclose(found, [0.953, 0.965, 0.98])


# -- whole runs -----------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize("match", [True, False])
def test_a_run_is_its_naive_twin(pictures: Path, match: bool) -> None:
    torch = pytest.importorskip("torch")
    rows = [{"count": 2, "model": "mlp"}, {"count": 2, "model": "mlp-wide"}]
    given = {"energy_start": 0.5, "energy_end": 0.8, "match_rate": 0.2, "proxy_rate": 0.05, "match_features": match}
    run = fleets.Run(made(pictures, rows, proxy="mlp", **given))
    twins = [Twin(torch, device, run, match=match) for device in run.fleet.devices]
    shared = [each.detach().numpy().copy() for each in twins[0].proxy.parameters()]
    for round_ in range(3):
        share = 0.5 + 0.3 * (round_ + 1) / 3
        after = [twin.trained(shared, round_) for twin in twins]
        if round_ == 0:
            shared = [np.mean(each, axis=0) for each in zip(*after, strict=True)]
            continue
        changes = [[cut_down(t - s, share) for t, s in zip(each, shared, strict=True)] for each in after]
        means = [np.mean(each, axis=0) for each in zip(*changes, strict=True)]
        shared = [s + cut_down(m, share) for s, m in zip(shared, means, strict=True)]
    run.finished()
    flat = np.concatenate([each.ravel() for each in shared])
    np.testing.assert_allclose(run.server.method_state.weights.values, flat, atol=2e-5)
    for virtual, twin in zip(run.devices, twins, strict=True):
        weights = np.concatenate([each.detach().numpy().ravel() for each in twin.own.parameters()])
        np.testing.assert_allclose(virtual.agent.bench.model.weights(), weights, atol=2e-5)
        kept = virtual.agent._learner.state.projection
        assert (kept is None) != match
        if match:
            np.testing.assert_allclose(kept, twin.w, atol=2e-5)


class Twin:
    """One device in plain autograd, in f8."""

    def __init__(self, torch: Any, device: sim_fleet.Device, run: fleets.Run, *, match: bool) -> None:
        self.torch, self.device, self.run, self.match = torch, device, run, match
        self.own, self.proxy = device.kit.model(None).net.double(), device.kit.proxy_model(None).net.double()
        self.x = torch.tensor(device.kit.model(None).spec.preprocess(device.data.train.x)).double()
        self.y = torch.tensor(device.data.train.y)
        wide = self.own[-1].in_features, self.proxy[-1].in_features
        drawn = np.random.default_rng([run.fleet.federation.spec.seed, _STREAM, device.kit.number])
        start = drawn.uniform(-(wide[1] ** -0.5), wide[1] ** -0.5, wide).astype(np.float32)
        self.w = torch.tensor(start).double()

    def trained(self, shared: list[np.ndarray], round_: int) -> list[np.ndarray]:
        """The proxy's arrays after a round."""
        torch = self.torch
        for value, parameter in zip(shared, self.proxy.parameters(), strict=True):
            parameter.data = torch.tensor(value)
        for batch in fleets.private_batches(self.run, self.device, round_):
            w = self.w.clone().requires_grad_()
            losses = self.losses(self.x[batch], self.y[batch], w)
            slopes = [
                torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
                for loss, net in zip(losses, (self.own, self.proxy), strict=True)
            ]
            if self.match:
                (slope,) = torch.autograd.grad(losses[0] + losses[1], [w])
                self.w = (w - 0.2 * slope).detach()
            for net, found, rate in zip((self.own, self.proxy), slopes, (RATE, 0.05), strict=True):
                for parameter, each in zip(net.parameters(), found, strict=True):
                    parameter.data -= rate * each
        return [each.detach().numpy().copy() for each in self.proxy.parameters()]

    def losses(self, x: Any, y: Any, w: Any) -> list[Any]:
        """Those of the own model and of the proxy on one mini-batch."""
        nn, torch = self.torch.nn.functional, self.torch
        hf, hg = self.own[:-1](x), self.proxy[:-1](x)
        a, b = self.own[-1](hf), self.proxy[-1](hg)
        ce = nn.cross_entropy(a, y), nn.cross_entropy(b, y)
        doubt = (ce[0] + ce[1]).detach()
        kl = [
            nn.kl_div(torch.log_softmax(mine, 1), torch.softmax(other, 1).detach(), reduction="batchmean")
            for mine, other in ((a, b), (b, a))
        ]
        found = [ce[0] + kl[0] / doubt, ce[1] + kl[1] / doubt]
        if self.match:
            found[0] = found[0] + nn.mse_loss(hf, hg.detach() @ w.T) / doubt
            found[1] = found[1] + nn.mse_loss(hf.detach(), hg @ w.T) / doubt
        return found


def cut_down(array: np.ndarray, share: float) -> np.ndarray:
    """A matrix of the fewest singular values with this share of the energy, where that takes fewer numbers."""
    if array.ndim < 2:
        return array
    u, s, v = np.linalg.svd(array, full_matrices=False)
    n = next((n for n in range(1, len(s) + 1) if (s[:n] ** 2).sum() > share * (s**2).sum()), len(s))
    smaller = n * (sum(array.shape) + 1) < array.size
    return (u[:, :n] * s[:n]) @ v[:n] if smaller else array


def test_updates_take_fewer_bytes_than_the_proxy(pictures: Path) -> None:
    run = fleets.Run(made(pictures, energy_start=0.3, energy_end=0.3))
    sent = run.tap()
    run.finished()
    changes = {(up.device, up.round): up.knowledge["change"] for up in sent if isinstance(up, Upload) and up.knowledge}
    assert {int(each.ranks[0]) for (_, round_), each in changes.items() if round_ == 0} == {0}  # whole proxies
    later = [each for (_, round_), each in changes.items() if round_]
    assert all(each.values.size < 4 * 17 for each in later)
    assert all(int(each.ranks[0]) >= 1 for each in later)


def whole(sent: list[Any], device: str) -> list[int]:
    """The rounds in which a device was sent the whole proxy."""
    return sorted({m.round for m in sent if isinstance(m, Assign) and m.device == device and "weights" in m.personal})


def test_a_device_that_missed_a_round_is_sent_the_whole_proxy(pictures: Path) -> None:
    tables = made(pictures, rounds=30).tables
    tables["federation"] |= {"quorum": 3, "deadline_s": 0.1}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    run.power_cut("device-03", 0.1, 0.15)  # longer than a round waits
    sent = run.tap()
    run.finished()
    assert run.result.completed
    assert whole(sent, "device-00") == [1]
    assert len(whole(sent, "device-03")) > 1
    for virtual in run.devices:  # all end with the proxy that the coordinator has
        proxy = virtual.agent.bench.proxy.model.weights()
        np.testing.assert_array_equal(proxy, run.server.method_state.weights.values)


@pytest.mark.parametrize("encoding", ["f32", "f16"])
def test_lost_frames_change_no_bit_and_devices_and_coordinator_agree(pictures: Path, encoding: str) -> None:
    tables = made(pictures, rounds=5).tables
    tables["encoding"] = {"low_rank": encoding}
    clean = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    faults = Faults(drop=0.1, duplicate=0.1, delay=0.3, delay_s=3.0)
    other = fleets.Run(settings.parse(tables, Path("test.toml")), faults=faults).finished()
    assert clean.model_bytes == other.model_bytes
    assert clean.coordinator_bytes == other.coordinator_bytes
    proxy = clean.devices[0].agent.bench.proxy.model.weights()
    np.testing.assert_array_equal(proxy, clean.server.method_state.weights.values)


def test_an_update_of_weights_that_are_not_here_is_refused() -> None:
    update = compressed(np.ones(6), [(2, 3)], 0.9, bytes(16))
    for state in (DeviceState(), DeviceState(round=1, base=np.zeros(6, np.float32))):
        device = OnDevice(job=job(spec_of("fedkd"), 3), state=state, down={"update": update})
        with pytest.raises(RemoteProtocolError, match="this device lacks"):
            received_base(device)
    device = replace(device, state=DeviceState(round=2, base=np.zeros(6, np.float32)))
    np.testing.assert_allclose(received_base(device), expanded(update), atol=1e-6)


def test_models_without_features_are_refused_where_features_are_matched(pictures: Path) -> None:
    run = fleets.Run(made(pictures))
    proxy = run.devices[1].agent.bench.proxy.model
    proxy.spec = replace(proxy.spec, capabilities=proxy.spec.capabilities - {"features"})
    run.finished()
    (refused,) = run.result.refused_devices
    assert (refused["device"], refused["reason"]) == ("device-01", "capability")
    assert "features" in refused["message"]


def test_it_runs_without_matching(pictures: Path) -> None:
    run = fleets.Run(made(pictures, match_features=False)).finished()
    assert run.result.completed
    assert {virtual.agent._learner.state.projection for virtual in run.devices} == {None}
    assert isinstance(run.server.method_state.update, LowRank)

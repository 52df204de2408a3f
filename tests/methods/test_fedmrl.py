"""FedMRL: the two losses and P, and whole runs against a twin in plain autograd."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sdk.methods.fedmrl import Splicing
from edge_sdk.models.base import serving_copy
from edge_sdk.objectives import Seen, feature_gradient, objective_loss
from edge_sdk.protocol.messages import Upload
from edge_sim.config import settings
from edge_sim.fleet import feasible
from edge_sim.fleet import fleet as sim_fleet

RATE = 0.1
SOFTMAX = [{"count": 4, "model": "softmax"}]
NETS = [{"count": 2, "model": "mlp"}, {"count": 2, "model": "mlp-wide"}]


def made(pictures: Path, rows: list[dict[str, Any]] = NETS, **params: Any) -> settings.Config:
    tables = fleets.tables(pictures, "fedmrl", devices=4, rounds=2)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = {"proxy": "mlp", "proxy_features": 8, "start": "equal", **params}
    tables["fleet"] = rows
    return settings.parse(tables, Path("test.toml"))


def test_the_worked_number() -> None:
    """docs/reference/methods/fedmrl.md."""
    own = Seen(labels=np.array([0]), features=np.array([[1, 0]], np.float32), head=lambda r: r)
    proxy = Seen(labels=own.labels, features=np.array([[2]], np.float32), head=lambda r: np.hstack([r, 0 * r]))
    P = np.array([[1, 1, 0, 0], [0, 1, 1, 0]], np.float32)
    splicing = Splicing(rate=1.0, projector=P)
    of_own, of_proxy = splicing.objectives(own, proxy)
    assert objective_loss(of_own[:1], own) == pytest.approx(0.126928, abs=1e-6)  # r = (3, 1)
    assert objective_loss(of_proxy[:1], proxy) == pytest.approx(0.048587, abs=1e-6)
    np.testing.assert_allclose(feature_gradient(of_own, own, own.features), [[-0.047426, 0.119203]], atol=1e-6)
    np.testing.assert_allclose(feature_gradient(of_proxy, proxy, proxy.features), [[-0.166629]], atol=1e-6)
    after = splicing.after(own, proxy).projector
    np.testing.assert_allclose(
        after, [[1.333258, 1.166629, 0, 0.166629], [-0.238406, 0.880797, 1, -0.119203]], atol=1e-6
    )


@pytest.mark.torch
@pytest.mark.parametrize("begins", ["random", "own"])
def test_a_run_is_its_naive_twin(pictures: Path, begins: str) -> None:
    """The twin differentiates through both models and P at once; own models of two architectures."""
    torch, naive = pytest.importorskip("torch"), importlib.import_module("naive")
    run = fleets.Run(made(pictures, projector=begins))
    own = [naive.Naive(run, device) for device in run.fleet.devices]
    small = [naive.Naive(run, each.device, each.device.kit.proxy_model(None)) for each in own]
    begun = shared = small[0].weights
    projectors: list[Any] = []
    ce = torch.nn.functional.cross_entropy
    for each in own:
        d, d_1 = each.head.in_features, small[0].head.in_features
        rows = np.eye(d, d_1 + d + 1, d_1)
        if begins == "random":
            rng = np.random.default_rng((run.fleet.federation.spec.seed, 0x6D726C, each.device.kit.number))
            rows = rng.uniform(-((d_1 + d) ** -0.5), (d_1 + d) ** -0.5, rows.shape).astype(np.float32)
        projectors.append(naive.linear(rows))
    for round_ in range(2):
        trained = []
        for f, g, P in zip(own, small, projectors, strict=True):
            torch.nn.utils.vector_to_parameters(torch.tensor(shared), g.net.parameters())
            for batch in f.batches(round_):
                r = P(torch.cat([g.body(f.x[batch]), f.body(f.x[batch])], dim=1))
                loss = ce(f.head(r), f.y[batch]) + ce(g.head(r[:, : g.head.in_features]), f.y[batch])
                naive.step(loss, [*f.net.parameters(), *g.net.parameters(), *P.parameters()], RATE)
            trained.append(g.weights)
        shared = np.average(trained, axis=0, weights=[len(device.data.train) for device in run.fleet.devices])
    run.finished()
    np.testing.assert_allclose(run.server.method_state.weights.values, shared, atol=1e-5)
    for virtual, f, g, P in zip(run.devices, own, small, projectors, strict=True):
        bench = virtual.agent.participant.context.bench
        np.testing.assert_allclose(bench.model.weights(), f.weights, atol=1e-5)
        np.testing.assert_allclose(bench.spliced.rows, torch.cat([P.weight, P.bias[:, None]], 1).detach(), atol=1e-5)
        x = torch.tensor(bench.test).double()
        expected = f.head(P(torch.cat([g.body(x), f.body(x)], dim=1))).detach().numpy()
        np.testing.assert_allclose(bench.logits(bench.test), expected, atol=1e-4)
        right = (expected.argmax(axis=1) == bench.data.test.y).mean()
        assert run.result.history[-1].accuracy[virtual.device.kit.id] == pytest.approx(right)
    assert np.abs(shared - begun).max() > 0.02  # the tolerance means something


@pytest.mark.torch
def test_both_models_and_p_are_served_and_restored_as_one(pictures: Path) -> None:
    pytest.importorskip("torch")
    run = fleets.Run(made(pictures))
    bench = run.devices[2].agent.participant.context.bench
    alone, before, x = serving_copy(bench.predictor), bench.state_bytes(), bench.samples
    run.finished()
    both, after = serving_copy(bench.predictor), bench.state_bytes()
    logits = bench.logits(x)
    np.testing.assert_allclose(both.logits(x), logits, atol=1e-5)
    np.testing.assert_allclose(serving_copy(both).logits(x), logits, atol=1e-5)
    assert bench.state_bytes() == after  # the copy was made from the models themselves
    kept = both.state_bytes()
    both.load_state(alone.state_bytes())  # a model from before the first round
    bench.load_state(before)
    assert bench.spliced is None
    np.testing.assert_allclose(both.logits(x), bench.logits(x), atol=1e-6)
    assert both.state_bytes() == alone.state_bytes()
    both.load_state(kept)
    bench.load_state(after)
    np.testing.assert_array_equal(bench.logits(x), logits)
    np.testing.assert_allclose(both.logits(x), logits, atol=1e-5)


def test_any_runtime_takes_part_and_both_models_are_metered(pictures: Path) -> None:
    """A softmax model has no features to train; its last layer, and P, learn all the same."""
    run = fleets.Run(made(pictures, SOFTMAX, proxy="softmax", proxy_features=0)).finished()
    assert {"arrival_accuracy"} <= set(run.result.history[-1].instruments)
    assert np.mean(list(run.result.history[-1].accuracy.values())) > 0.5
    bench = run.devices[0].agent.participant.context.bench
    before = bench.meter.infer_flops
    bench.logits(bench.samples)
    assert bench.meter.infer_flops - before == 2 * bench.model.spec.flops_per_sample * len(bench.samples)


def test_neither_the_own_model_nor_p_travels(pictures: Path) -> None:
    run = fleets.Run(made(pictures, SOFTMAX, proxy="softmax", proxy_features=0))
    sent = run.tap()
    run.finished()
    uploads = [each for each in sent if isinstance(each, Upload) and each.knowledge]
    assert {tuple(each.knowledge) for each in uploads} == {("weights",)}
    bench = run.devices[0].agent.participant.context.bench
    assert {len(each.knowledge["weights"].values) for each in uploads} == {bench.proxy.model.spec.parameters}


@pytest.mark.torch
def test_a_proxy_with_more_features_than_the_own_model_is_one_line(pictures: Path) -> None:
    pytest.importorskip("torch")
    wide = made(pictures, proxy_features=32)
    with pytest.raises(UsageError) as caught:
        feasible.check_feasible(sim_fleet.build_fleet(wide))
    assert "method.proxy: device-00: the proxy mlp has 32 features" in str(caught.value)
    assert "give the proxy as many or fewer" in str(caught.value)
    with pytest.raises(UsageError, match=r"method\.proxy_features: the models of softmax"):
        sim_fleet.build_fleet(made(pictures, SOFTMAX, proxy="softmax"))


def test_it_has_no_control_group(pictures: Path) -> None:
    tables = made(pictures).tables
    tables["federation"] = {**tables["federation"], "control": 0.5}
    with pytest.raises(UsageError, match=r"federation\.control: fedmrl trains a device's two models as one"):
        sim_fleet.build_fleet(settings.parse(tables, Path("test.toml")))

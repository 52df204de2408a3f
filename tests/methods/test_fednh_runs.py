"""FedNH in whole runs: against plain torch, with bodies that stay at home, and who is let in."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import rows_of
from payload_bytes import payload_bytes
from test_fednh import literal

from coordinator.serving.devices import admission
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fednh import FedNH
from edge_sdk.protocol.messages import Assign, Upload
from edge_sim.config import settings


def config(pictures: Path, models: Sequence[str], **method: Any) -> settings.Config:
    tables = fleets.tables(pictures, "fednh", devices=len(models))
    tables["method"] = {"warm_rounds": 0, **method}
    tables["fleet"] = [{"count": 1, "model": model} for model in models]
    return settings.parse(tables, Path("test.toml"))


@pytest.mark.torch
def test_any_architecture_may_trade_prototypes_alone(pictures: Path) -> None:
    pytest.importorskip("torch")
    models = ["mlp", "cnn", "softmax"]
    run = fleets.Run(config(pictures, models, share_body=False))
    for device in run.devices:
        device.participant.context.shares_weights = False  # nobody lets weights leave
    sent = run.tap()
    run.finished()
    assert run.result.completed
    assert {role for message in sent for role in getattr(message, "knowledge", {})} == {"means"}
    prototypes = run.server.method_state.prototypes.rows
    for each in run.devices:
        rows = each.participant.context.bench.model.head_rows()
        scale = np.linalg.norm(rows[0])
        np.testing.assert_allclose(rows[:, :-1] / scale, prototypes, atol=1e-6)
        assert scale != pytest.approx(20, abs=1e-3)  # it was trained


def test_frozen_extractors_are_told_of_unless_all_have_the_same(pictures: Path) -> None:
    """And where they have, prototypes come to the features: everybody learns classes that it never saw."""
    run = fleets.Run(config(pictures, ["softmax"] * 3, share_body=False, rho=0.5)).finished()
    assert not run.result.warnings
    alone = fleets.Run(fleets.config(pictures, "local", devices=3)).finished()
    assert mean_accuracy(run) > mean_accuracy(alone) + 0.2


def mean_accuracy(run: fleets.Run) -> float:
    return float(np.mean([device.accuracy for device in run.result.devices]))


@pytest.mark.torch
def test_frozen_extractors_beside_others_are_told_of(pictures: Path) -> None:
    pytest.importorskip("torch")
    run = fleets.Run(config(pictures, ["mlp", "softmax", "mlp"], share_body=False)).finished()
    (told,) = [warning for warning in run.result.warnings if warning.startswith("W10")]
    assert re.match("W10: .*device-01 are frozen", told)


@pytest.mark.torch
def test_power_cuts_change_no_bit_where_bodies_stay_at_home(pictures: Path) -> None:
    """Each device's body and scale are the only ones there are."""
    pytest.importorskip("torch")
    clean, run = (fleets.Run(config(pictures, ["mlp", "softmax"], share_body=False)) for _ in range(2))
    end_s = clean.finished().clock.now_s
    run.power_cut("device-00", 0.4 * end_s, 0.1)
    run.power_cut("device-01", 0.6 * end_s, 0.1)
    run.finished()
    assert run.model_bytes == clean.model_bytes
    assert run.coordinator_bytes == clean.coordinator_bytes


@pytest.mark.torch
def test_prototypes_that_travel_in_eight_bits_are_directions_again(pictures: Path) -> None:
    pytest.importorskip("torch")
    tables = config(pictures, ["mlp"] * 2, train_scale=False).tables
    tables["encoding"] = {"class_rows": "int8-row"}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    assert run.result.completed
    assert run.result.updates["refused"] == 0
    prototypes = run.server.method_state.prototypes.rows
    for each in run.devices:
        rows = each.participant.context.bench.model.head_rows()[:, :-1]
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 20, atol=1e-4)
        np.testing.assert_allclose(rows / 20, prototypes, atol=0.01)


@pytest.mark.torch
@pytest.mark.parametrize("share_body", [True, False])
def test_what_a_round_costs(pictures: Path, share_body: bool) -> None:
    """methods.md G.2: P - K (d + 1) with the scale among P, and K (d + 2) of prototypes and means, each way."""
    pytest.importorskip("torch")
    tables = config(pictures, ["mlp"] * 2, share_body=share_body).tables
    tables["partition"] = {"kind": "iid"}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    sent = run.tap()
    run.finished()
    k, d = fleets.CLASSES, fleets.WIDTH
    spec = run.devices[0].participant.context.bench.model.spec
    body = spec.parameters - k * (d + 1) if share_body else 0
    ups = {m.round: m for m in sent if isinstance(m, Upload) and m.device == "device-00"}
    downs = {m.round: m for m in sent if isinstance(m, Assign) and m.device == "device-00"}
    assert [of(ups[r].knowledge) for r in range(4)] == [body + k * (d + 2)] * 3 + [0]
    assert [of(downs[r].down) for r in range(4)] == [k * (d + 2)] + [body + k * (d + 2)] * 3


def of(knowledge: Mapping[str, Any]) -> int:
    """Scalars in what travels."""
    return sum(map(payload_bytes, knowledge.values())) // 4


@pytest.mark.torch
def test_bodies_need_one_architecture(pictures: Path) -> None:
    pytest.importorskip("torch")
    tables = config(pictures, ["mlp", "mlp", "cnn"]).tables
    tables["federation"] |= {"quorum": 2, "join_grace_s": 0.5}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    (refused,) = run.result.refused_devices
    assert refused["reason"] == "layout"


def test_a_model_with_a_plain_head_is_told_how_to_get_one(pictures: Path) -> None:
    hello = fleets.Run(fleets.built(pictures, "local")).hello(0)
    assert "head-rows" in hello.capabilities
    spec = fleets.Run(config(pictures, ["softmax", "softmax"])).fleet.federation.spec
    turned = admission.refusal(hello, spec, FedNH(), ())
    assert turned is not None
    assert turned.reason == "capability"
    assert "fednh needs cosine-head, " in turned.message
    assert 'build it with head="cosine"' in turned.remedy


RATE = 0.1


class Twin:
    """One device in plain torch, in f8: a body, a scale, its samples."""

    def __init__(self, run: fleets.Run, device: Any, *, train_scale: bool) -> None:
        import torch  # only where it is installed

        self.torch, self.run, self.number = torch, run, device.kit.number
        self.body = device.kit.model(None).net.double()
        self.body[-1][-1] = torch.nn.Identity()  # mlp: Sequential(..., Sequential(hidden layer, ReLU, head))
        self.scale = torch.tensor(20.0, dtype=torch.float64, requires_grad=train_scale)
        preprocess = device.kit.model(None).spec.preprocess
        self.x = torch.tensor(preprocess(device.data.train.x)).double()
        self.y = torch.tensor(device.data.train.y)

    @property
    def shared(self) -> list[Any]:
        return [*self.body.parameters(), self.scale]

    def unit(self, x: Any) -> Any:
        return self.torch.nn.functional.normalize(self.body(x))

    def train(self, round_: int, prototypes: np.ndarray) -> Any:
        """A round; its class means."""
        torch, weights = self.torch, [each for each in self.shared if each.requires_grad]
        spec = self.run.fleet.federation.spec
        job = Job(
            spec=spec, number=self.number, round=round_, exchange=0, closing=False, samples=len(self.x), learns=True
        )
        for batch in job.private_batches(spec.train.local_steps).indices:
            logits = self.scale * self.unit(self.x[batch]) @ torch.tensor(prototypes).T
            slopes = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, self.y[batch]), weights)
            with torch.no_grad():
                for weight, slope in zip(weights, slopes, strict=True):
                    weight.sub_(RATE * slope)
        held = self.y.unique().tolist()
        means = [self.unit(self.x[self.y == c]).mean(dim=0).tolist() for c in held]
        return rows_of(held, means, [int((self.y == c).sum()) for c in held])


@pytest.mark.torch
@pytest.mark.parametrize("train_scale", [True, False])
def test_a_whole_run_is_that_of_its_twin(pictures: Path, train_scale: bool) -> None:
    """Three rounds with everything in between, against a few loops."""
    torch = pytest.importorskip("torch")
    tables = config(pictures, ["mlp"] * 3, train_scale=train_scale, start="equal").tables
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    spec, twins = run.fleet.federation.spec, [Twin(run, d, train_scale=train_scale) for d in run.fleet.devices]
    prototypes = method_of(spec).begin(spec).prototypes.rows.astype(float)
    begun = np.concatenate([part.detach().numpy().ravel() for part in twins[0].shared]).copy()
    for round_ in range(spec.rounds):
        ups = [twin.train(round_, prototypes) for twin in twins]
        prototypes = literal(prototypes, ups, 0.9, "counts")
        with torch.no_grad():
            for same in zip(*(twin.shared for twin in twins), strict=True):
                mean = torch.stack(same).mean(dim=0)
                for part in same:
                    part.copy_(mean)
    run.finished()
    state = run.server.method_state
    np.testing.assert_allclose(state.prototypes.rows, prototypes, atol=1e-5)
    expected = np.concatenate([part.detach().numpy().ravel() for part in twins[0].shared])
    np.testing.assert_allclose(state.weights.values, expected, atol=1e-4)
    assert np.abs(expected[:-1] - begun[:-1]).max() > 0.02  # the tolerance means something
    assert (abs(expected[-1] - 20) > 1e-3) == train_scale


@pytest.mark.torch
def test_in_a_run_the_scale_follows_its_warm_rounds(pictures: Path) -> None:
    pytest.importorskip("torch")
    tables = config(pictures, ["mlp", "mlp"], scale=16.0, warm_rounds=4, train_scale=False).tables
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()  # three rounds and the closing exchange
    rows = [device.participant.context.bench.model.head_rows()[0] for device in run.devices]
    assert [np.linalg.norm(each) for each in rows] == pytest.approx([8.0, 8.0], rel=1e-5)

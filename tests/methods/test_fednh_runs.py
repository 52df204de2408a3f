"""FedNH in whole runs: against plain torch, with bodies that stay at home, and who is let in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import rows_of
from test_fednh import literal

from coordinator import admission
from coordinator.methods.fednh import METHOD
from edge_sdk.methods.base import Job
from edge_sdk.protocol.contracts.fednh import FEDNH
from edge_sim import config as configs


def config(pictures: Path, models: Sequence[str], **method: Any) -> configs.Config:
    tables = fleets.tables(pictures, "fednh", devices=len(models))
    tables["method"] = method
    tables["fleet"] = [{"count": 1, "model": model} for model in models]
    return configs.parse(tables, Path("test.toml"))


@pytest.mark.torch
def test_any_architecture_may_trade_prototypes_alone(pictures: Path) -> None:
    pytest.importorskip("torch")
    models = ["mlp", "cnn", "softmax"]
    run = fleets.Run(config(pictures, models, share_body=False))
    for device in run.devices:
        device.agent._shares_weights = False  # nobody lets weights leave
    sent = run.tap()
    run.finished()
    assert run.result.completed
    assert {role for message in sent for role in getattr(message, "knowledge", {})} == {"means"}
    prototypes = run.server.method_state.prototypes.rows
    for each in run.devices:
        rows = each.agent.bench.model.head_rows()
        scale = np.linalg.norm(rows[0])
        np.testing.assert_allclose(rows[:, :-1] / scale, prototypes, atol=1e-6)
        assert scale != pytest.approx(20, abs=1e-3)  # it was trained


@pytest.mark.torch
def test_bodies_need_one_architecture(pictures: Path) -> None:
    pytest.importorskip("torch")
    tables = config(pictures, ["mlp", "mlp", "cnn"]).tables
    tables["federation"] |= {"quorum": 2, "join_grace_s": 0.5}
    run = fleets.Run(configs.parse(tables, Path("test.toml"))).finished()
    (refused,) = run.result.refused_devices
    assert refused["reason"] == "layout"


def test_a_model_with_a_plain_head_is_told_how_to_get_one() -> None:
    class Hello:
        device, runtime, model = "cam", "torch", "mlp"
        capabilities = ("features", "head-rows", "logit-gradients", "predict", "weights")
        terms = ("cross-entropy",)

    turned = admission._abilities(Hello, FEDNH)
    assert turned is not None
    assert turned.message == "cam: fednh needs cosine-head, which its torch model mlp cannot do"
    assert 'build it with head="cosine"' in turned.remedy


RATE = 0.1


class Twin:
    """One device in plain torch, in f8: a body, a scale, its samples."""

    def __init__(self, run: fleets.Run, device: Any, *, train_scale: bool) -> None:
        import torch  # noqa: PLC0415  # only where it is installed

        self.torch, self.run, self.number = torch, run, device.kit.number
        self.body = device.kit.model(None)._net.double()
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
    run = fleets.Run(configs.parse(tables, Path("test.toml")))
    spec, twins = run.fleet.federation.spec, [Twin(run, d, train_scale=train_scale) for d in run.fleet.devices]
    prototypes = METHOD.init(spec).prototypes.rows.astype(float)
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

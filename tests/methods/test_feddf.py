"""FedDF: averages within an architecture, and what the coordinator then distils from all models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import spec_of

from coordinator.config import federation, read_settings
from coordinator.serving.equipment import Equipment, load_nets, ready_method
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.feddf import FedDF, State
from edge_sdk.models.base import Model
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import softmax
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.reductions import Contribution
from edge_sim.config import settings

CLASSES = 3
PUBLIC = PublicSet(np.random.default_rng(0).normal(size=(40, 2, 2)).astype(np.float32))
AT = ExchangeId(1, 0)


def net(side: int = 2, seed: int = 0) -> NumpyModel:
    return NumpyModel(CLASSES, (1, side, side), seed=seed)


def upload(model: Model, number: int, samples: int) -> Contribution:
    weights = Weights(values=model.weights(), layout=model.spec.layout, count=samples)
    return Contribution(number=number, samples=samples, knowledge={"weights": weights})


def finished(nets: list[Model], ups: list[Contribution], **params: Any) -> State:
    """nets: what the coordinator has at hand; none: it was given no equipment."""
    spec = spec_of("feddf", **params)
    method = ready_method(spec, Equipment(nets=lambda: nets, public=lambda: PUBLIC)) if nets else method_of(spec)
    bag = method.zero()
    for up in ups:
        bag = method.add(bag, up)
    layouts = {up.knowledge["weights"].layout.hex(): up.knowledge["weights"] for up in ups}
    return method.finish(spec, State(layouts), AT, bag)


def named(values: tuple[float, ...], layout: int, samples: int) -> Weights:
    return Weights(values=np.array(values, np.float32), layout=bytes([layout]) * 16, count=samples)


def test_the_worked_number() -> None:
    """Without a step it is the mean of each architecture: (1, 3) of 12 samples and (5, -1) of 8 give (2.6, 1.4)."""
    ups = [
        Contribution(number=i, samples=n, knowledge={"weights": named(w, a, n)})
        for i, (n, w, a) in enumerate([(12, (1, 3), 1), (8, (5, -1), 1), (1, (7,), 2)])
    ]
    state = finished([], ups, steps=0)
    np.testing.assert_allclose(state.models["01" * 16].values, [2.6, 1.4], rtol=1e-6)
    np.testing.assert_allclose(state.models["02" * 16].values, [7])
    assert FedDF().personal(state, ExchangeId(2, 0), 1)["weights"] is state.models["01" * 16]
    assert FedDF().personal(state, ExchangeId(2, 0), 9) == {}


def test_the_mean_of_logits_is_the_teacher() -> None:
    """Logits (2, 0) and (0, 4) give (.268941, .731059), not the mean of predictions (methods.md F.8)."""
    logits = np.array([[[2.0, 0.0]], [[0.0, 4.0]]], np.float32)
    np.testing.assert_allclose(softmax(logits.mean(axis=0)), [[0.268941, 0.731059]], atol=1e-6)
    np.testing.assert_allclose(softmax(logits).mean(axis=0), [[0.449392, 0.550608]], atol=1e-6)


def test_a_student_comes_to_agree_with_all_teachers() -> None:
    """The models are linear and have one architecture: the mean of weights is the student that agrees already, and stays."""
    models = [net(seed=seed) for seed in range(3)]
    state = finished([net()], [upload(model, i, 5) for i, model in enumerate(models)], steps=50)
    (learnt,) = state.models.values()
    np.testing.assert_allclose(learnt.values, np.mean([model.weights() for model in models], axis=0), atol=0.02)


def test_architectures_learn_from_each_other() -> None:
    """Features of one are twice those of the other, so that layouts differ only in name: what counts is agreement."""

    class Other(NumpyModel):
        def __init__(self, seed: int) -> None:
            super().__init__(CLASSES, (1, 2, 2), seed=seed)
            object.__setattr__(self.spec, "layout", b"another layout!!")

    one, two = net(seed=1), Other(seed=2)
    x = PUBLIC.samples[:, None]
    target = softmax((one.logits(x) + two.logits(x)) / 2)
    before = np.abs(softmax(two.logits(x)) - target).max()
    ups = [upload(one, 0, 5), upload(two, 1, 5)]
    state = finished([net(), Other(9)], ups, steps=300, distill_rate=0.01, distill_batch=20)
    for model in (net(), Other(3)):
        model.set_weights(state.models[model.spec.layout.hex()].values)
        assert np.abs(softmax(model.logits(x)) - target).max() < 0.1 * before


def test_an_architecture_without_a_net_is_named() -> None:
    with pytest.raises(UsageError, match=r"^federation\.nets: .*layout .*known: softmax"):
        finished([net(3)], [upload(net(), 0, 5)])
    with pytest.raises(UsageError, match="was given no models"):
        finished([], [upload(net(), 0, 5)])


def test_a_fleet_of_two_architectures_learns(pictures: Path) -> None:
    pytest.importorskip("torch")
    tables = fleets.tables(pictures, "feddf", devices=4, rounds=6)
    tables["fleet"] = [{"count": 2, "model": "softmax"}, {"count": 2, "model": "mlp"}]
    tables["method"] = {"steps": 40, "distill_rate": 0.01}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    assert run.result.completed
    assert len(run.server.method_state.models) == 2
    assert np.mean([device.accuracy for device in run.result.devices]) > 0.6


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (None, "federation.nets: missing"),
        ("no_such_module:make", "no module no_such_module"),
        ("math:factorial", "TypeError"),
        ("os:listdir", "expected a list of edge_sdk models"),
    ],
)
def test_a_factory_that_gives_no_nets_is_one_line(factory: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message) as found:
        load_nets(factory)
    assert "\n" not in str(found.value)


def test_it_asks_for_public_samples(tmp_path: Path) -> None:
    tables = {"federation": {"name": "lab", "method": "feddf", "rounds": 1, "devices": 1, "classes": 3}}
    with pytest.raises(UsageError, match=r"lab\.toml: feddf .*\[public\]"):
        federation(read_settings(tables, tmp_path / "lab.toml"))

"""FedGH: what each half does in a round, by hand, and whole runs against a twin in plain autograd."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, rows_of, spec_of

from edge_sdk.methods.contract import last_layer
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fedgh import _STREAM, FedGH
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.reductions import Contribution
from edge_sim.config import settings

RATE = 0.1
SPEC = spec_of("fedgh", feature_dim=2)
MEANS = rows_of([0, 2], [[1, 2], [3, 4]], [4, 5])


def reduced(spec: Any, *ups: ClassRows, state: Any = None) -> Any:
    method = method_of(spec)
    bag = method.zero()
    for number, rows in enumerate(ups):
        bag = method.add(bag, Contribution(number=number, samples=9, knowledge={"means": rows}))
    return method.finish(spec, method.begin(spec) if state is None else state, ExchangeId(0, 0), bag)


def test_the_worked_number() -> None:
    """docs/reference/methods/fedgh.md: one step of both items together."""
    layer, x = np.array([[1, 0, 0], [0, 1, 0]], np.float32), np.array([[1, 0], [0, 2]], np.float32)
    found = last_layer.trained_layer(
        layer, x, np.array([0, 1]), epochs=1, rate=1.0, batch=8, rng=np.random.default_rng(0)
    )
    np.testing.assert_allclose(found, [[1.134471, -0.119203, 0.074869], [-0.134471, 1.119203, -0.074869]], atol=1e-6)


def test_a_round_on_a_device() -> None:
    device = FakeDevice(means=MEANS)
    header = method_of(SPEC).begin(SPEC).header
    _, up = device.run(first_step({"header": header}, job(SPEC, 2)))
    assert device.kinds == ["write head [0, 1, 2]", "evaluate 2", "fit private: cross-entropy", "class means"]
    np.testing.assert_array_equal(device.requests[0].rows, header.rows)
    assert up == {"means": rows_of([0, 2], [[1, 2], [3, 4]], [1, 1])}  # no counts are told


def test_round_0_begins_with_one_drawn_layer_and_the_closing_exchange_brings_the_last() -> None:
    method = method_of(SPEC)
    state = method.begin(SPEC)
    assert method.common(state, ExchangeId(0, 0)) == {"header": method.begin(SPEC).header}
    after = reduced(SPEC, MEANS)
    assert method.common(after, ExchangeId(SPEC.rounds, 0)) == {"header": after.header}
    device = FakeDevice(means=MEANS)
    device.run(first_step({"header": after.header}, job(SPEC, SPEC.rounds)))
    assert device.kinds == ["write head [0, 1, 2]", f"evaluate {SPEC.rounds}"]


def test_means_are_items_and_are_not_averaged() -> None:
    """Two devices with opposite means of a class: an average of 0 would move the bias alone."""
    opposite = reduced(SPEC, rows_of([0], [[5, 5]]), rows_of([0], [[-5, -5]]))
    average = reduced(SPEC, rows_of([0], [[0, 0]]))
    begun = method_of(SPEC).begin(SPEC).header.rows
    assert np.abs(opposite.header.rows - begun)[:, :-1].max() > 1e-4
    np.testing.assert_array_equal((average.header.rows - begun)[:, :-1], 0)


def test_the_head_is_measured_before_and_after_its_training() -> None:
    spec = spec_of("fedgh", feature_dim=2, server_epochs=200, server_rate=0.5)
    method = method_of(spec)
    before, after = method.begin(spec), reduced(spec, MEANS)
    bag = method.add(method.zero(), Contribution(number=0, samples=9, knowledge={"means": MEANS}))
    found = method.instruments(spec, before, after, ExchangeId(0, 0), bag)
    assert set(found) == {"head_loss_before", "head_loss_after", "head_accuracy_before", "head_accuracy_after"}
    assert found["head_loss_after"] < 0.1 * found["head_loss_before"]
    assert found["head_accuracy_after"] == 1


@pytest.mark.torch
@pytest.mark.parametrize("params", [{}, {"server_epochs": 3, "server_rate": 0.5, "server_batch": 3}])
def test_a_run_is_its_naive_twin(pictures: Path, params: dict[str, Any]) -> None:
    """Own models of two architectures."""
    torch, naive = pytest.importorskip("torch"), importlib.import_module("naive")
    tables = fleets.tables(pictures, "fedgh", devices=4, rounds=3)
    tables["train"] |= {"optimiser": "sgd", "learning_rate": RATE}
    tables["method"] = params
    tables["fleet"] = [{"count": 2, "model": "mlp"}, {"count": 2, "model": "mlp-wide"}]
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    spec = run.fleet.federation.spec
    twins = [naive.Naive(run, device) for device in run.fleet.devices]
    begun = method_of(spec).begin(spec).header.rows
    head, ce = naive.linear(begun), torch.nn.functional.cross_entropy
    for round_ in range(3):
        items: list[tuple[Any, int]] = []
        for twin in twins:
            twin.head.load_state_dict(head.state_dict())
            for batch in twin.batches(round_):
                naive.step(ce(twin.net(twin.x[batch]), twin.y[batch]), twin.net.parameters(), RATE)
            items += [(mean, label) for label, mean in twin.means().items()]
        rows, labels = torch.stack([row for row, _ in items]), torch.tensor([label for _, label in items])
        rng = np.random.default_rng([spec.seed, _STREAM, round_])
        for _ in range(params.get("server_epochs", 1)):
            for part in torch.split(torch.tensor(rng.permutation(len(labels))), params.get("server_batch", 8)):
                naive.step(ce(head(rows[part]), labels[part]), head.parameters(), params.get("server_rate", 0.01))
    run.finished()
    expected = torch.cat([head.weight, head.bias[:, None]], dim=1).detach().numpy()
    np.testing.assert_allclose(run.server.method_state.header.rows, expected, atol=2e-6)
    for virtual, twin in zip(run.devices, twins, strict=True):
        twin.head.load_state_dict(head.state_dict())
        np.testing.assert_allclose(virtual.agent.participant.context.bench.model.weights(), twin.weights, atol=2e-6)
    assert np.abs(expected - begun).max() > 1e-3  # the tolerance means something


def test_both_measures_are_reported(pictures: Path) -> None:
    """Of the model under the head that arrives, which is the result, and of the trained one, as an instrument."""
    run = fleets.Run(fleets.config(pictures, "fedgh", devices=3)).finished()
    assert {entry.round for entry in run.result.history if entry.accuracy} == {1, 2, 3}
    assert "trained_accuracy" in {name for entry in run.result.history for name in entry.instruments}
    assert FedGH.personal_after == "arrival"

"""FedProto: what each half does in a round, by hand."""

from __future__ import annotations

from pathlib import Path

import fleets
import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, rows_of, spec_of
from payload_bytes import payload_bytes

from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.contract.requests import Fit
from edge_sdk.methods.fedproto import FedProto
from edge_sdk.objectives import PrototypePull
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ClassRows, PublicFeatures
from edge_sdk.protocol.messages import Upload
from edge_sdk.protocol.wires import expectation, frame_limits
from edge_sdk.reductions import Contribution
from edge_sim.config import settings

SPEC = spec_of("fedproto", feature_dim=2, mse_weight=0.5)
MEANS = rows_of([0, 2], [[1, 2], [3, 4]], [4, 5])
GLOBAL = rows_of([0, 1], [[1, 0], [0, 1]], [10, 20])


def exchange(round_: int, down: dict[str, ClassRows], spec=SPEC):
    device = FakeDevice(means=MEANS)
    _, up = device.run(first_step(down, job(spec, round_)))
    return device, up


def test_the_first_round_has_no_regulariser() -> None:
    device, up = exchange(0, {})
    assert device.kinds == ["fit private: cross-entropy", "class means"]
    assert up == {"prototypes": MEANS}


def test_later_rounds_measure_then_pull_then_share() -> None:
    device, up = exchange(1, {"prototypes": GLOBAL})
    assert device.kinds == ["evaluate 1 with prototypes", "fit private: cross-entropy + prototype-pull", "class means"]
    assert up == {"prototypes": MEANS}
    pull = device.requests[1].objective[1]
    assert isinstance(pull, PrototypePull)
    assert (pull.classes.tolist(), pull.rows.tolist(), pull.weight) == ([0, 1], [[1, 0], [0, 1]], 0.5)


def test_the_private_steps_are_those_of_local_training() -> None:
    device, _ = exchange(2, {"prototypes": GLOBAL})
    (fit,) = [request for request in device.requests if isinstance(request, Fit)]
    np.testing.assert_array_equal(fit.source.indices, job(SPEC, 2).private_batches(2).indices)


def test_without_weight_or_steps_there_is_no_pull() -> None:
    device, _ = exchange(2, {"prototypes": GLOBAL}, spec_of("fedproto", mse_weight=0, evaluate_every=3))
    assert device.kinds == ["fit private: cross-entropy", "class means"]
    device, _ = exchange(2, {"prototypes": GLOBAL}, spec_of("fedproto", local_steps=0, evaluate_every=2))
    assert device.kinds == ["evaluate 2 with prototypes", "class means"]


def test_closing_only_measures_with_the_last_prototypes() -> None:
    device, up = exchange(5, {"prototypes": GLOBAL})
    assert device.kinds == ["evaluate 5 with prototypes"]
    assert device.requests[0].prototypes is GLOBAL
    assert up == {}


def test_uniform_weighting_tells_no_counts() -> None:
    _, up = exchange(0, {}, spec_of("fedproto", weighting="uniform"))
    assert up["prototypes"] == rows_of([0, 2], [[1, 2], [3, 4]], [1, 1])


def reduced(*ups: ClassRows, state=None):
    state = method_of(SPEC).begin(SPEC) if state is None else state
    bag = FedProto().zero()
    for number, rows in enumerate(ups):
        bag = FedProto().add(bag, Contribution(number=number, samples=9, knowledge={"prototypes": rows}))
    return method_of(SPEC).finish(SPEC, state, ExchangeId(0, 0), bag)


def test_the_weighted_mean_by_hand() -> None:
    """n = (3, 1), C = (1, 0), (0, 1): (.75, .25), and plain means where every count is 1."""
    state = reduced(rows_of([1], [[1, 0]], [3]), rows_of([1], [[0, 1]], [1]))
    assert FedProto().common(state, ExchangeId(1, 0)) == {"prototypes": rows_of([1], [[0.75, 0.25]], [4])}
    assert reduced(rows_of([1], [[1, 0]]), rows_of([1], [[0, 1]])).prototypes.rows.tolist() == [[0.5, 0.5]]


def test_a_class_keeps_its_prototype_while_nobody_brings_it_and_a_late_one_comes_in() -> None:
    first = reduced(rows_of([0, 1], [[1, 1], [2, 2]], [4, 4]))
    assert FedProto().common(method_of(SPEC).begin(SPEC), ExchangeId(0, 0)) == {}
    second = reduced(rows_of([0, 2], [[3, 3], [9, 9]], [2, 7]), state=first)
    assert second.prototypes == rows_of([0, 1, 2], [[3, 3], [2, 2], [9, 9]], [2, 4, 7])


def test_bytes_are_those_of_the_table() -> None:
    """K = 10, d = 500: K (d + 1) numbers up, K d down, of 4 bytes; beside them 4 bytes of class id each, and the
    counts on the way down, which the kind always carries."""
    rows = ClassRows(
        classes=np.arange(10, dtype=np.int32), rows=np.ones((10, 500), np.float32), counts=np.ones(10, np.int32)
    )
    assert rows.rows.nbytes + rows.counts.nbytes == 20_040
    assert rows.rows.nbytes == 20_000
    assert payload_bytes(rows) == 20_040 + 40
    spec = spec_of("fedproto", classes=10, feature_dim=500)
    limits = frame_limits(FedProto().every_exchange, expectation(spec))
    assert limits.frame_bytes - frame_limits((), expectation(spec)).frame_bytes == payload_bytes(rows)


@pytest.mark.parametrize("table", [{"mse_weight": -1.0}, {"weighting": "mean"}, {"lambda": 1.0}])
def test_impossible_parameters_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"method.{next(iter(table))}"):
        FedProto.read(table)


def test_inference_by_prototypes_is_measured_among_own_classes_and_among_all(pictures: Path) -> None:
    """The paper's is among the device's own classes; what others compare with is among all."""
    run = fleets.Run(fleets.config(pictures, "fedproto", devices=4, rounds=2)).finished()
    prototypes = run.server.method_state.prototypes
    for virtual, found in zip(run.devices, run.result.devices, strict=True):
        bench = virtual.agent.participant.context.bench
        gaps = ((bench.features(bench.test)[:, None] - prototypes.rows[None]) ** 2).sum(-1)  # (t, k)
        truth, held = bench.data.test.y, np.array(bench.class_counts) > 0
        assert found.metrics["prototype_accuracy_all"] == pytest.approx((gaps.argmin(1) == truth).mean())
        among_own = np.where(held, gaps, np.inf).argmin(1)
        own = (among_own == truth)[held[truth]].mean()
        assert found.metrics["prototype_accuracy"] == pytest.approx(own)


# -- on public samples ----------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_features_of_public_samples_come_closer(pictures: Path) -> None:
    pytest.importorskip("torch")
    gaps = []
    for weight in (0.0, 20.0):
        tables = fleets.tables(pictures, "fedproto", devices=3, rounds=8)
        tables["method"] = {"over": "public", "public_batch": 16, "mse_weight": weight}
        tables["fleet"] = [{"count": 2, "model": "mlp"}, {"count": 1, "model": "softmax"}]  # whose features are pixels
        run = fleets.Run(settings.parse(tables, Path("test.toml")))
        sent = run.tap()
        run.finished()
        assert run.result.completed
        assert run.result.updates["refused"] == 0
        ups = [each for each in sent if isinstance(each, Upload) and not each.closing]
        assert {role for each in ups for role in each.knowledge} == {"features"}
        last = [each.knowledge["features"].values for each in ups if each.round == 7]
        gaps.append(float(np.mean([(each - np.mean(last, axis=0)) ** 2 for each in last])))
    assert gaps[1] < 0.8 * gaps[0]


def test_the_mean_is_of_this_rounds_batch_and_of_no_other() -> None:
    spec = spec_of("fedproto", over="public", public_batch=4, feature_dim=2)
    method = method_of(spec)
    ups = [PublicFeatures(values=np.full((4, 2), value, np.float32), batch=bytes(8)) for value in (1, 4)]
    bag = method.zero()
    for number, up in enumerate(ups):
        bag = method.add(bag, Contribution(number=number, samples=9, knowledge={"features": up}))
    state = method.finish(spec, method.begin(spec), ExchangeId(0, 0), bag)
    down = method.common(state, ExchangeId(1, 0))
    assert down["features"].values.tolist() == [[2.5, 2.5]] * 4
    with pytest.raises(RemoteProtocolError, match="public batch"):
        FakeDevice().run(first_step(down, job(spec, 1)))  # bytes(8) names no batch of this federation

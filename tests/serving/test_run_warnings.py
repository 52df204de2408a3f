"""The warnings of a run: each once as it happens, and all of them in the report."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from coordinator.record.run_record import RunRecord
from coordinator.rounds import RoundPolicy
from coordinator.serving.devices.device_registry import DeviceRegistry
from coordinator.serving.intake.upload_screen import UploadScreen
from coordinator.serving.run_context import RunWarnings
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.fedavg import FedAvg
from edge_sdk.methods.fedmd import FedMD
from edge_sdk.methods.fedproto import FedProto, State
from edge_sdk.protocol.frames.records import FrozenDict
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec, Hello, Upload
from edge_sdk.reductions.influence import PAPER


def in_lock_step() -> FedMD:
    """FedMD, as if every exchange waited for every device."""
    method = FedMD()
    method.lock_step = True
    return method


def run(method: Method[Any], **policy: int) -> RunWarnings:
    spec = FederationSpec(
        federation="lab",
        method=method.name,
        params=method.table,
        contract=method.digest,
        classes=3,
        rounds=9,
    )
    return RunWarnings(method, spec, RoundPolicy(**{"expected": 4, "quorum": 2, "rounds": 9, "exchanges": 1, **policy}))


def test_a_class_with_few_holders_is_told_once_and_stays_in_the_report() -> None:
    warnings, record = run(FedProto()), RunRecord()
    record.holders.update([0, 1, 2])
    record.sharers = 4
    (told,) = warnings.round_ended(record, State())
    assert told.startswith("W3: half of the classes")
    assert list(warnings.round_ended(record, State())) == []
    assert [each for each in warnings.all({}, record) if each.startswith("W3")] == [told]


@pytest.mark.parametrize(("stuck", "done", "told"), [(3, 8, True), (2, 8, False), (4, 2, False)])
def test_models_that_predict_a_constant_are_told_of(stuck: int, done: int, told: bool) -> None:
    """W20: more than half of them, and not in the first rounds."""
    warnings, record = run(FedAvg()), RunRecord()
    for number in range(4):
        constant = {"constant_prediction": 1.0} if number < stuck else {}
        record.measured(f"device-{number}", done, {"accuracy": 0.1, "local_accuracy": 0.1, **constant})
    for _ in range(done):
        record.round_done(4, 1, 0.0)
    found = [each for each in warnings.round_ended(record, None) if each.startswith("W20")]
    assert bool(found) == told
    assert list(warnings.round_ended(record, None)) == []


def test_the_room_is_measured_only_where_slots_are_kept() -> None:
    def never() -> int | None:
        raise AssertionError("asked the disk")

    hello = Hello(federation="lab", device="a", classes=3, weight_count=1000)
    assert list(run(FedAvg()).first_joined(hello, never)) == []


def test_who_left_and_who_lags_is_found_anew() -> None:
    warnings, record = run(in_lock_step()), RunRecord()
    record.left["b"] = "went home"
    record.contributed.update({"a": 1})
    for _ in range(2):
        record.round_done(contributors=1, exchanges=1, now_s=0.0)
    found = warnings.all({}, record)
    assert "b left: went home" in found
    assert found[-1].startswith("W5: a missed")
    record.left.clear()
    record.contributed["a"] += 1
    assert not [each for each in warnings.all({}, record) if each.startswith(("W5", "b left"))]


def test_where_participants_are_drawn_nobody_lags() -> None:
    record = RunRecord()
    record.contributed.update({"a": 1})
    for _ in range(2):
        record.round_done(contributors=1, exchanges=1, now_s=0.0)
    drawn = run(in_lock_step(), participants=2)
    assert not [each for each in drawn.all({}, record) if each.startswith("W5")]


def test_the_norms_of_an_exchange_end_with_it() -> None:
    def weights(value: float) -> dict[str, Weights]:
        return {"weights": Weights(values=np.array([value], np.float32), layout=bytes(16))}

    def came(device: str, value: float, sent: dict[str, Weights]) -> None:
        knowledge = FrozenDict(weights(value))
        screen.counts(Upload(federation="f", device=device, round=0, exchange=0, knowledge=knowledge), sent)

    no_registry = cast("DeviceRegistry", None)  # it knows counts of samples, which norms do not need
    screen = UploadScreen(PAPER, no_registry, RunRecord(), lambda _knowledge: None)
    for device, value in {"a": 2.0, "b": 2.0, "c": 41.0}.items():
        came(device, value, weights(1.0))
    found = screen.outliers()
    assert found == {"c": pytest.approx(40.0)}
    screen.close(0, found)
    came("c", 41.0, {})
    assert screen.outliers() == {}

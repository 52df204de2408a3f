"""FedProto and FedSSA in whole runs: who may join, faults, power cuts, late classes, and what the report says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from method_specs import spec_of

import edge_sim
from coordinator.record import remarks
from coordinator.record.observer import RunObserver
from coordinator.results.report.run_table import run_table
from coordinator.results.report.summary import summary
from coordinator.serving.devices import admission
from edge_sdk.errors import UsageError
from edge_sdk.methods.fedproto import FedProto
from edge_sdk.methods.fedssa import FedSSA
from edge_sdk.protocol.messages import Hello
from edge_sdk.transport.memory.hub import Faults
from edge_sim.config import settings

METHODS = ("fedproto", "fedssa")
BOTH = pytest.mark.parametrize("method", METHODS)


def made(pictures: Path, method: str, devices: int = 6, held: int = 2, **federation: Any) -> dict[str, Any]:
    tables = fleets.tables(pictures, method, devices=devices, **federation)
    tables["partition"]["classes_per_device"] = held
    return tables


def parsed(tables: dict[str, Any]) -> settings.Config:
    return settings.parse(tables, Path("test.toml"))


# -- who may join ---------------------------------------------------------------------------------------------------


@BOTH
def test_a_model_of_another_width_is_refused_when_it_joins(pictures: Path, method: str) -> None:
    tables = made(pictures, method, devices=4, quorum=3)
    tables["fleet"] = [{"count": 3, "model": "softmax"}, {"count": 1, "model": "softmax", "size": [2, 2]}]
    run = fleets.Run(parsed(tables)).finished()
    assert run.server.rounds.reason == ""
    (refused,) = run.result.refused_devices
    assert (refused["device"], refused["reason"]) == ("device-03", "feature-width")
    assert "4 features, the federation" in refused["message"]
    assert "federation.feature_dim" in refused["remedy"]
    assert run.devices[3].participant.refusal is not None
    assert run.begun["device-03"] == 0  # before any training


@BOTH
def test_a_federation_without_a_width_is_the_users_mistake(pictures: Path, method: str) -> None:
    with pytest.raises(UsageError, match=rf"federation.feature_dim: missing; {method} averages rows"):
        fleets.Run(parsed(made(pictures, method, feature_dim=0)))


def test_a_last_layer_without_bias_is_refused_by_fedssa_only() -> None:
    """Such a model has no head rows to trade; its features are as good as any."""
    hello = Hello(
        federation="tiny",
        device="a",
        capabilities=("features", "logit-gradients", "predict", "weights"),
        terms=("cross-entropy", "prototype-pull"),
        classes=3,
        feature_dim=8,
    )
    turned = admission.refusal(hello, spec_of("fedssa", feature_dim=8), FedSSA(), ())
    assert turned is not None
    assert (turned.reason, "needs head-rows" in turned.message) == ("capability", True)
    assert admission.refusal(hello, spec_of("fedproto", feature_dim=8), FedProto(), ()) is None


def test_a_row_of_the_fleet_cannot_ask_for_a_width_that_a_family_does_not_have(pictures: Path) -> None:
    tables = made(pictures, "fedproto")
    tables["fleet"][0]["feature_dim"] = 5
    with pytest.raises(UsageError, match=r"fleet\.feature_dim: .*softmax"):
        fleets.Run(parsed(tables))


# -- runs -----------------------------------------------------------------------------------------------------------


@BOTH
def test_lost_doubled_and_reordered_frames_change_no_bit(pictures: Path, method: str) -> None:
    config = parsed(made(pictures, method, deadline_s=1000.0))
    clean = fleets.Run(config).finished()
    for seed in (1, 2):
        bad = Faults(drop=0.2, duplicate=0.2, delay=0.5, delay_s=3.0)
        run = fleets.Run(config, faults=bad, seed=seed).finished()
        assert run.coordinator_bytes == clean.coordinator_bytes
        assert run.model_bytes == clean.model_bytes
        assert sum(run.server.record.updates.values()) > run.server.record.updates["accepted"]


@BOTH
def test_power_cuts_change_no_bit(pictures: Path, method: str) -> None:
    config = parsed(made(pictures, method, rounds=6))
    clean = fleets.Run(config).finished()
    end_s = clean.clock.now_s
    run = fleets.Run(config)
    run.power_cut("device-01", 0.3 * end_s, 0.1)
    run.power_cut("coordinator", 0.6 * end_s, 0.1)
    run.finished()
    assert run.devices[1].participant.context.store.boot_epoch == 2
    assert run.result.metrics == clean.result.metrics
    assert run.coordinator_bytes == clean.coordinator_bytes
    assert run.model_bytes == clean.model_bytes


class Classes(RunObserver):
    """Notes after each round which classes the coordinator has a row for, and says aloud what it is told."""

    def __init__(self, run: fleets.Run) -> None:
        self.run = run
        self.known: list[list[int]] = []
        self.lines: list[str] = []

    def round_done(self, *_: Any) -> None:
        self.known.append(self.run.server.method_state.prototypes.classes.tolist())

    def noted(self, message: str) -> None:
        self.lines.append(message)


def test_a_class_whose_only_holder_comes_late_is_absent_until_then_and_stays_afterwards(pictures: Path) -> None:
    tables = made(pictures, "fedproto", devices=4, held=1, rounds=8, quorum=3, join_grace_s=0.5, deadline_s=2.0)
    tables["train"]["evaluate_every"] = 8
    run = fleets.Run(parsed(tables))
    (late,) = {int(label) for label in run.fleet.devices[3].data.train.y}
    observer = Classes(run)
    run.server.observer = observer
    run.power_cut("device-03", 0.0, 0.55)
    run.finished()
    present = [late in classes for classes in observer.known]
    assert not present[0]
    assert present[-1]
    assert present == sorted(present)
    assert len(observer.known[0]) == 3
    prototypes = run.server.method_state.prototypes
    assert prototypes.classes.tolist() == [0, 1, 2, 3]
    mine = run.fleet.devices[3].data.train.x.reshape(-1, fleets.WIDTH)
    np.testing.assert_allclose(prototypes.rows[late], mine.mean(axis=0), atol=1e-5)


def test_prototypes_of_fixed_features_are_the_class_means_of_all_samples(pictures: Path) -> None:
    run = fleets.Run(parsed(made(pictures, "fedproto"))).finished()
    everything = [device.data.train for device in run.fleet.devices]
    x = np.concatenate([part.x.reshape(-1, fleets.WIDTH) for part in everything])
    y = np.concatenate([part.y for part in everything])
    found = run.server.method_state.prototypes
    assert found.counts.tolist() == [int((y == label).sum()) for label in found.classes]
    np.testing.assert_allclose(found.rows, [x[y == label].mean(axis=0) for label in found.classes], atol=1e-5)


# -- what the report says -------------------------------------------------------------------------------------------


@BOTH
def test_local_accuracy_reaches_the_summary_beside_its_standalone_line(pictures: Path, method: str) -> None:
    tables = made(pictures, method)
    tables["run"]["standalone"] = True
    result = edge_sim.run(tables)
    metrics = summary(result)["metrics"]
    names = ("local_accuracy", "pm_v", "pm_l")
    expected = {f"{run}{name}_mean" for run in ("", "standalone_") for name in names}
    by_prototype = {"prototype_accuracy_mean", "prototype_accuracy_all_mean"}
    assert set(metrics) == expected | (by_prototype if method == "fedproto" else set())
    assert all(0 < value <= 1 for value in metrics.values())
    assert metrics["local_accuracy_mean"] > result.devices[0].accuracy  # two of four classes
    line = f"on the classes that each device holds: {100 * metrics['standalone_local_accuracy_mean']:.1f} % alone -> "
    assert any(note.startswith(line) for note in run_table(result).notes)


def test_a_term_without_effect_is_told_of_each_device(pictures: Path) -> None:
    for method, told in (("fedproto", True), ("fedssa", False)):
        result = fleets.Run(parsed(made(pictures, method))).finished().result
        assert {"prototype-pull had no effect" in device.note for device in result.devices} == {told}


def test_few_holders_are_warned_of_once(pictures: Path) -> None:
    for devices, held, warned in ((6, 2, 0), (4, 1, 1)):  # 3 holders a class, and 1
        run = fleets.Run(parsed(made(pictures, "fedproto", devices=devices, held=held)))
        run.server.observer = observer = Classes(run)
        result = run.finished().result
        found = [warning for warning in result.warnings if warning.startswith("W3")]
        assert len(found) == warned
        assert [line for line in observer.lines if line.startswith("W3")] == found


def test_a_round_that_draws_few_of_many_devices_is_no_reason_to_raise_the_quorum(pictures: Path) -> None:
    tables = made(pictures, "fedproto", devices=24, held=4, participants=6, quorum=6)  # 6 holders of each class
    assert not [line for line in fleets.Run(parsed(tables)).finished().result.warnings if line.startswith("W3")]


def test_few_participants_are_warned_of_whatever_they_hold() -> None:
    assert "fewer than 30%" in str(remarks.few_holders(FedProto(), [10] * 10, 10, 100))
    assert "fewer than 3 holders" in str(remarks.few_holders(FedProto(), [1, 2, 9], 30, 100))
    assert remarks.few_holders(FedProto(), [1, 3, 9], 30, 100) is None
    assert remarks.few_holders(FedProto(), [], 0, 100) is None

"""Warning W17 on the coordinator: an update far beyond the others is named, and held out unless the settings count it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from notes import Notes

from coordinator.record import saved_record
from coordinator.record.run_record import RunRecord
from coordinator.serving.intake.upload_screen import OUTLIER, UploadScreen, outliers, update_norm
from edge_sdk.data import LocalData, Samples
from edge_sdk.protocol.knowledge import ClassRows, Weights
from edge_sdk.protocol.messages import Upload
from edge_sdk.reductions.influence import RobustTable
from edge_sim.config import settings
from edge_sim.data.held_samples import CopiedSamples
from edge_sim.fleet import fleet as sim_fleet

LAYOUT = bytes(16)


def weights(*values: float) -> Weights:
    return Weights(values=np.array(values, np.float32), layout=LAYOUT)


def test_of_weights_the_change_counts_and_of_rows_the_rows() -> None:
    assert update_norm({"weights": weights(1, 5)}, {"weights": weights(1, 1)}) == 4.0
    assert update_norm({"weights": weights(3, 4)}, {}) == 5.0
    assert update_norm({"weights": weights(3, 4)}, {"weights": weights(1, 1, 1)}) == 5.0  # another architecture
    rows = ClassRows(
        classes=np.array([1], np.int32), rows=np.array([[6, 8]], np.float32), counts=np.array([3], np.int32)
    )
    assert update_norm({"rows": rows}, {"rows": rows}) == 10.0
    assert update_norm({}, {}) == 0.0


def test_an_outlier_is_more_than_z_times_the_median() -> None:
    assert outliers({"a": 1.0, "b": 1.0, "c": OUTLIER * 1.01}) == {"c": pytest.approx(OUTLIER * 1.01)}
    assert outliers({"a": 1.0, "b": 1.0, "c": OUTLIER}) == {}
    assert outliers({"a": 1.0, "c": 1e9}) == {}  # two: neither can be told to be the odd one
    assert outliers({"a": 0.0, "b": 0.0, "c": 1.0}) == {}  # the others stood still


@pytest.mark.parametrize("rounds", [1, 2])
def test_an_outlier_is_held_out_for_as_many_rounds_as_the_settings_say(rounds: int) -> None:
    registry: Any = None  # counts of samples play no part
    screen = UploadScreen(RobustTable(hold_out_rounds=rounds), registry, RunRecord(), lambda _knowledge: None)
    counted = []
    for round_ in range(5):
        for device in ("a", "b", "loud"):
            size = 1000 if (device, round_) == ("loud", 1) else 1
            knowledge = {"weights": weights(size)}
            screen.counts(Upload(federation="f", device=device, round=round_, exchange=0, knowledge=knowledge), {})
        found = screen.outliers()
        screen.leave_out(screen.to_leave_out(found))
        counted.append([not screen.left_out(device) for device in ("a", "b", "loud")])
        screen.close(round_, found)
    out = range(1, 2 + rounds)  # the round itself, and those after it
    assert counted == [[True, True, round_ not in out] for round_ in range(5)]


def run_with_a_loud_device(pictures: Path, **robust: object) -> fleets.Run:
    tables = fleets.tables(pictures, "fedavg")
    tables["train"] |= {"optimiser": "sgd", "learning_rate": 0.01}
    tables["robust"] = robust
    fleet = sim_fleet.build_fleet(settings.parse(tables, Path("test.toml")))
    loud = fleet.devices[3]
    train = Samples(loud.data.train.x * np.float32(100), loud.data.train.y)
    loud = replace(loud, held=CopiedSamples(LocalData(train=train, test=loud.data.test)))
    return fleets.Run(replace(fleet, devices=(*fleet.devices[:3], loud, *fleet.devices[4:]))).finished()


def test_a_run_names_it_and_counts_it_where_nobody_is_held_out(pictures: Path) -> None:
    run = run_with_a_loud_device(pictures, hold_out_rounds=0)
    (warning,) = run.result.warnings
    assert re.search("device-03 .*norms .*median", warning)
    assert run.result.updates["accepted"] == 6 * 4
    again = saved_record.from_json(saved_record.to_json(run.server.record), {})
    assert again.outliers == run.server.record.outliers


def test_a_run_holds_it_out_and_says_so(pictures: Path) -> None:
    run = run_with_a_loud_device(pictures, hold_out_rounds=5)
    assert [line.split(":")[0] for line in run.result.warnings] == ["W17", "W24"]
    record = run.server.record
    assert run.result.updates["accepted"] == 6 * 4  # each has its receipt, and lets go of what it sent
    assert record.left_out == {"device-03": 2}
    assert record.contributed["device-03"] == 1  # before anything was sent, all weights are alike
    assert [each.contributors for each in record.rounds] == [6, 5, 5]
    again = saved_record.from_json(saved_record.to_json(record), {})
    assert (again.left_out, again.held_out) == (record.left_out, record.held_out)


def test_a_simulation_holds_nobody_out_unless_it_is_asked_to(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedavg")
    parsed = settings.parse(tables, Path("test.toml"))
    assert parsed.robust.hold_out_rounds == parsed.robust.count_factor == 0
    # a rerun of the resolved file does the same
    assert parsed.tables["robust"] == {"count_factor": 0, "hold_out_rounds": 0}
    asked = settings.parse({**tables, "robust": {"hold_out_rounds": 5}}, Path("test.toml"))
    assert settings.parse(asked.tables, Path("test.toml")).robust.hold_out_rounds == 5
    run = run_with_a_loud_device(pictures)
    assert not any(line.startswith("W24") for line in run.result.warnings)
    assert [each.contributors for each in run.server.record.rounds] == [6, 6, 6]


def test_a_healthy_run_names_nobody(pictures: Path) -> None:
    for method in ("fedavg", "fedmd"):
        assert not fleets.Run(fleets.built(pictures, method)).finished().result.warnings


def test_who_stays_hostile_is_noted_once(pictures: Path) -> None:
    notes = Notes()
    tables = fleets.tables(pictures, "fedmd", rounds=5)
    tables["robust"] = {"hold_out_rounds": 5}
    tables["fleet"] = [{"count": 5, "model": "softmax"}, {"model": "softmax", "byzantine": "influence_attacks:shout"}]
    fleets.Run(settings.parse(tables, Path("test.toml")), observer=notes).finished()
    assert sum(line.startswith("W24:") for line in notes.lines) == 1

"""Figures by board, model, month of joining and class: measured by devices of a service, kept, and told."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_endless_rounds import served, tables

from coordinator.record import saved_record
from coordinator.record.control_group import ControlGroup, by_class
from coordinator.record.run_record import RunRecord
from coordinator.results.figures.kinds import by_kind, kind_lines
from coordinator.results.report.progress_file import About, ProgressFile, read_running, running_text
from coordinator.results.report.run_table import run_table
from coordinator.results.report.summary import summary
from edge_sdk.data import LocalData, Samples
from edge_sdk.device.exchange import RoundReport
from edge_sdk.device.standing import AgentStatus, OwnAccuracy
from edge_sdk.device.training.learner import Learner
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.methods.contract.requests import Evaluate
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol.messages import FOREVER

RNG = np.random.default_rng(0)


def samples(count: int, classes: int) -> Samples:
    return Samples(RNG.normal(size=(count, 2, 2)).astype(np.float32), np.arange(count) % classes)


def figures(data: LocalData, *, measures: bool = True) -> dict[str, float]:
    bench, found = Workbench(NumpyModel(4, (1, 2, 2), seed=0), data), dict[str, float]()
    bench.measures_classes = measures

    def work() -> Any:
        found.update((yield from bench.serve(Evaluate(1), None)))

    for _ in work():
        pass
    return found


@pytest.mark.parametrize(
    ("parts", "classes"),
    [
        ({"test": 4}, 2),  # the test samples of the classes that it holds
        ({"test": 4, "validation": 1}, 2),
        ({"test": 4, "local_test": 1}, 1),  # its own test part
        ({"validation": 3}, 3),
    ],
)
def test_the_classes_are_measured_on_the_samples_that_the_control_group_is_compared_on(
    parts: dict[str, int], classes: int
) -> None:
    data = LocalData(train=samples(20, 2), **{name: samples(24, count) for name, count in parts.items()})
    assert set(by_class(figures(data))) == {str(each) for each in range(classes)}
    found = figures(data)
    whole = found.get("local_accuracy", found.get("validation_accuracy"))
    assert np.mean([*by_class(found).values()]) == pytest.approx(whole)  # as many samples of each
    assert not by_class(figures(data, measures=False))


def record(*, alone: float = 0.5) -> RunRecord:
    """Of eight devices on two boards, of which three were alone and are worse at class 1."""
    found = RunRecord(control=ControlGroup())
    found.control.begin([f"cam-{number}" for number in range(3)], 0)
    for number in range(8):
        device, value = f"cam-{number}", alone if number < 3 else 0.9 + number / 1000
        measured = {"local_accuracy": value, "class.0": 0.8 + number % 3 / 100, "class.1": value}
        found.is_kind(device, board="rpi4" if number % 2 else "jetson", model="mlp")
        found.measured(device, 1, measured)
        found.control.measured(device, measured, alone=number < 3)
        found.joining[device] = {"local_accuracy": 0.2, "class.0": 0.3, "class.1": 0.1}
    return found


def test_levels_and_uplift_by_board_and_by_class() -> None:
    found = by_kind(record(), ("cat", "dog"))
    assert set(found) == {"board", "class"}  # one model alone is no kind
    assert found["board"]["rpi4"] == {"devices": 4, "before_mean": 0.2, "now_mean": pytest.approx(0.804, abs=0.01)}
    assert found["class"]["dog"]["before_mean"] == pytest.approx(0.1)
    dog, cat = (found["class"][name]["uplift"] for name in ("dog", "cat"))
    assert (dog["known"], cat["known"]) == (True, False)
    assert dog["mean"] == pytest.approx(0.405, abs=0.01)
    assert not by_kind(RunRecord())


def test_the_lines_name_all_of_it() -> None:
    board, of_class = kind_lines(by_kind(record(), ("cat", "dog")))
    assert board.startswith("by board: jetson (4) 20.0 % before, ")
    assert "; dog (8) 10.0 % before, 75.3 % now, uplift +40.5 (" in of_class


def test_a_restart_keeps_it_and_an_older_coordinator_reads_what_it_knows() -> None:
    found = record()
    plain = json.loads(json.dumps(saved_record.to_json(found)))
    again = saved_record.from_json(plain, {})
    assert by_kind(again) == by_kind(found)
    older = {name: value for name, value in plain.items() if name not in ("kinds", "control_later")}
    assert saved_record.from_json(older, {}).control.whole == found.control.whole
    assert set(plain["control"]) == {
        *("alone", "alone_before", "period", "since", "turns", "now", "before", "pairs"),
    }  # what the class of before has as fields


def test_a_running_service_tells_it(tmp_path: Path) -> None:
    about = About(federation="cams", method="fedproto", seed=0, rounds=FOREVER, expected=8)
    ProgressFile(tmp_path, about, say=str).round_done(_round(), FOREVER, record())
    assert "  by board: jetson (4) " in running_text(tmp_path, read_running(tmp_path))
    (tmp_path / "progress.json").write_text(
        (tmp_path / "progress.json").read_text().replace('"kinds": {', '"kinds": {"class": 3, "no": {'),
        encoding="utf-8",
    )
    with pytest.raises(Exception, match=r"progress\.json"):
        read_running(tmp_path)


def _round() -> Any:
    from coordinator.record.round_result import RoundResult

    return RoundResult(round=1)


def test_a_service_measures_by_class_and_a_study_does_not() -> None:
    plain = tables(days=0.2, every="1h")
    plain["train"]["evaluate_every"] = 1
    result, watch = served(plain)
    assert watch.record is not None
    assert set(by_class(watch.record.metrics["device-00"])) == {str(each) for each in range(10)}
    told = summary(result)
    assert set(told["kinds"]["class"]) == {str(each) for each in range(10)}
    assert any(note.startswith("by class: 0 (3) ") for note in run_table(result).notes)
    study, _ = served({**plain, "federation": {**plain["federation"], "rounds": 2}} | {"scenario": {}})
    assert "kinds" not in summary(study)
    assert not any(name.startswith("class.") for name in study.metrics)


@pytest.mark.parametrize("discloses", [True, False])
def test_figures_of_a_class_leave_a_device_only_if_it_discloses_its_classes(*, discloses: bool) -> None:
    learner: Any = SimpleNamespace(_bench=SimpleNamespace(discloses_classes=discloses))
    told = Learner.told(learner, {"accuracy": 0.5, "class.1": 0.7})
    assert told == {"accuracy": 0.5, **({"class.1": 0.7} if discloses else {})}


def test_the_device_knows_its_own() -> None:
    known = OwnAccuracy()
    status = AgentStatus(state="idle", since="", why="", next="", round=1, news="")
    assert known.told_in(status, ()) == status
    report = RoundReport(
        round=0,
        exchange=0,
        closing=False,
        metrics={"accuracy": 0.5, "local_accuracy": 0.6, "class.1": 0.7},
        metrics_round=1,
        joining_metrics={"accuracy": 0.1, "local_accuracy": 0.2},
    )
    known.note(report)
    known.note(dataclasses.replace(report, alone=True, metrics={"local_accuracy": 0.4}))
    known.note(dataclasses.replace(report, metrics={}))  # rounds that measure nothing change nothing
    found = known.told_in(status, ("cat", "dog")).to_json()
    assert found["accuracy"] == {"before": 0.2, "now": 0.6, "alone": 0.4}
    assert found["by_class"] == {}
    known.note(report)
    assert known.told_in(status, ("cat", "dog")).by_class == {"dog": 0.7}

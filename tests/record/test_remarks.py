"""Warnings of a run that concern its classes: W16 refuses drift, W18 says once what is told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest
from notes import Notes

from coordinator.record import remarks
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.registry import load_method
from edge_sdk.protocol.knowledge import ClassRows, Slot
from edge_sdk.protocol.messages import Hello
from edge_sim.config import settings


def method(name: str) -> Any:
    return load_method(name)()


PROTOTYPES = {"prototypes": Slot(ClassRows)}


def rows(*classes: int) -> ClassRows:
    count = len(classes)
    return ClassRows(
        classes=np.array(classes, np.int32), rows=np.zeros((count, 2), np.float32), counts=np.ones(count, np.int32)
    )


def test_rows_of_a_class_that_was_not_held_at_join_are_refused() -> None:
    hello = Hello(federation="lab", device="cam", classes=3, class_counts=(4, 0, 2))
    remarks.check_classes(method("fedproto"), hello, {"prototypes": rows(0, 2)}, PROTOTYPES)
    with pytest.raises(RemoteProtocolError, match=r"W16: cam .*class 1, .*again"):
        remarks.check_classes(method("fedproto"), hello, {"prototypes": rows(0, 1)}, PROTOTYPES)
    remarks.check_classes(method("lg_fedavg"), hello, {"header": rows(0, 1, 2)}, {})  # shares the rows of all classes
    silent = Hello(federation="lab", device="cam", classes=3)
    remarks.check_classes(method("fedproto"), silent, {"prototypes": rows(0, 1)}, PROTOTYPES)


def test_noised_sums_over_every_class_are_no_drift(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedhkd", devices=3)
    tables["method"] = {"noise_features": 0.5, "noise_soft": 0.5, "noise_counts": 0.5}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    assert run.result.completed
    assert run.result.updates["refused"] == 0


@pytest.mark.parametrize(("method", "times"), [("fedproto", 1), ("fd", 1), ("fedmd", 0), ("fedavg", 0)])
def test_what_labels_tell_is_said_once(pictures: Path, method: str, times: int) -> None:
    run = fleets.Run(fleets.built(pictures, method))
    run.server.observer = notes = Notes()
    run.finished()
    said = [line for line in notes.lines if line.startswith("W18")]
    assert len(said) == times
    assert all("which classes the device holds" in line for line in said)


@pytest.mark.parametrize(
    ("nu", "counts", "warned"),
    [
        (0.6, [(5, 5), (5, 5), (9, 1)], True),  # two of three have no class of six tenths
        (0.6, [(5, 5), (9, 1), (9, 1)], False),
        (0.5, [(5, 5), (5, 5), (5, 5)], False),
        (0.0, [(1, 1, 1)] * 3, False),
        (0.6, [], False),
    ],
)
def test_a_threshold_that_most_devices_cannot_pass(nu: float, counts: list[tuple[int, ...]], warned: bool) -> None:
    found = load_method("fedhkd").under({"nu": nu}).population(counts)
    assert len(found) == warned
    assert all(re.match("W1: .*nu = 0.6 .*2 of 3", text) for text in found)


def test_the_threshold_is_told_of_a_run(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedhkd", devices=3)
    tables["method"] = {"nu": 0.9}
    run = fleets.Run(settings.parse(tables, Path("test.toml"))).finished()
    assert any(re.match("W1: .*nu = 0.9 .*3 of 3", text) for text in run.result.warnings)

"""The devices of a measured sample train alone, with the bits that they have where all devices do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleets
import pytest

from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import Diverged
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Fit, Request
from edge_sim.runs.runner import run

DEVICES, ROUNDS, SAMPLE = 8, 4, 3


def _tables(pictures: Path, measured: object, **changes: dict[str, object]) -> dict[str, Any]:
    plain = fleets.tables(pictures, "fedavg", DEVICES, participants=3, rounds=ROUNDS)
    plain["run"] = {"measured": measured}
    for table, values in changes.items():
        plain[table] |= values
    return plain


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train": {"evaluate_every": 3}},
        {"run": {"standalone": "every-round"}},
    ],
)
def test_a_sample_trains_alone_as_it_does_among_all(pictures: Path, changes: dict[str, dict[str, object]]) -> None:
    check_equal(pictures, changes)


def test_a_round_that_diverges_is_undone(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve, diverged = Workbench.serve, []

    def diverges(bench: Workbench, request: Request, job: Job) -> Iterator[Any]:
        answer = yield from serve(bench, request, job)
        if isinstance(request, Fit) and job.round == 1 and job.number < DEVICES - 1:
            diverged.append(job.number)
            raise Diverged("the loss was nan")
        return answer

    monkeypatch.setattr(Workbench, "serve", diverges)
    check_equal(pictures, {"run": {"standalone": "every-round"}})
    assert len(diverged) > DEVICES - 1  # among all, and in the sample


def check_equal(pictures: Path, changes: dict[str, dict[str, object]]) -> None:
    """Compare the figures of the sample's devices alone with theirs in a run that measures all devices."""
    every, sample = (run(_tables(pictures, measured, **changes)) for measured in ("all", SAMPLE))
    alone = {each.id: each for each in sample.devices if each.standalone_accuracy is not None}
    assert len(alone) == SAMPLE
    for device in every.devices:
        if device.id in alone:
            assert alone[device.id].standalone_accuracy == device.standalone_accuracy
            assert alone[device.id].standalone_steps == device.standalone_steps
    found = {entry.round: dict(entry.accuracy) for entry in sample.standalone_history}
    assert found == {
        entry.round: {name: value for name, value in entry.accuracy.items() if name in alone}
        for entry in every.standalone_history
    }
    assert any(found.values())

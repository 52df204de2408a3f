"""A control group: devices that train alone, are measured as the others, and give nothing and take nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import pytest
from test_version_skew import OLD, with_old_device

from coordinator.results.page.values import finished_state
from coordinator.results.report.progress_file import About, running_text, snapshot
from coordinator.results.report.run_table import run_table
from coordinator.results.report.summary import summary
from coordinator.results.writers.opening import round_figures
from edge_sdk.errors import UsageError
from edge_sdk.protocol.messages import Assign, Upload


def simulated(pictures: Path, method: str = "fedmd", devices: int = 8, **federation: Any) -> fleets.Run:
    given = {"control": 0.25, "control_rounds": 2, "rounds": 6, **federation}
    return fleets.Run(fleets.config(pictures, method, devices, **given))


def test_devices_alone_get_and_give_no_knowledge_and_all_have_their_turn(pictures: Path) -> None:
    run = simulated(pictures, rounds=8, control_rounds=2)
    sent = run.tap()
    run.finished()
    groups: dict[int, set[str]] = {}
    for message in sent:
        if isinstance(message, Assign) and message.alone:
            assert not message.down
            groups.setdefault(message.round, set()).add(message.device)
    for upload in sent:
        if isinstance(upload, Upload):
            assert upload.alone == (upload.device in groups[upload.round])
            assert bool(upload.knowledge) != (upload.alone or upload.closing)
    assert [groups[round_] for round_ in (0, 2, 4, 6)] == [groups[round_] for round_ in (1, 3, 5, 7)]
    assert all(len(group) == 2 for group in groups.values())
    assert len(set.union(*groups.values())) == 8
    assert [entry.contributors for entry in run.result.history] == [6] * 8
    assert {device.sums["alone"] for device in run.result.devices} == {2}
    assert summary(run.result)["uplift"]["paired"] == 6  # the pairs of the last period are not over


@pytest.mark.parametrize("method", ["fedmd", "fedavg", "fedgh"])
def test_a_device_alone_ends_where_local_training_ends(pictures: Path, method: str) -> None:
    run = simulated(pictures, method, control_rounds=100).finished()
    alone = fleets.Run(fleets.config(pictures, "local", 8, rounds=6)).finished()
    group = run.server.record.control.alone
    assert len(group) == 2
    for device, own in run.model_bytes.items():
        assert (own == alone.model_bytes[device]) == (device in group), device


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_power_cuts_change_neither_the_group_nor_the_uplift(pictures: Path, share: float) -> None:
    whole = simulated(pictures).finished()
    run = simulated(pictures)
    for who in ("coordinator", "device-01", "device-04"):
        run.power_cut(who, at_s=share * whole.clock.now_s, for_s=1.0)
    run.finished()
    assert run.model_bytes == whole.model_bytes
    assert run.coordinator_bytes == whole.coordinator_bytes
    assert run.result.uplift == whole.result.uplift


def test_an_older_device_is_never_alone(pictures: Path) -> None:
    run = simulated(pictures)
    with_old_device(run)
    run.finished()
    assert run.result.completed
    alone = {device.id: device.sums.get("alone", 0) for device in run.result.devices}
    assert not alone.pop(OLD)
    assert sum(alone.values()) == 2 * 6


def test_a_round_that_draws_the_group_alone_has_no_result(pictures: Path) -> None:
    run = simulated(pictures, "fedproto", participants=1, quorum=1, rounds=12, control=0.5).finished()
    assert run.result.completed, run.result.reason
    assert {entry.contributors for entry in run.result.history} == {0, 1}


def test_report_page_progress_and_writers_say_it(pictures: Path) -> None:
    run = simulated(pictures, rounds=8)
    text = run.finished().result.uplift["text"]
    record = run.server.record
    assert text in run_table(run.result).notes
    about = About(federation="tiny", method="fedmd", seed=0, rounds=8, expected=8)
    progress = snapshot(about, record, done=8, devices=8)
    assert progress["uplift"] == text
    assert text in running_text(Path("run"), {**progress, "source": "file", "updated_s": 0.0, "elapsed_s": 1.0})
    assert finished_state(run.result, "run").head["uplift"] == text
    written = round_figures(record.rounds[-1], record)
    assert written["uplift/low"] <= written["uplift"] <= written["uplift/high"]


@pytest.mark.parametrize(
    ("method", "federation", "words"),
    [
        ("fedmd", {"control": 0.01}, r"federation.control: 0.01 of 8 devices is less than one; give at least 0.12"),
        ("fedmd", {"control": 1.0}, r"federation.control: 1 of 8 devices leaves 0 to learn from each other"),
        ("fedmd", {"control": 1.5}, r"federation.control: .*1.5"),
        ("local", {}, r"federation.control: under local all devices train alone, so there is nothing to compare"),
    ],
)
def test_a_mistake_gets_one_line(pictures: Path, method: str, federation: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        simulated(pictures, method, **federation)

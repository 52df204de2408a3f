"""Rounds without rounds: whole federations that aggregate as soon as some of the busy devices have answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.serving.intake.canary import Canary
from edge_sdk.errors import UsageError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.messages import Assign, Receipt, Upload
from edge_sdk.public_set.samples import PublicSet
from edge_sim.fleet import fleet as simulated

METHODS = {
    "fedavg": {},
    "fedprox": {},
    "fedproto": {},
    "fedssa": {},
    "lg_fedavg": {},
    "fedcache": {},
    "fedmd": {"target": "all", "public_batch": 8},
}


def buffered_tables(pictures: Path, method: str = "fedavg", **federation: Any) -> dict[str, Any]:
    tables = fleets.tables(pictures, method, **{"buffer": 2, "rounds": 24, **federation})
    tables["method"] = METHODS[method]
    tables["fleet"] = [
        {"count": 4, "model": "softmax", "board": "rpi4"},
        {"count": 2, "model": "softmax", "board": "rpi4", "slow_share": 1.0, "slow_factor": 5.0},
    ]
    return tables


def fleet(pictures: Path, method: str = "fedavg", **federation: Any) -> simulated.Fleet:
    tables = buffered_tables(pictures, method, **federation)
    return simulated.build_fleet(fleets.settings.parse(tables, Path("test.toml")))


@pytest.mark.parametrize("method", METHODS)
def test_slow_devices_hold_nobody_up_and_count_late_but_less(pictures: Path, method: str) -> None:
    run = fleets.Run(fleet(pictures, method))
    sent = run.tap()
    run.finished()
    assert run.result.completed
    assert all(entry.contributors == 2 for entry in run.result.history)
    accepted = [m for m in sent if isinstance(m, Receipt) and m.verdict == "accepted" and not m.closing]
    assert any(m.device in {"device-04", "device-05"} for m in accepted)
    again = fleets.Run(fleet(pictures, method)).finished()
    assert again.coordinator_bytes == run.coordinator_bytes
    assert again.clock.now_s == run.clock.now_s


def test_a_device_that_answered_gets_the_newest_version_at_once(pictures: Path) -> None:
    run = fleets.Run(fleet(pictures))
    sent = run.tap()
    run.finished()
    assigned = [(m.device, m.round) for m in sent if isinstance(m, Assign)]
    assert len(assigned) == len(set(assigned))
    uploads = [(m.device, m.round) for m in sent if isinstance(m, Upload) and not m.closing]
    assert len(uploads) == len(set(uploads))
    assert {round_ for _, round_ in assigned} == set(range(25))


def test_full_buffers_of_all_devices_are_rounds_to_the_bit(pictures: Path) -> None:
    in_rounds = fleets.Run(fleets.built(pictures, "fedavg", rounds=4)).finished()
    buffered = fleets.Run(fleets.built(pictures, "fedavg", rounds=4, buffer=6)).finished()
    assert buffered.coordinator_bytes == in_rounds.coordinator_bytes


def test_an_upload_counts_as_what_its_device_was_when_it_got_its_work(pictures: Path) -> None:
    """The control group changes while slow devices compute: they are neither refused nor in the wrong group."""
    given = {"control": 0.34, "control_rounds": 4, "max_staleness": 4}
    run = fleets.Run(fleet(pictures, **given))
    sent = run.tap()
    run.power_cut("coordinator", at_s=0.1, for_s=0.02)
    run.finished()
    asked = {(m.device, m.round): m.alone for m in sent if isinstance(m, Assign) and not m.closing}
    uploads = [m for m in sent if isinstance(m, Upload) and not m.closing]
    assert all(up.alone == asked[up.device, up.round] != bool(up.knowledge) for up in uploads)
    accepted = {(m.device, m.round) for m in sent if isinstance(m, Receipt) and m.verdict == "accepted"}
    record, slow = run.server.record, {"device-04", "device-05"}
    assert record.control.period >= 5
    assert {alone for (device, _), alone in asked.items() if device in slow} == {True, False}
    assert any(device in slow and round_ < 24 for device, round_ in accepted)
    assert not record.updates["refused"]
    assert {entry.contributors for entry in run.result.history} <= {0, 1, 2}


def test_a_version_that_the_canary_holds_back_reaches_nobody(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(_canary: Canary, _method: object, _before: object, _after: object, at: ExchangeId) -> str:
        return "held back" if at.round == 9 else ""

    run = fleets.Run(fleet(pictures))
    canary = Canary(PublicSet(np.zeros((1, 4), np.float32)), [], 0.1)
    monkeypatch.setattr(Canary, "fault", fault)
    run.server._commands._aggregation._canary = canary  # a simulation has no [guard]
    seen = []
    run.server.observer.round_done = lambda *_: seen.append(run.coordinator_bytes)  # type: ignore[method-assign]  # to listen
    run.finished()
    assert run.result.completed, run.result.reason
    assert [number for number, entry in enumerate(run.result.history) if not entry.contributors] == [9]
    assert seen[9] == seen[8] != seen[10]


def test_with_few_busy_devices_others_take_over(pictures: Path) -> None:
    run = fleets.Run(fleet(pictures, busy=3)).finished()
    assert run.result.completed
    assert sum(device.rounds_done > 0 for device in run.result.devices) == 6


@pytest.mark.parametrize(
    ("method", "changes", "line"),
    [
        ("fedavg", {"buffer": 7}, "7 answers of 6 busy devices"),
        ("fedavg", {"buffer": 4, "busy": 3}, "4 answers of 3 busy devices"),
        ("fedavg", {"busy": 7}, "at most the 6 devices"),
        ("fedavg", {"buffer": None, "busy": 3}, "has no effect without federation.buffer"),
        ("fedavg", {"participants": 3}, "use busy"),
        ("fedavg", {"control": 0.5, "control_rounds": 3}, "would come after two changes of the control group"),
        ("fedal", {}, "fedal needs rounds: each of its 3 exchanges"),
        ("fedtgp", {}, "fedtgp needs rounds: it does more with the"),
        ("qffl", {}, "more with the"),
        ("feddf", {}, "feddf"),
        ("fedmd", {}, 'set method.target = "all"'),
        ("local", {}, "devices send nothing"),
    ],
)
def test_what_needs_rounds_is_refused_in_one_line(
    pictures: Path, method: str, changes: dict[str, Any], line: str
) -> None:
    federation = {key: value for key, value in {"buffer": 2, "rounds": 4, **changes}.items() if value is not None}
    with pytest.raises(UsageError, match=line) as refused:
        fleets.built.__wrapped__(pictures, method, **federation)
    assert "\n" not in str(refused.value)

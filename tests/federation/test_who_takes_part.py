"""Mixed fleets, teachers, and devices that cannot take part: said at once, with names and what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from edge_sdk.data import LocalData, Samples
from edge_sdk.protocol.messages import Assign, Refusal, Upload
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import MemoryTransport
from edge_sim.clock.computation_queue import ComputationQueue
from edge_sim.clock.virtual_device import Surroundings, VirtualDevice
from edge_sim.config import settings
from edge_sim.data.held_samples import CopiedSamples
from edge_sim.engines.base import ExactEngine
from edge_sim.fleet import fleet as sim_fleet
from edge_sim.fleet.fleet import Device, Fleet

METHODS = ["fedmd", pytest.param("fedal", marks=pytest.mark.torch)]


def built(
    pictures: Path,
    method: str = "fedmd",
    rows: list[dict[str, Any]] | None = None,
    optimiser: str = "adam",
    **federation: Any,
) -> Fleet:
    tables = fleets.tables(pictures, method, **federation)
    tables["train"]["optimiser"] = optimiser
    tables["fleet"] = rows or tables["fleet"]
    return sim_fleet.build_fleet(settings.parse(tables, Path("test.toml")))


def with_device(fleet: Fleet, number: int, device: Device) -> Fleet:
    return replace(fleet, devices=(*fleet.devices[:number], device, *fleet.devices[number + 1 :]))


@pytest.mark.parametrize("method", METHODS)
def test_three_input_sizes_in_one_federation(pictures: Path, method: str) -> None:
    rows = [{"count": 2, "model": "softmax", "size": [side, side]} for side in (8, 12, 16)]
    run = fleets.Run(built(pictures, method, rows)).finished()
    assert run.result.completed
    widths = {device.participant.context.bench.model.spec.feature_dim for device in run.devices}
    assert widths == {64, 144, 256}
    assert all(device.accuracy > 0.3 for device in run.result.devices)
    assert run.result.updates["refused"] == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_teacher_contributes_and_does_not_change(pictures: Path, method: str) -> None:
    rows = [{"count": 5, "model": "softmax"}, {"count": 1, "model": "fleets:teacher"}]
    run = fleets.Run(built(pictures, method, rows))
    sent = run.tap()
    run.finished()
    assert run.result.completed
    teacher = run.result.devices[-1]
    assert (teacher.learns, teacher.rounds_done) == (False, 3)
    assert not run.devices[-1].participant.context.bench.meter.train_flops
    uploads = {(m.round, m.exchange) for m in sent if isinstance(m, Upload) and m.device == teacher.id and m.knowledge}
    assert len(uploads) == 3 * (2 if method == "fedal" else 1)
    without = fleets.Run(built(pictures, method, [{"count": 6, "model": "softmax"}])).finished()
    changed = [a != b for a, b in zip(run.model_bytes.values(), without.model_bytes.values(), strict=True)]
    assert all(changed)  # everybody learns from the teacher
    assert teacher.id not in run.result.learners


def test_an_onnx_teacher_takes_part(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file made by a data scientist, through the ONNX runtime."""
    pytest.importorskip("onnxruntime")
    extractors = pytest.importorskip("edge_sim.models.onnx_extractors")
    from edge_sim.models import families

    with np.load(pictures) as arrays:
        images, labels = arrays["x_train"][:, None], arrays["y_train"]
    file = tmp_path / "teacher.onnx"
    file.write_bytes(extractors.teacher(images, labels, fleets.CLASSES, seed=0, steps=50))
    build = families.build_model
    monkeypatch.setattr(families, "build_model", lambda name, **how: build(name, **{**how, "extractor_path": file}))
    rows = [{"count": 5, "model": "softmax"}, {"count": 1, "model": "onnx-teacher"}]
    result = fleets.Run(built(pictures, "fedmd", rows)).finished().result
    assert result.completed
    assert [device.runtime for device in result.devices] == ["numpy"] * 5 + ["onnx"]
    assert not result.devices[-1].learns


@pytest.mark.parametrize("method", METHODS)
def test_teachers_alone_cannot_run(pictures: Path, method: str) -> None:
    run = fleets.Run(built(pictures, method, [{"count": 6, "model": "fleets:teacher"}]))
    sent = run.tap()
    run.finished()
    assert not run.result.completed
    assert run.result.reason.startswith("no device can learn: ")
    assert f"{method} needs logit-gradients" in run.result.reason
    assert not [m for m in sent if isinstance(m, Assign)]  # before any work
    assert run.clock.now_s < 1.0


def test_local_training_teaches_a_teacher_nothing(pictures: Path) -> None:
    rows = [{"count": 5, "model": "softmax"}, {"count": 1, "model": "fleets:teacher"}]
    run = fleets.Run(built(pictures, "local", rows)).finished()
    assert run.result.completed
    assert not run.result.devices[-1].learns
    assert not run.devices[-1].participant.context.bench.meter.train_flops


def other_classes(device: Device, classes: int) -> Device:
    return replace(device, kit=replace(device.kit, classes=classes))


def test_a_wrong_number_of_classes_is_refused_and_the_others_go_on(pictures: Path) -> None:
    fleet = built(pictures, quorum=5)
    run = fleets.Run(with_device(fleet, 1, other_classes(fleet.devices[1], 7))).finished()
    (refused,) = run.result.refused_devices
    assert refused["device"] == "device-01"
    assert refused["reason"] == "classes"
    assert re.search("^device-01: .*7 .* 4$", refused["message"])
    assert "4 outputs" in refused["remedy"]
    assert run.result.completed
    assert run.clock.now_s < 1.0  # nobody waited for it
    assert "4 outputs" in str(run.devices[1].participant.refusal)
    assert [device.rounds_done for device in run.result.devices] == [3, 0, 3, 3, 3, 3]


def test_an_unreachable_quorum_ends_the_run_at_once(pictures: Path) -> None:
    fleet = built(pictures, quorum=5)
    for number in (1, 3):
        fleet = with_device(fleet, number, other_classes(fleet.devices[number], 7))
    run = fleets.Run(fleet).finished()
    assert not run.result.completed
    assert "quorum of 5 " in run.result.reason
    assert "device-01, device-03" in run.result.reason
    assert run.clock.now_s < 1.0


@pytest.mark.parametrize("method", METHODS)
def test_another_public_set_is_refused_and_both_are_named(pictures: Path, method: str) -> None:
    fleet = built(pictures, method, quorum=5)
    theirs = PublicSet(fleet.devices[4].public.samples + 1)
    run = fleets.Run(with_device(fleet, 4, replace(fleet.devices[4], public=theirs))).finished()
    (refused,) = run.result.refused_devices
    ours = fleet.federation.spec.public
    assert refused["reason"] == "public-set"
    assert ours.sha256.hex() in refused["message"]
    assert theirs.spec.sha256.hex() in refused["message"]
    assert run.result.completed


def test_a_missing_public_set_is_refused(pictures: Path) -> None:
    fleet = built(pictures, quorum=5)
    run = fleets.Run(with_device(fleet, 4, replace(fleet.devices[4], public=None))).finished()
    (refused,) = run.result.refused_devices
    assert "holds no public set" in refused["message"]
    assert run.result.completed


def test_a_refusal_that_is_lost_is_said_again(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = built(pictures, quorum=5)
    run = fleets.Run(with_device(fleet, 1, other_classes(fleet.devices[1], 7)))
    sent = run.tap()
    arrive, lost = MemoryTransport.arrive, []

    def carry(client: MemoryTransport, event: Incoming) -> None:
        if event.topic.endswith("device-01/join") and len(lost) < 3:
            lost.append(event.topic)
            return
        arrive(client, event)

    monkeypatch.setattr(MemoryTransport, "arrive", carry)
    run.finished()
    assert len(lost) == 3
    assert len([m for m in sent if isinstance(m, Refusal)]) > 3
    assert run.devices[1].participant.refusal.reason == "classes"
    assert len(run.result.refused_devices) == 1


def test_a_stranger_that_is_turned_away_counts_against_no_quorum(pictures: Path) -> None:
    """Somebody who is not on the roster knocks, again and again: the run does not think that it lost devices."""
    run = fleets.Run(built(pictures))
    kit = replace(run.devices[0].device.kit, id="stranger")
    train = Samples(np.zeros((4, fleets.SIDE, fleets.SIDE), np.float32), np.zeros(4, np.int64))
    stranger = replace(run.devices[0].device, kit=kit, held=CopiedSamples(LocalData(train=train)))
    shared = Surroundings(run.hub, run.clock, ComputationQueue(ExactEngine()), federation="tiny")
    visitor = VirtualDevice(stranger, None, shared)
    visitor.participant.connect()
    run.finished()
    assert visitor.participant.refusal.reason == "roster"
    assert run.result.completed
    assert [refused["device"] for refused in run.result.refused_devices] == ["stranger"]

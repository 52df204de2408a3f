"""A device whose learning diverges: its update is withheld and undone, the report names it, the others lose nothing."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import fleets
import numpy as np
import pytest

from coordinator.results.report import run_files
from coordinator.results.report.summary import summary
from edge_sdk.data import LocalData, Samples
from edge_sdk.models.base import FitReport
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.messages import Bye, Receipt, Upload
from edge_sim.config import settings
from edge_sim.data.held_samples import CopiedSamples
from edge_sim.fleet import fleet as sim_fleet
from edge_sim.fleet.fleet import Fleet

HOT = "device-02"
METHODS = ["fedmd", "fedavg", "local", pytest.param("fedal", marks=pytest.mark.torch)]
POLICY = {"quorum": 5, "deadline_s": 30.0, "rounds": 4}
NEVER_S = 1e6


def runs_away(run: fleets.Run, rounds: tuple[int, ...], number: int = 2) -> None:
    """Let the loss of every training step of these rounds be NaN on one device, and its model full of it."""
    participant = run.devices[number].participant
    model, healthy = participant.context.bench.model, participant.context.bench.model.fit

    def fit(*args: object) -> FitReport:
        report = healthy(*args)
        if participant.context.session.exchange_id.round not in rounds:
            return report
        model.set_head_rows(np.arange(4), np.full_like(model.head_rows(), np.nan))
        return FitReport(steps=report.steps, loss=float("nan"))

    model.fit = fit


def uploads(sent: list, device: str = HOT) -> dict[tuple[int, int], Upload]:
    return {(m.round, m.exchange): m for m in sent if isinstance(m, Upload) and m.device == device}


@pytest.mark.parametrize("method", METHODS)
def test_the_others_finish_as_if_it_had_not_answered(pictures: Path, method: str) -> None:
    diverged = fleets.Run(fleets.built(pictures, method, **POLICY))
    runs_away(diverged, (0, 1, 2, 3))
    silent = fleets.Run(fleets.built(pictures, method, **POLICY))
    silent.slow_down(HOT, NEVER_S)
    diverged.finished()
    silent.finished()
    assert diverged.result.completed
    assert diverged.clock.now_s < 2.0 < silent.clock.now_s  # nobody waited for it
    assert diverged.coordinator_bytes == silent.coordinator_bytes
    others = {device: state for device, state in silent.model_bytes.items() if device != HOT}
    assert {device: diverged.model_bytes[device] for device in others} == others
    assert np.isfinite(diverged.devices[2].participant.context.bench.model.head_rows()).all()


@pytest.mark.parametrize("method", METHODS)
def test_one_bad_round_is_undone_and_the_next_one_counts(pictures: Path, method: str) -> None:
    run = fleets.Run(fleets.built(pictures, method, **POLICY))
    runs_away(run, (1,))
    news: list[str] = []
    run.devices[2].agent.on_link(news.append)
    sent = run.tap()
    run.finished()
    mine = uploads(sent)
    assert {place[0] for place, upload in mine.items() if upload.withheld} == {1}
    for (round_, _), upload in mine.items():
        if round_ == 1:
            assert "loss was nan" in upload.withheld
            assert not upload.knowledge
            assert not upload.metrics
    assert {m.verdict for m in sent if isinstance(m, Receipt) and m.device == HOT} == {"accepted"}
    (line,) = [each for each in news if "withheld" in each]
    assert "lower train.learning_rate" in line
    assert [entry.contributors for entry in run.result.history] == [6, 5, 6, 6]


@pytest.mark.parametrize("method", METHODS)
def test_what_was_withheld_survives_a_restart_of_either_side(pictures: Path, method: str) -> None:
    whole = fleets.Run(fleets.built(pictures, method, **POLICY))
    runs_away(whole, (1,))
    whole.finished()
    cut = fleets.Run(fleets.built(pictures, method, **POLICY))
    runs_away(cut, (1,))
    publish, cuts = cut.hub.publish, []

    def listen(sender: object, topic: str, frame: Frame, *, retain: bool) -> None:
        publish(sender, topic, frame, retain=retain)
        if topic == topics.up("tiny", HOT, "upd") and not cuts and b"the loss was nan" in bytes(frame):
            cuts.append(cut.clock.now_s)
            cut.power_cut(HOT, cut.clock.now_s, 0.5)
            cut.power_cut("coordinator", cut.clock.now_s + 1e-4, 0.7)

    cut.hub.publish = listen
    cut.finished()
    assert cuts
    assert cut.result.completed
    assert cut.coordinator_bytes == whole.coordinator_bytes
    assert cut.model_bytes == whole.model_bytes


def test_another_run_does_not_sit_out_the_round_that_diverged_in_the_last_one(pictures: Path) -> None:
    first = fleets.Run(fleets.built(pictures, "fedmd", **POLICY))
    runs_away(first, (1,))
    store = first.devices[2].participant.context.store
    publish, left = first.hub.publish, []

    def listen(sender: object, topic: str, frame: Frame, *, retain: bool) -> None:
        publish(sender, topic, frame, retain=retain)
        if topic == topics.up("tiny", HOT, "upd") and not left and b"the loss was nan" in bytes(frame):
            left.append(copy.deepcopy(store))

    first.hub.publish = listen
    first.finished()
    left[0].boot_epoch += 1
    second = fleets.Run(fleets.built(pictures, "fedmd", **POLICY, seed=8), stores={HOT: left[0]})
    sent = second.tap()
    second.finished()
    assert second.result.completed
    assert not any(upload.withheld for upload in uploads(sent).values())


def test_the_report_names_it(pictures: Path, tmp_path: Path) -> None:
    run = fleets.Run(fleets.built(pictures, "fedmd", **POLICY))
    runs_away(run, (1, 2))
    result = run.finished().result
    run_files.write_run(result, "", tmp_path)
    found = summary(run_files.read_run(tmp_path))
    assert found["updates"]["withheld"] == 2
    assert [device["withheld"] for device in found["per_device"]] == [0, 0, 2, 0, 0, 0]
    (warning,) = found["warnings"]
    assert warning.startswith(f"W17: {HOT} withheld 2 uploads")
    assert "loss was nan" in warning
    assert "withheld" in (tmp_path / "devices.csv").read_text().splitlines()[0].split(",")


def with_extreme_values(fleet: Fleet, factor: float) -> Fleet:
    """Samples that make the model of one device run away in its first step."""
    device = fleet.devices[2]
    train = Samples(device.data.train.x * np.float32(factor), device.data.train.y)
    device = replace(device, held=CopiedSamples(LocalData(train=train, test=device.data.test)))
    return replace(fleet, devices=(*fleet.devices[:2], device, *fleet.devices[3:]))


@pytest.mark.parametrize(
    ("factor", "reason"),
    [(1e30, "the loss was nan"), (1e10, "hold numbers from")],
    ids=["NaN", "finite"],
)
@pytest.mark.parametrize("method", ["fedmd", pytest.param("fedal", marks=pytest.mark.torch)])
def test_what_is_finite_but_too_large_is_withheld_too(pictures: Path, method: str, factor: float, reason: str) -> None:
    tables = fleets.tables(pictures, method, quorum=5)
    tables["train"]["optimiser"] = "sgd"
    fleet = sim_fleet.build_fleet(settings.parse(tables, Path("test.toml")))
    run = fleets.Run(with_extreme_values(fleet, factor))
    sent = run.tap()
    run.finished()
    assert run.result.completed
    assert run.clock.now_s < 1.0
    assert not [m for m in sent if isinstance(m, Bye)]
    assert all(reason in upload.withheld for upload in uploads(sent).values() if not upload.closing)
    assert run.result.updates["refused"] == 0


def test_it_ends_at_once_a_run_that_needs_it(pictures: Path) -> None:
    run = fleets.Run(fleets.built(pictures, "fedmd", quorum=5))
    runs_away(run, (1,))
    runs_away(run, (1,), number=3)
    run.finished()
    assert not run.result.completed
    for words in ("round 1, exchange 0: ", "quorum of 5", "device-02, device-03"):
        assert words in run.result.reason
    assert run.clock.now_s < 1.0


def test_a_quorum_of_everybody_is_then_one_of_everybody_else(pictures: Path) -> None:
    """As is the default: one device that diverges does not end what five others do."""
    run = fleets.Run(fleets.built(pictures, "fedmd"))
    runs_away(run, (1,))
    run.finished()
    assert run.result.completed
    assert run.result.updates["withheld"] == 1
    assert run.clock.now_s < 1.0


def test_a_round_in_which_everybody_diverges_ends_the_run(pictures: Path) -> None:
    run = fleets.Run(fleets.built(pictures, "fedmd"))
    for number in range(6):
        runs_away(run, (1,), number)
    run.finished()
    assert not run.result.completed
    assert "lower train.learning_rate" in run.result.reason


def test_whoever_withholds_and_uploads_all_the_same_is_refused(pictures: Path) -> None:
    run = fleets.Run(fleets.built(pictures, "local", **POLICY))
    run.slow_down(HOT, 5.0)
    link = run.hub.link("rogue")
    link.connect([])
    rogue = Upload(federation="tiny", device=HOT, round=4, exchange=0, closing=True, withheld="because")
    run.clock.at(2.0, lambda: link.send(topics.up("tiny", HOT, "upd"), fleets.codec.encode(rogue)))
    run.finished()
    assert run.result.completed
    assert run.result.updates["withheld"] == 0
    assert run.result.refused_frames[HOT].items() >= {"refused": 1, "knowledge": 1}.items()

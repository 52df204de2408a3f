"""Whole federations whose knowledge travels in f16 or int8: exact replays, fewer bytes, and who is kept out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.results.report.run_table import run_table
from coordinator.results.report.summary import summary
from edge_sdk.methods.fedmd import FedMD
from edge_sdk.models.predict_only import PredictOnly
from edge_sdk.protocol import topics
from edge_sdk.protocol.encodings import ENCODINGS
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec, schema
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.frames.quantised import Quantised
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import Assign, Hello, Upload, Welcome
from edge_sdk.transport.memory.hub import Faults, MemoryTransport
from edge_sim.config import settings
from edge_sim.fleet import fleet as sim_fleet
from edge_sim.fleet.fleet import Fleet

METHODS = ["fedmd", "fedproto", pytest.param("fedal", marks=pytest.mark.torch)]
KINDS = ("logits", "logit_gradients", "class_rows")
ENCODED = [name for name in ENCODINGS if name != "f32"]
BREAKING = Faults(drop=0.1, duplicate=0.1, delay=0.3, delay_s=3.0, disconnect=0.03, disconnect_s=7.0)


def built(pictures: Path, method: str, name: str, rows: list[dict[str, Any]] | None = None, **federation: Any) -> Fleet:
    tables = fleets.tables(pictures, method, **federation)
    tables["encoding"] = dict.fromkeys(KINDS, name)
    tables["fleet"] = rows or tables["fleet"]
    return sim_fleet.build_fleet(settings.parse(tables, Path("test.toml")))


@pytest.fixture(scope="module")
def plain(pictures: Path) -> dict[str, fleets.Run]:
    return {m: fleets.Run(built(pictures, m, "f32", rounds=8)).finished() for m in ("fedmd", "fedproto", "fedal")}


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_completes_with_fewer_bytes(pictures: Path, plain: dict[str, fleets.Run], method: str, name: str) -> None:
    run = fleets.Run(built(pictures, method, name, rounds=8))
    sent = run.tap()
    run.finished()
    assert run.result.completed
    assert run.result.refused_frames == {}
    assert run.coordinator_bytes != plain[method].coordinator_bytes  # else nothing was encoded
    assert summary(run.result)["accuracy"]["mean"] == pytest.approx(
        summary(plain[method].result)["accuracy"]["mean"], abs=0.1
    )
    for way in ("up_total", "down_total"):
        assert summary(run.result)["bytes"][way] < summary(plain[method].result)["bytes"][way]
    travelled = [
        payload.rows if isinstance(payload, ClassRows) else payload.values
        for message in sent
        for knowledge in (getattr(message, "knowledge", {}), getattr(message, "common", {}))
        for payload in knowledge.values()
    ]
    assert travelled
    assert all(ENCODINGS[name].carries(each) for each in travelled)


@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("method", METHODS)
def test_faults_and_power_cuts_change_no_bit(pictures: Path, method: str, name: str) -> None:
    """What was lost is made again from stored frames and states: the same codes, and the same numbers from them."""
    fleet = built(pictures, method, name)
    clean = fleets.Run(fleet).finished()
    run = fleets.Run(fleet, faults=BREAKING, seed=5)
    rng = np.random.default_rng(11)
    for who in ("coordinator", "device-02", "device-04"):
        for _ in range(2):
            run.power_cut(who, at_s=rng.uniform(0, clean.clock.now_s), for_s=float(rng.uniform(1, 20)))
    run.finished()
    assert run.result.completed
    assert run.coordinator_bytes == clean.coordinator_bytes
    assert run.model_bytes == clean.model_bytes


def test_at_f32_nothing_says_so(pictures: Path) -> None:
    """A federation without [encoding] sends the bytes that it always sent."""
    run = fleets.Run(built(pictures, "fedmd", "f32"))
    sent = run.tap()
    run.finished()
    assert {"encoding" in schema.to_plain(m.spec) for m in sent if isinstance(m, Welcome)} == {False}
    assert not any(
        isinstance(payload.values, Quantised)
        for message in sent
        if isinstance(message, (Assign, Upload))
        for payload in (message.down if isinstance(message, Assign) else message.knowledge).values()
    )
    assert run.result.encoding == {"logits": "f32"}
    assert not any(line.startswith("encoding") for line in run_table(run.result).notes)


def test_the_report_says_how_knowledge_travelled(pictures: Path) -> None:
    result = fleets.Run(built(pictures, "fedproto", "int8-row")).finished().result
    assert summary(result)["encoding"] == {"class-rows": "int8-row"}
    assert "encoding: class-rows in int8-row" in run_table(result).notes


# -- who is kept out ------------------------------------------------------------------------------------------------


def test_an_upload_in_another_encoding_is_counted_and_changes_nothing(pictures: Path) -> None:
    fleet = built(pictures, "fedmd", "int8-row")
    clean = fleets.Run(fleet).finished()
    run = fleets.Run(fleet)
    run.slow_down("device-03", 10.0)
    sent = run.tap()
    rogue = run.hub.link("rogue")
    rogue.connect([])

    def forge() -> None:
        upload = next(message for message in sent if isinstance(message, Upload))
        logits = upload.knowledge["logits"]
        as_f4 = replace(logits, values=ENCODINGS["int8-row"].decode(logits.values))
        forged = replace(upload, device="device-03", knowledge={"logits": as_f4})
        rogue.send(topics.up("tiny", "device-03", "upd"), codec.encode(forged))

    run.clock.at(5.0, forge)
    run.finished()
    assert run.result.completed
    assert run.result.refused_frames == {"device-03": {"knowledge": 1, "refused": 1}}
    assert run.coordinator_bytes == clean.coordinator_bytes
    assert run.model_bytes == clean.model_bytes


def test_an_assign_in_another_encoding_is_counted_and_changes_nothing(pictures: Path) -> None:
    fleet = built(pictures, "fedmd", "int8-tensor")
    clean = fleets.Run(fleet).finished()
    run = fleets.Run(fleet)
    sent = run.tap()
    rogue = run.hub.link("rogue")
    rogue.connect([])

    def forge() -> None:
        assign = next(message for message in reversed(sent) if isinstance(message, Assign) and message.down)
        as_f2 = {
            role: replace(payload, values=ENCODINGS["f16"].encode(ENCODINGS["int8-tensor"].decode(payload.values)))
            for role, payload in assign.common.items()
        }
        forged = replace(assign, device="device-03", common=as_f2)
        rogue.send(topics.down("tiny", "device-03", "task"), codec.encode(forged, codec.Stamp(1, 10_000)))

    run.clock.at(0.7 * clean.clock.now_s, forge)
    run.finished()
    assert run.result.completed
    assert run.devices[3].participant.incoming.refused == {"knowledge": 1}
    assert run.model_bytes == clean.model_bytes


def speak_only_f32(run: fleets.Run, *devices: str) -> None:
    """Take the encodings out of what these devices say of themselves."""
    publish = run.hub.publish

    def older(sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> None:
        if sender.client_id in devices and topic.endswith("/hello"):
            said = codec.decode(bytes(frame))
            frame = codec.encode(replace(said.message, encodings=()), said.stamp)
        publish(sender, topic, frame, retain=retain)

    run.hub.publish = older  # type: ignore[method-assign]  # devices of an earlier version


def test_a_device_that_speaks_only_f32_is_refused_at_join(pictures: Path) -> None:
    run = fleets.Run(built(pictures, "fedmd", "int8-row", quorum=5))
    speak_only_f32(run, "device-03")
    run.finished()
    assert run.result.completed
    (refused,) = run.result.refused_devices
    assert (refused["device"], refused["reason"]) == ("device-03", "encoding")
    assert "int8-row" in refused["message"]
    assert "[encoding]" in refused["remedy"]
    assert run.devices[3].participant.refusal is not None


def test_a_device_that_speaks_only_f32_may_join_where_nothing_it_trades_is_encoded(pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedmd")
    tables["encoding"] = {"class_rows": "int8-row", "weights": "f16"}
    run = fleets.Run(settings.parse(tables, Path("test.toml")))
    speak_only_f32(run, *run.begun)
    assert run.finished().result.completed


def test_a_device_says_what_it_speaks(pictures: Path) -> None:
    run = fleets.Run(built(pictures, "local", "f32"))
    sent = run.tap()
    run.finished()
    assert {message.encodings for message in sent if isinstance(message, Hello)} == {("f16", "int8-row", "int8-tensor")}
    assert set(ENCODINGS) == {"f32", "f16", "int8-row", "int8-tensor"}


# -- numbers that do not fit ----------------------------------------------------------------------------------------


def test_a_device_whose_numbers_do_not_fit_withholds_them_and_says_why(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"count": 5, "model": "softmax"}, {"count": 1, "model": "fleets:teacher"}]
    logits = PredictOnly.logits
    monkeypatch.setattr(PredictOnly, "logits", lambda self, x: 1e5 * np.sign(logits(self, x)))
    run = fleets.Run(built(pictures, "fedmd", "f16", rows, quorum=5)).finished()
    assert run.result.completed
    (warning,) = (line for line in run.result.warnings if line.startswith("W17: device-05 withheld"))
    assert re.search("logits: .*100000, f16 .*65504", warning)


def test_a_coordinator_whose_numbers_do_not_fit_ends_the_run_and_says_why(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = FedMD.common

    def larger(method: FedMD, state: Any, at: ExchangeId) -> dict[str, Any]:
        found = common(method, state, at).items()
        return {role: replace(payload, values=np.full_like(payload.values, 1e6)) for role, payload in found}

    monkeypatch.setattr(FedMD, "common", larger)
    run = fleets.Run(built(pictures, "fedmd", "f16"))
    run.run()
    assert not run.result.completed
    assert re.search(r"^round \d: .*legal.* mean: .*f16 .*65504", run.result.reason)

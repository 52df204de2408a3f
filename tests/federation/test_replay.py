"""A run that was written down happens again, bit for bit: on the coordinator's side, and on a device's."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import fleets
import msgpack
import pytest
from deployment import Deployment

from coordinator import trace as traces
from coordinator.broker import EmbeddedBroker
from coordinator.equipment import Equipment
from coordinator.replay import replay
from coordinator.trace import Entry, Heard, Sent, Trace, TraceWriter, keeping
from coordinator.traced import state_hash
from edge_sdk.cli import main
from edge_sdk.errors import RunFailed, UsageError
from edge_sdk.protocol import codec
from edge_sdk.protocol.messages import Upload
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory import Faults
from edge_sim import config as configs
from edge_sim.replay_device import app_of

ROUGH = Faults(drop=0.15, duplicate=0.15, delay=0.3, delay_s=3.0, disconnect=0.02)
METHODS = ["fedmd", "fedproto", "fedavg", pytest.param("fedal", marks=pytest.mark.torch)]


NOTHING = Equipment(nets=list, public=lambda: None)


def record(path: Path, pictures: Path, method: str = "fedmd", *, cuts: tuple[float, ...] = (), **options: Any) -> Any:
    """A run that leaves a trace; the coordinator's power is cut at these moments."""
    tables = fleets.tables(pictures, method, devices=4)
    with keeping(path.parent, tables, Path("test.toml"), wanted=True, resume=False) as kept:
        run = fleets.Run(configs.parse(tables, Path("test.toml")), trace=kept, **options)
        for at_s in cuts:
            run.power_cut("coordinator", at_s=at_s, for_s=1.0)
        return run.finished()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / traces.NAME


@pytest.mark.parametrize("method", METHODS)
def test_every_frame_and_the_state_come_out_again(path: Path, pictures: Path, method: str) -> None:
    run = record(path, pictures, method, faults=ROUGH, seed=3, cuts=(2.0, 9.0))
    done = replay(Trace(path), NOTHING)
    assert (done.lives, done.ended, done.state) == (3, True, state_hash(run.server.method_state))
    assert done.frames > done.server.spec.rounds * 4
    for name in ("updates", "bytes_up", "bytes_down", "refused_frames"):
        assert getattr(done.server.record, name) == getattr(run.server.record, name)


def test_a_served_public_set_is_served_again(path: Path, pictures: Path) -> None:
    run = record(path, pictures, caches=path.parent)
    assert run.shelf is not None
    with pytest.raises(UsageError, match=r"give \[public\] path"):
        replay(Trace(path), NOTHING)
    assert replay(Trace(path), run.fleet.equipment).ended


@pytest.mark.parametrize("method", METHODS)
def test_each_device_makes_its_uploads_again(
    path: Path, pictures: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record(path, pictures, method)
    for device in ("device-00", "device-03"):
        assert main(["replay", str(path), "--device", device]) == 0
        said = capsys.readouterr().out
        assert said.startswith(device)
        assert "each equal" in said
        assert int(said.split()[1]) > 3


def is_upload(entry: Entry) -> bool:
    return (
        isinstance(entry, Heard)
        and isinstance(entry.event, Incoming)
        and isinstance(codec.decode(entry.event.frame).message, Upload)
    )


def test_a_frame_that_went_another_way_is_named(path: Path, pictures: Path) -> None:
    """What a device sent is changed in the trace: what went out after it no longer follows from it."""
    record(path, pictures)
    entries = list(Trace(path))
    lost = next(i for i, each in enumerate(entries) if is_upload(each))
    with pytest.raises(RunFailed, match="the run sent Receipt"):
        replay([*entries[:lost], *entries[lost + 1 :]], NOTHING)
    sent = next(i for i, each in enumerate(entries) if isinstance(each, Sent))
    with pytest.raises(RunFailed, match="the run nothing"):
        replay([*entries[:sent], *entries[sent + 1 :]], NOTHING)
    with pytest.raises(RunFailed, match="begins in the middle"):
        replay(entries[1:], NOTHING)


def test_a_trace_that_was_cut_off_replays_as_far_as_it_goes(
    path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(path, pictures)
    path.write_bytes(path.read_bytes()[:-7001])
    assert main(["replay", str(path)]) == 0
    assert "the trace ends before the run did" in capsys.readouterr().out


def test_going_on_begins_behind_the_last_whole_entry(path: Path, pictures: Path) -> None:
    record(path, pictures)
    path.write_bytes(path.read_bytes()[:-7001])
    whole = len(list(Trace(path)))
    with keeping(path.parent, {}, Path("test.toml"), wanted=True, resume=True) as kept:
        assert kept is not None
        kept.write(traces.Ticked(1.5))
    assert list(Trace(path))[whole:] == [traces.Ticked(1.5)]


def test_what_is_no_trace_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(contents: bytes | None, expected: str) -> None:
        path.unlink(missing_ok=True)
        if contents is not None:
            path.write_bytes(contents)
        assert main(["replay", str(path)]) == 2
        assert expected in capsys.readouterr().err

    refused(None, "No such file")
    refused(b"[federation]", "not a trace")
    refused(traces.MAGIC, "has no header")
    refused(traces.MAGIC + msgpack.packb({"trace": 9, "sdk": "7.0"}), "version 9, written by edge-sdk 7.0")
    TraceWriter(path, {}, Path("x")).close()
    header = path.read_bytes()
    refused(header + msgpack.packb(["dreamt", 1.0]), "an entry does not read")
    refused(header + b"\xc1", "damaged")


@pytest.mark.parametrize("option", ["--app", "--public"])
def test_what_is_only_about_a_device_is_refused_without_one(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path / "none.edgt"), option, "value"]) == 2
    assert f"{option}: of no use without --device" in capsys.readouterr().err


def test_a_device_that_cannot_be_made_again_is_named(path: Path, pictures: Path) -> None:
    record(path, pictures)
    with pytest.raises(UsageError, match="the run has device-00, device-01"):
        app_of(Trace(path).header, "device-77", None, None)


@pytest.mark.processes
@pytest.mark.broker
def test_real_processes_and_a_killed_coordinator(
    tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("amqtt")
    with EmbeddedBroker("amqtt") as broker, Deployment(tmp_path, pictures, broker.url, rounds=12) as deployment:
        deployment.start_coordinator("--trace")
        for device in deployment.devices:
            deployment.start_device(device)
        deployment.wait_for_round(4)
        assert deployment.end("coordinator", signal.SIGKILL) == -signal.SIGKILL
        deployment.start_coordinator("--trace", resume=True)
        assert deployment.finish()["completed"]
        trace = str(deployment.out / traces.NAME)
        assert main(["replay", trace]) == 0
        assert "12 rounds again" in capsys.readouterr().out
        assert main(["replay", trace, "--device", "device-01"]) == 2
        assert "give --app" in capsys.readouterr().err
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KIT", str(tmp_path / "kits" / "device-01"))
        assert main(["replay", trace, "--device", "device-01", "--app", "tiny_app:make"]) == 0
        assert "each equal to the recorded one" in capsys.readouterr().out

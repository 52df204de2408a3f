"""A run that was written down happens again, bit for bit: on the coordinator's side, and on a device's."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fleets
import msgpack
import pytest

from coordinator.ledger import Ledger
from coordinator.serving.equipment import Equipment
from coordinator.trace import log as traces
from coordinator.trace.log import (
    HEAD,
    ChecksumChain,
    Entry,
    FramesSent,
    Heard,
    LedgerRefused,
    Trace,
    TraceWriter,
    trace_writer,
)
from coordinator.trace.recording_server import state_hash
from coordinator.trace.replay import message_in, replay
from edge_sdk.agent.agent import Agent
from edge_sdk.agent.app import App
from edge_sdk.cli import main
from edge_sdk.device.store import MemoryStore
from edge_sdk.errors import RunFailed, StoreError, UsageError
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import Upload
from edge_sdk.transport.base import Incoming, Transport
from edge_sdk.transport.memory.hub import Faults
from edge_sim.clock.checkpoint import Checkpoints
from edge_sim.clock.store_parts import StoreParts
from edge_sim.config import settings
from edge_sim.replay.command import maker_of
from edge_sim.replay.device import History, Make, device_history, replay_device

ROUGH = Faults(drop=0.15, duplicate=0.15, delay=0.3, delay_s=3.0, disconnect=0.02)
METHODS = ["fedmd", "fedproto", "fedavg", pytest.param("fedal", marks=pytest.mark.torch)]


NOTHING = Equipment(nets=list, public=lambda: None)


def record(
    path: Path,
    pictures: Path,
    method: str = "fedmd",
    *,
    cuts: tuple[float, ...] = (),
    row: Mapping[str, Any] | None = None,
    federation: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A run that leaves a trace; the coordinator's power is cut at these moments.  row: more of its [[fleet]] row."""
    tables = fleets.tables(pictures, method, devices=4, **(federation or {}))
    tables["fleet"] = [{**tables["fleet"][0], **(row or {})}]
    with trace_writer(path.parent, tables, Path("test.toml"), wanted=True, resume=False, virtual=True) as kept:
        run = fleets.Run(settings.parse(tables, Path("test.toml")), trace=kept, **options)
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


def test_buffers_come_out_again(path: Path, pictures: Path) -> None:
    given = {"buffer": 2, "rounds": 30, "control": 0.5, "control_rounds": 6, "max_staleness": 6}
    row = {"board": "rpi4", "slow_share": 0.3, "slow_factor": 5.0}
    run = record(path, pictures, "fedavg", faults=ROUGH, seed=3, cuts=(2.0, 9.0), federation=given, row=row)
    done = replay(Trace(path), NOTHING)
    assert (done.lives, done.ended, done.state) == (3, True, state_hash(run.server.method_state))
    assert main(["replay", str(path), "--device", "device-03"]) == 0


def test_a_served_public_set_is_served_again(path: Path, pictures: Path) -> None:
    run = record(path, pictures, caches=path.parent)
    assert run.public_server is not None
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
    sent = next(i for i, each in enumerate(entries) if isinstance(each, FramesSent))
    with pytest.raises(RunFailed, match="the run nothing"):
        replay([*entries[:sent], *entries[sent + 1 :]], NOTHING)
    with pytest.raises(UsageError, match="begins in the middle"):
        replay(entries[1:], NOTHING)


@pytest.mark.parametrize("name", ["enrol", "commit", "close_exchange", "checkpoint"])
def test_what_the_disk_of_the_ledger_refused_is_refused_again(
    path: Path, pictures: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(None)
    call, calls = getattr(ledger, name), itertools.count()

    def refused_once(*values: Any, **named: Any) -> Any:
        if next(calls) == 1:
            raise StoreError(f"{name}: the disk is full")
        return call(*values, **named)

    setattr(ledger, name, refused_once)
    record(path, pictures, "fedavg", ledger=ledger)
    entries = list(Trace(path))
    assert [each.reason for each in entries if isinstance(each, LedgerRefused)] == [f"{name}: the disk is full"]
    assert main(["replay", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["refusals"] == 1
    with pytest.raises(RunFailed):
        replay([each for each in entries if not isinstance(each, LedgerRefused)], NOTHING)
    misplaced = [LedgerRefused(99, "") if isinstance(each, LedgerRefused) else each for each in entries]
    with pytest.raises(RunFailed, match="ledger"):
        replay(misplaced, NOTHING)


def test_a_trace_that_the_disk_refuses_ends_the_run_and_nothing_counts_twice(path: Path, pictures: Path) -> None:
    """A command that is half done, as a receipt that is not written down makes it, is not done again."""
    fleet = fleets.built(pictures, "fedproto", devices=2)
    with trace_writer(path.parent, {}, path, wanted=True, resume=False, virtual=True) as trace:
        assert trace is not None
        run = fleets.Run(fleet, trace=trace)
        write, folded = trace.write, run.server.record.contributed

        def refuses(entry: Entry) -> None:
            if isinstance(entry, FramesSent) and folded:
                raise StoreError("trace: No space left on device")
            write(entry)

        trace.write = refuses  # type: ignore[method-assign]  # a full disk
        with pytest.raises(StoreError, match="No space left"):
            run.run()
    assert set(folded.values()) == {1}
    assert sum(folded.values()) == run.server.record.updates["accepted"]


def test_a_trace_that_was_cut_off_replays_as_far_as_it_goes(
    path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(path, pictures)
    path.write_bytes(path.read_bytes()[:-7001])
    assert main(["replay", str(path)]) == 0
    assert capsys.readouterr().out.startswith("the trace ends before")
    assert main(["replay", str(path), "--device", "device-01"]) == 0
    assert capsys.readouterr().out.startswith("the trace ends before")


def test_going_on_begins_behind_the_last_whole_entry(path: Path, pictures: Path) -> None:
    record(path, pictures)
    path.write_bytes(path.read_bytes()[:-7001])
    whole = len(list(Trace(path)))
    with trace_writer(path.parent, {}, Path("test.toml"), wanted=True, resume=True) as kept:
        assert kept is not None
        kept.write(traces.Ticked(1.5))
    assert list(Trace(path))[whole:] == [traces.Ticked(1.5)]


@pytest.mark.parametrize("left", [0, 5, len(traces.MAGIC), 200])
def test_going_on_with_what_was_killed_before_its_header(path: Path, pictures: Path, left: int) -> None:
    record(path, pictures)
    path.write_bytes(path.read_bytes()[:left])
    with trace_writer(path.parent, {}, Path("test.toml"), wanted=True, resume=True):
        pass
    assert list(Trace(path)) == []


def test_what_is_damaged_is_not_gone_on_with(path: Path, pictures: Path) -> None:
    record(path, pictures)
    damaged = path.read_bytes() + bytes(9)
    path.write_bytes(damaged)
    with pytest.raises(UsageError, match="damaged"), trace_writer(path.parent, {}, path, wanted=True, resume=True):
        pass
    assert path.read_bytes() == damaged


def refused(path: Path, contents: bytes | None, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of it, in one line, by the coordinator's replay and a device's."""
    path.unlink(missing_ok=True)
    if contents is not None:
        path.write_bytes(contents)
    for more in ([], ["--device", "device-01"]):
        assert main(["replay", str(path), *more]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
    return said


def test_what_is_no_trace_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refused(path, None, capsys)
    assert "not a trace" in refused(path, b"[federation]", capsys)
    assert "ends before its header" in refused(path, traces.MAGIC, capsys)
    assert "it is not a header" in refused(path, traces.MAGIC + ChecksumChain().framed(msgpack.packb([7])), capsys)
    chain = ChecksumChain()
    header = chain.framed(msgpack.packb({**HEADER, "sdk": version("edge-sdk")}))
    dreamt = chain.framed(msgpack.packb(["dreamt", 1.0]))
    assert "not an entry of this version" in refused(path, traces.MAGIC + header + dreamt, capsys)


HEADER = {"trace": traces.VERSION, "sdk": "7.0", "tables": {}, "file": "x", "virtual": True}


def test_another_version_is_refused_with_both_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace of the same format is refused, too: what the other version did with the same events is not known here."""
    for written in (ChecksumChain().framed(msgpack.packb(HEADER)), msgpack.packb({**HEADER, "trace": 1})):
        said = refused(path, traces.MAGIC + written, capsys)
        assert "written by edge-sdk 7.0" in said
        assert f"this is edge-sdk {version('edge-sdk')}" in said


def test_damage_anywhere_is_called_damage(path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(path, pictures)
    whole = path.read_bytes()
    half = len(whole) // 2
    ends = [len(traces.MAGIC)]
    while ends[-1] < len(whole):
        ends.append(ends[-1] + HEAD.size + int.from_bytes(whole[ends[-1] + 4 : ends[-1] + 8], "little"))
    middle = ends[len(ends) // 2 : len(ends) // 2 + 3]
    damages = {
        "a flipped bit": whole[:half] + bytes([whole[half] ^ 4]) + whole[half + 1 :],
        "in a length": whole[: middle[0] + 7] + b"\x7f" + whole[middle[0] + 8 :],
        "bytes cut out": whole[:half] + whole[half + 400 :],
        "an entry cut out": whole[: middle[0]] + whole[middle[1] :],
        "two entries the other way round": whole[: middle[0]]
        + whole[middle[1] : middle[2]]
        + whole[middle[0] : middle[1]]
        + whole[middle[2] :],
        "a page of NULs": whole[: middle[0]] + bytes(1000) + whole[middle[0] + 1000 :],
        "NULs behind": whole + bytes(4096),
        "a NUL behind": whole + bytes(1),
        "trailing bytes": whole + b"junk",
    }
    for name, contents in damages.items():
        said = refused(path, contents, capsys)
        assert re.search(r"trace\.edgt: damaged .*byte \d+", said), name
        assert "Error" not in said, name


@pytest.mark.parametrize("option", ["--app", "--public"])
def test_what_is_only_about_a_device_is_refused_without_one(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path / "none.edgt"), option, "value"]) == 2
    assert re.search(f"{option}: .*without --device", capsys.readouterr().err)


def test_a_device_that_cannot_be_made_again_is_named(path: Path, pictures: Path) -> None:
    record(path, pictures)
    with pytest.raises(UsageError, match=r"device-77: .*device-00, device-01"):
        maker_of(Trace(path).header, History(), "device-77", None, None)


def again(path: Path) -> list[int]:
    """How many uploads each device makes again."""
    trace = Trace(path)
    found = []
    for device in sorted({device for device, _, _ in uploads(trace)}):
        past = device_history(trace, device, virtual=True)
        make, doubt = maker_of(trace.header, past, device, None, None)
        found.append(replay_device(past, device, make, doubt))
    return found


@pytest.mark.parametrize("lie", ["flip_signs", "noise"])
def test_a_device_that_lies_lies_again(path: Path, pictures: Path, lie: str) -> None:
    record(path, pictures, row={"byzantine": f"edge_sim.byzantine:{lie}"})
    assert again(path) == [4] * 4


def test_another_upload_is_called_different_or_told_why_it_may_be(path: Path, pictures: Path) -> None:
    record(path, pictures, row={"byzantine": "edge_sim.byzantine:flip_signs"})
    trace = Trace(path)
    past = device_history(trace, "device-01", virtual=True)
    honest, _ = maker_of(dataclasses.replace(trace.header, virtual=False), past, "device-01", None, None)
    with pytest.raises(RunFailed, match=r"device-01, .*exchange 0: logits differs"):
        replay_device(past, "device-01", honest)
    with pytest.raises(UsageError, match=r"device-01, .*exchange 0: .*stacked"):
        replay_device(past, "device-01", honest, "it was stacked")


def test_a_device_draws_its_noise_again(path: Path, pictures: Path) -> None:
    tables = fleets.tables(pictures, "fedhkd", devices=4)
    noise = {"noise_features": 0.5, "noise_soft": 0.5, "noise_counts": 0.5}
    tables["method"] = noise
    with trace_writer(path.parent, tables, Path("test.toml"), wanted=True, resume=False, virtual=True) as kept:
        fleets.Run(settings.parse(tables, Path("test.toml")), trace=kept).finished()
    assert again(path) == [4] * 4


@pytest.mark.parametrize("method", ["fedmd", "fedproto"])
def test_devices_that_lose_power_and_are_overtaken(path: Path, pictures: Path, method: str) -> None:
    """Each takes up only what it finished; of some of that no upload ever came."""
    federation = {"rounds": 8, "quorum": 1, "deadline_s": 2.0, "patience": 20}
    row = {"dropout": 0.4, "dropout_s": 3.0, "slow_share": 0.3, "slow_factor": 40.0}
    record(path, pictures, method, federation=federation, row=row, faults=ROUGH, seed=5, cuts=(3.0,))
    past = device_history(Trace(path), "device-01", virtual=True).stretches[0]
    assert past.assigns.keys() - past.uploads.keys(), "nothing went wrong here"
    assert sum(again(path)) == len(uploads(Trace(path)))


def test_an_app_is_switched_on_again_where_uploads_never_came(
    path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app has one model, as on a board: each attempt of the search begins with it anew."""
    federation = {"rounds": 8, "quorum": 1, "deadline_s": 2.0, "patience": 20}
    row = {"dropout": 0.4, "dropout_s": 3.0, "slow_share": 0.3, "slow_factor": 40.0}
    run = record(path, pictures, federation=federation, row=row, faults=ROUGH, seed=5, cuts=(3.0,))
    switched_on: list[str] = []
    heard = {name for name, _, _ in uploads(Trace(path))}
    devices = [each for each in run.fleet.devices if each.kit.id in heard]
    for device in devices:
        app = App(model=device.kit.model(device.public), data=device.data, public=device.public, disclose_classes=True)
        monkeypatch.setitem(sys.modules, "one_model", SimpleNamespace(make=lambda app=app: app))
        past = device_history(Trace(path), device.kit.id, virtual=True)
        make, doubt = maker_of(Trace(path).header, past, device.kit.id, "one_model:make", None)
        replay_device(past, device.kit.id, partial(_counted, make, switched_on), doubt)
    assert len(switched_on) > len(devices), "no attempt failed here"


def _counted(make: Make, calls: list[str], line: Transport, store: MemoryStore) -> Agent:
    agent = make(line, store)
    calls.append(agent.participant.context.device)
    return agent


def uploads(trace: Trace) -> set[tuple[str, int, int]]:
    """Device, round and exchange of each that came."""
    events = (each.event for each in trace if isinstance(each, Heard))
    messages = (message_in(each.frame) for each in events if isinstance(each, Incoming))
    return {(each.device, each.round, each.exchange) for each in messages if isinstance(each, Upload)}


@pytest.mark.torch
def test_torch_computes_in_one_thread_again(path: Path, pictures: Path) -> None:
    torch = pytest.importorskip("torch")
    tables = {**fleets.tables(pictures, "fedproto", devices=2), "fleet": [{"count": 2, "model": "mlp"}]}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        TraceWriter(path, tables, Path("test.toml"), resume=False, virtual=True).close()
        maker_of(Trace(path).header, History(), "device-00", None, None)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_run_that_went_back_to_a_checkpoint(path: Path, pictures: Path) -> None:
    """A simulation that was killed goes on from before: devices unlearn what they did since."""
    tables = fleets.tables(pictures, devices=4, rounds=6)
    parsed = settings.parse(tables, Path("test.toml"))
    folder = path.parent / "checkpoint"
    with trace_writer(path.parent, tables, Path("test.toml"), wanted=True, resume=False, virtual=True) as kept:
        first = fleets.Run(parsed, trace=kept)
        checkpoints = Checkpoints(folder)
        first.clock.at(
            0.05, lambda: checkpoints.save(first.server.ledger, partial(copy_stores, first), first.to_json())
        )
        first.finished()
    ledger, stores, state = checkpoints.load()
    with trace_writer(path.parent, tables, Path("test.toml"), wanted=True, resume=True, virtual=True) as kept:
        second = fleets.Run(parsed, trace=kept, ledger=ledger, stores=stores, faults=ROUGH, seed=1, state=state)
        second.finished()
    assert replay(Trace(path), NOTHING).ended
    assert len(device_history(Trace(path), "device-01", virtual=True).stretches) == 2
    assert min(again(path)) > 7


def copy_stores(run: fleets.Run, folder: Path, last: Path) -> None:
    StoreParts(0, {}).save(folder, last, {each.device.kit.id: each.store for each in run.devices})

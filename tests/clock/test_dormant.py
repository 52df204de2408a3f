"""Devices without work yet have no agent in memory, and a run with them has the bits of one in which all are awake."""

from __future__ import annotations

import hashlib
import shutil
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fleets
import pytest

from coordinator.ledger import Ledger
from coordinator.results.report.run_table import run_table
from coordinator.results.report.summary import summary
from edge_sdk.errors import StoreError, UsageError
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport.memory.hub import Faults
from edge_sim.clock.checkpoint import Checkpoints
from edge_sim.clock.dormant import EXAMPLES, Dormant, DormantKinds
from edge_sim.clock.virtual_device import VirtualDevice
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.config import settings
from edge_sim.data.sources import npz
from edge_sim.fleet import feasible
from edge_sim.fleet.feasible import DORMANT_FROM
from edge_sim.fleet.fleet import Fleet, build_fleet
from edge_sim.runs.runner import run

NEVER, ALWAYS = 10**9, 1
DEVICES = 12


def parsed(pictures: Path, method: str = "fedmd", **tables: Any) -> settings.Config:
    """A run of twelve devices, three of them in each round."""
    plain = fleets.tables(pictures, method, DEVICES, participants=3)
    for name, table in tables.items():
        plain[name] = {**plain.get(name, {}), **table} if isinstance(table, dict) else table
    return settings.parse(plain, Path("test.toml"))


def course(fleet: Fleet, dormant_from: int, faults: Faults | None = None) -> tuple[list[str], float, list[bytes], str]:
    """Run to the end; return the frames, the time, the models and the costs, which tell two runs apart."""
    run = fleets.Run(fleet, faults=faults, seed=3, dormant_from=dormant_from, most_awake=1, memory_bytes=0)
    assert sum(each.dormant for each in run.devices) == (DEVICES - EXAMPLES if dormant_from == ALWAYS else 0)
    frames: list[str] = []

    def note(frame: Frame) -> None:
        frames.append(hashlib.sha256(bytes(frame)).hexdigest())

    run.hub.on_publish = note
    run.finished()
    models = [each.participant.context.bench.state_bytes() for each in run.devices]
    return frames, run.clock.now_s, models, str(run.to_json()["hardware"])


@pytest.mark.parametrize(
    ("method", "faults"),
    [
        ("fedmd", Faults()),
        ("fedavg", Faults(drop=0.1)),
        ("fedproto", Faults(disconnect=0.05, disconnect_s=2.0)),
        ("fedavg", Faults(duplicate=0.2, delay=0.3, delay_s=1.0)),
    ],
)
def test_a_run_with_dormant_devices_has_the_same_bits(pictures: Path, method: str, faults: Faults) -> None:
    fleet = build_fleet(parsed(pictures, method))
    assert course(fleet, ALWAYS, faults) == course(fleet, NEVER, faults)


@pytest.mark.parametrize("row", [{"power_cuts_per_day": 50_000, "power_cut_s": 0.5}, {"dropout": 0.3, "dropout_s": 1}])
def test_a_dormant_device_loses_its_power_as_another_does(pictures: Path, row: dict[str, Any]) -> None:
    rows = [{"count": DEVICES, "model": "softmax", **row}]
    fleet = build_fleet(parsed(pictures, fleet=rows))
    assert course(fleet, ALWAYS) == course(fleet, NEVER)


def test_only_devices_with_work_wake(pictures: Path) -> None:
    run = fleets.Run(parsed(pictures, run={"measured": 2, "standalone": False}), dormant_from=ALWAYS).finished()
    awake = [each.device.kit.id for each in run.devices if not each.dormant]
    assert EXAMPLES <= len(awake) < DEVICES
    assert all(each.over for each in run.devices)
    assert [device.kit.id for device, _ in run.models()] == awake


def test_a_device_sleeps_again_after_its_work_and_keeps_its_model_on_disk(pictures: Path) -> None:
    run = fleets.Run(parsed(pictures, "fedproto"), dormant_from=ALWAYS, most_awake=1, memory_bytes=0)
    slept: dict[str, bytes] = {}
    wake_up = VirtualDevice._wake_up

    def woke(device: VirtualDevice, dormant: Dormant) -> None:
        if dormant.left is not None:
            slept[device.device.kit.id] = device.store.round_start().model
        wake_up(device, dormant)
        if dormant.left is not None:
            assert device.bench.state_bytes() == slept[device.device.kit.id]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(VirtualDevice, "_wake_up", woke)
        run.finished()
    assert slept


def test_a_disk_that_takes_no_models_ends_the_run_in_one_line(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    run = fleets.Run(parsed(pictures, "fedproto"), dormant_from=ALWAYS, most_awake=1, memory_bytes=0)
    with pytest.raises(StoreError, match=r"^run\.memory_bytes: .* No space left on device; free space there"):
        run.finished()


@pytest.mark.parametrize(
    ("tables", "line"),
    [
        (
            {"run": {"memory_bytes": 1}},
            r"^run\.memory_bytes: the weights and moments of sleeping devices need about .* 10 bytes free",
        ),
        ({}, r"^--out: the stores of the devices that have worked need about .*run, which has 10 bytes free"),
        ({"data": {}}, r"^test\.toml: data\.path: .*pictures\.npz: its arrays take .*, and this machine has 0 MiB"),
        (
            {"federation": {"participants": 13}},
            r"^test\.toml: federation\.participants: expected at most the 12 devices",
        ),
        ({"partition": {"min_samples": 90}}, r"^test\.toml: partition\.min_samples: 12 devices with 90 samples each"),
    ],
)
def test_what_cannot_be_is_refused_before_a_device_is_built(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: dict[str, Any], line: str
) -> None:
    monkeypatch.setattr(feasible, "DORMANT_FROM", ALWAYS)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=10))
    if "data" in tables:
        monkeypatch.setattr(npz, "machine_bytes", lambda: 1000)
    monkeypatch.setattr(VirtualDevice, "__init__", lambda *_parts, **_names: pytest.fail("a device was built"))
    with pytest.raises(UsageError, match=line):
        run(parsed(pictures, **tables), out=None if tables else tmp_path / "run")


def test_a_folder_for_sleeping_devices_that_is_none_is_refused(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would take the system's own folder without a word."""
    monkeypatch.setattr(feasible, "DORMANT_FROM", ALWAYS)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(UsageError, match=r"^TMPDIR: .*none is not a folder"):
        run(parsed(pictures, run={"memory_bytes": 1000}))


def test_devices_whose_models_are_the_users_own_are_awake(pictures: Path) -> None:
    """Two nets of one function may differ in more than their weights."""
    fleet = build_fleet(parsed(pictures))
    brought = [replace(each, kit=replace(each.kit, family="mine:make")) for each in fleet.devices]
    assert fleet.devices[0].kit.brought == ()
    kinds = DormantKinds()
    run = fleets.Run(fleet)
    for each in run.devices[:EXAMPLES]:
        kinds.add(each)
    assert kinds.words(fleet.devices[5]) is kinds.words(fleet.devices[6]) is not None
    assert kinds.words(brought[5]) is None
    assert kinds.words(replace(fleet.devices[5], kit=replace(fleet.devices[5].kit, board="rpi-zero-2w"))) is None


def test_a_small_fleet_is_awake_from_the_start(pictures: Path) -> None:
    assert DORMANT_FROM > DEVICES
    assert not any(each.dormant for each in fleets.Run(parsed(pictures)).devices)


@pytest.mark.parametrize("method", ["fedmd", "fedavg", "fedproto", "fd"])
def test_a_checkpoint_keeps_that_devices_are_dormant(method: str, pictures: Path, tmp_path: Path) -> None:
    fleet = build_fleet(parsed(pictures, method, run={"measured": 2, "standalone": False}))
    whole = VirtualFleet(fleet, ledger=Ledger(None), dormant_from=ALWAYS)
    whole.run()
    checkpoints = Checkpoints(tmp_path / "checkpoint")
    cut = VirtualFleet(fleet, ledger=Ledger(None), dormant_from=ALWAYS, checkpoints=checkpoints)

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    begun_s = whole.server.record.started_s
    assert begun_s is not None
    cut.clock.at((begun_s + whole.clock.now_s) / 2, stop)
    with pytest.raises(Stop):
        cut.run()
    cut.close()
    assert any(each.dormant for each in cut.devices)
    ledger, stores, state = checkpoints.load()
    asleep = {each.device.kit.id for each in cut.devices if each.dormant}
    assert asleep == {*state["dormant"]}
    assert not asleep & stores.keys()
    assert len(stores) > EXAMPLES
    assert {each.name for each in checkpoints.folder.iterdir()} == {"ledger.db", "world.json", "0-1.stores"}
    resumed = VirtualFleet(
        fleet, ledger=ledger, stores=stores, state=state, dormant_from=ALWAYS, most_awake=1, memory_bytes=0
    )
    begin_asleep = {each.device.kit.id for each in resumed.devices if each.sleeps}
    assert asleep < begin_asleep  # those that had had work and rested, too
    resumed.run()
    assert any(each.sleeps for each in resumed.devices if each.device.kit.id in stores)
    found, expected = (
        {each.device.kit.id: each.participant.context.bench.state_bytes() for each in run.devices}
        for run in (resumed, whole)
    )
    assert found == expected


# -- a sample is measured --------------------------------------------------------------------------------------------


def test_a_sample_of_devices_is_measured_and_the_run_says_so(pictures: Path) -> None:
    plain = fleets.tables(pictures, "fedavg", DEVICES, participants=3)
    plain["run"] = {"measured": 4}
    plain["train"]["evaluate_every"] = 3
    result = run(plain)
    known = [each.id for each in result.devices if each.accuracy is not None]
    assert len(known) == 4
    assert all(round_.accuracy.keys() <= {*known} for round_ in result.history)
    assert [each.id for each in result.devices if each.standalone_accuracy is not None] == known
    assert any(each.startswith("4 of 12 devices are measured, drawn by the seed") for each in result.warnings)
    assert not any("never reported" in each or "earlier accuracy" in each for each in result.warnings)
    values = [each.accuracy for each in result.devices if each.accuracy is not None]
    half = 3.18245 * statistics.stdev(values) / 2 * (8 / 12) ** 0.5  # Student's t for 3 degrees of freedom
    assert summary(result)["accuracy"]["sampling_error"] == pytest.approx(half, rel=1e-5)
    table = run_table(result, most_rows=10)
    assert table.rows == ()
    assert f"own models of {len(known)} devices: " in table.notes[0]
    assert "half up to" in table.notes[0]
    took_part = sum(each.rounds_done > 0 for each in result.devices if each.id in known)
    sample = f"a sample of 4 of 12, {took_part} of which took part"
    gains = [
        each.accuracy - each.standalone_accuracy for each in result.devices if each.standalone_accuracy is not None
    ]
    gain_half = 3.18245 * statistics.stdev(gains) / 2 * (8 / 12) ** 0.5
    assert f" points; {sample}: ± {100 * gain_half:.1f} points, 95 %)" in table.headline
    plain["run"] = {"measured": 4, "standalone": False}
    assert f"({sample}: ± {100 * half:.1f} points, 95 %)" in run_table(run(plain), most_rows=10).headline
    assert len(run_table(result, most_rows=DEVICES).rows) == DEVICES


@pytest.mark.parametrize(("devices", "measured"), [(1000, 1000), (1001, 200), (100_000, 200)])
def test_of_very_many_devices_a_sample_is_measured_by_default(devices: int, measured: int) -> None:
    assert settings.RunTable().measured_of(devices) == measured
    assert settings.RunTable(measured="all").measured_of(devices) == devices
    assert settings.RunTable(measured=50).measured_of(devices) == 50


@pytest.mark.parametrize("wrong", [0, 1, "some", 2.5])
def test_a_wrong_sample_is_refused_in_one_line(pictures: Path, wrong: object) -> None:
    with pytest.raises(UsageError, match=r"^test\.toml: run\.measured: "):
        parsed(pictures, run={"measured": wrong})

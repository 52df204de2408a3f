"""Disks that are full for a while, on either side: the round is kept and tried again, and nothing comes out differently."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import fleets
import numpy as np
import pytest

from coordinator.ledger import Ledger
from edge_sdk.cli import main
from edge_sdk.device.store import MemoryStore, SqliteStore
from edge_sdk.errors import StoreError, UsageError

METHODS = ["fedmd", pytest.param("fedal", marks=pytest.mark.torch), "fedproto", "fedssa"]


class Notes(list[str]):
    """An observer that remembers what was said."""

    def joined(self, *_: object) -> None:
        """Do nothing."""

    begun = turned_away = round_done = opened = waited = joined

    def noted(self, message: str) -> None:
        self.append(message)


class Fickle:
    """Refuses now and then, as a full disk does: nothing of the transaction is kept."""

    def __init__(self, seed: int, share: float) -> None:
        self._rng, self._share, self.refusals = np.random.default_rng(seed), share, 0

    def ask(self) -> None:
        if self._rng.random() < self._share:
            self.refusals += 1
            raise StoreError("state.db: database or disk is full; check free space and the folder's rights")


class FickleLedger(Ledger):
    """Without a file; refuses in every write but those that open it."""

    def __init__(self, disk: Fickle) -> None:
        super().__init__(None)
        self.disk = disk

    def enrol(self, device: str, number: int | None, hello: bytes) -> int:
        self.disk.ask()
        return super().enrol(device, number, hello)

    def commit(self, rows: Any) -> None:
        rows = list(rows)
        self.disk.ask()
        super().commit(rows)

    def checkpoint(self, *arguments: Any, **more: Any) -> None:
        self.disk.ask()
        super().checkpoint(*arguments, **more)


class FickleStore(MemoryStore):
    """Refuses an exchange; what is written before the first one is a matter of starting."""

    disk: Fickle

    def save(self, *arguments: Any) -> None:
        self.disk.ask()
        super().save(*arguments)


@pytest.fixture(scope="module")
def clean(pictures: Path) -> dict[str, fleets.Run]:
    return {
        name: fleets.Run(fleets.built(pictures, name)).finished() for name in ("fedmd", "fedal", "fedproto", "fedssa")
    }


def same(run: fleets.Run, clean: fleets.Run) -> None:
    assert run.result.completed, run.result.reason
    assert run.coordinator_bytes == clean.coordinator_bytes
    assert run.model_bytes == clean.model_bytes
    assert [r.round for r in run.result.history] == [r.round for r in clean.result.history]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", METHODS)
def test_disks_that_refuse_now_and_then(pictures: Path, clean: dict[str, fleets.Run], method: str, seed: int) -> None:
    ledger = FickleLedger(Fickle(seed, 0.4))
    fleet = fleets.built(pictures, method)
    stores = {device.kit.id: FickleStore() for device in fleet.devices}
    for number, store in enumerate(stores.values()):
        store.disk = Fickle(100 * seed + number, 0.4)
    run = fleets.Run(fleet, ledger=ledger, stores=stores)
    same(run.finished(), clean[method])
    assert ledger.disk.refusals > 0
    assert sum(store.disk.refusals for store in stores.values()) > 0


@pytest.mark.parametrize("full", ["coordinator", "devices", "everybody"])
def test_a_disk_that_is_full_for_half_a_minute(
    pictures: Path, tmp_path: Path, clean: dict[str, fleets.Run], full: str
) -> None:
    """The kernel refuses, for files that are on disk; the other side keeps its state in memory."""
    fleet = fleets.built(pictures)
    ledger = Ledger(None if full == "devices" else tmp_path / "ledger.db")
    on_disk = {device.kit.id: SqliteStore(tmp_path / f"{device.kit.id}.db") for device in fleet.devices}
    run = fleets.Run(fleet, ledger=ledger, stores={} if full == "coordinator" else on_disk)
    run.server.observer = notes = Notes()
    for device in run.devices:
        run.slow_down(device.device.kit.id, 10.0)
        device.agent.on_link(notes.append)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    run.clock.at(5.0, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1])))
    run.clock.at(35.0, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))
    try:
        run.finished()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        for store in on_disk.values():
            store.close()
    same(run, clean["fedmd"])
    assert run.clock.now_s > 60.0  # three rounds of 10 s, and half a minute lost
    said = [note for note in notes if "check free space" in note]
    assert any("ledger.db" in note for note in said) == (full == "coordinator")  # else no upload comes
    assert any("round 0 is kept" in note for note in said) == (full != "coordinator")


def test_an_exchange_that_closes_without_somebody_waits_for_the_disk(pictures: Path) -> None:
    """Who it closed with must be durable before anybody learns of it."""
    ledger = FickleLedger(Fickle(1, 0.0))
    run = fleets.Run(fleets.built(pictures, quorum=4, deadline_s=20.0), ledger=ledger)
    run.server.observer = notes = Notes()
    run.power_cut("device-05", at_s=0.0001, for_s=500.0)
    run.clock.at(19.0, lambda: setattr(ledger.disk, "_share", 1.0))
    run.clock.at(41.0, lambda: setattr(ledger.disk, "_share", 0.0))
    run.finished()
    assert run.result.completed
    assert any("next try in 5 s" in note for note in notes)
    assert len(run.result.history) == 3


def test_no_round_is_given_up_while_the_ledger_cannot_be_written(pictures: Path, clean: dict[str, fleets.Run]) -> None:
    """Every upload is needed, and the disk is full for many deadlines."""
    ledger = FickleLedger(Fickle(1, 0.0))
    run = fleets.Run(fleets.built(pictures, deadline_s=8.0, quorum=6), ledger=ledger)
    run.server.observer = notes = Notes()
    status: list[str] = []
    for device in run.devices:
        run.slow_down(device.device.kit.id, 3.0)
    run.clock.at(2.0, lambda: setattr(ledger.disk, "_share", 1.0))
    run.clock.at(150.0, lambda: status.append(run.server._report.run()))
    run.clock.at(200.0, lambda: setattr(ledger.disk, "_share", 0.0))
    same(run.finished(), clean["fedmd"])
    assert "which refuses writes" in status[0]
    told = [note for note in notes if "disk is full" in note]
    assert 1 <= len(told) <= 4  # at once, and then every minute
    assert "next try in 5 s" in told[0]
    assert notes.count("the ledger is writable again; the round continues") == 1


def test_the_broker_is_freed_of_uploads_that_the_disk_refuses(pictures: Path) -> None:
    """It stops delivering after a few that nobody acknowledges."""
    ledger = FickleLedger(Fickle(1, 0.0))
    run = fleets.Run(fleets.built(pictures), ledger=ledger)
    acknowledged = []
    handle = run.server.handle

    def counted(event: Any, now_s: float) -> None:
        if hasattr(event, "acknowledge"):
            event = type(event)(event.topic, event.frame, lambda: acknowledged.append(event.topic))
            received.append(event.topic)
        handle(event, now_s)

    received: list[str] = []
    run.server.handle = counted  # type: ignore[method-assign]  # to look on
    run.clock.at(0.001, lambda: setattr(ledger.disk, "_share", 1.0))
    run.clock.at(30.0, lambda: setattr(ledger.disk, "_share", 0.0))
    run.finished()
    assert ledger.disk.refusals > 0
    assert sorted(acknowledged) == sorted(received)


def test_a_device_says_so_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "small_app.py").write_text(
        "import numpy as np, edge_sdk\n"
        "def make():\n"
        "    samples = edge_sdk.Samples(np.zeros((8, 4, 4), np.float32), np.zeros(8, np.int64))\n"
        "    model = edge_sdk.NumpyModel(4, (1, 4, 4), seed=0)\n"
        "    return edge_sdk.App(model=model, data=edge_sdk.LocalData(train=samples, test=samples))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["--federation", "lab", "--app", "small_app:make", "--id", "d", "--state", "file/state"]
    assert main(["device", "--broker", "mqtt://127.0.0.1:9", *arguments]) == StoreError.exit_code
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].endswith("rights and free space")
    assert "file/state" in said[-1]
    assert not any("broker" in line for line in said)


def test_a_coordinator_says_so_before_anybody_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "lab.toml").write_text(
        '[federation]\nname = "lab"\nmethod = "local"\nrounds = 1\ndevices = 1\nclasses = 4\n'
    )
    monkeypatch.chdir(tmp_path)
    code = main(["coordinator", "lab.toml", "--broker", "mqtt://127.0.0.1:9", "--out", "file/run"])
    assert code == UsageError.exit_code
    assert "--out file/run: " in capsys.readouterr().err.strip().splitlines()[-1]

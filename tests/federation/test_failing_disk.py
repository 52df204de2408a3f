"""One disk operation of the coordinator fails, once: nothing is lost, nothing counts twice, and the bits are the same.

Each statement that SQLite is given is such an operation, those that open the ledger included.  One run after the other
has each of them fail, for each kind of reduction.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import fleets
import pytest

from coordinator.ledger import Ledger
from coordinator.rounds import Fold, RoundCommand, RoundEvent, RoundPhase, RoundState
from coordinator.rounds.queue import RoundQueue
from coordinator.serving.aggregation import Aggregation
from edge_sdk.device.store import Store
from edge_sdk.durable import as_store_error
from edge_sdk.errors import RunFailed, StoreError
from edge_sdk.protocol.messages import Upload
from edge_sim.config import settings
from edge_sim.fleet import fleet as sim_fleets
from edge_sim.fleet.fleet import Fleet

KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bag": ("fedproto", {}, {"rounds": 2}),
    "sum": ("fedavg", {}, {"rounds": 2}),
    "slots": ("fedavg", {"cached": True, "max_slot_age": 1}, {"rounds": 4, "participants": 2, "seed": 8}),
}
"""By what uploads are added up in: a method, its parameters and keys of [federation].

Of the slots, that of device-01 is given up for its age.
"""
COMPUTE_S = {"device-00": 12.0, "device-01": 10.0, "device-02": 10.0}
"""The uploads of the last two come in one group, which shares a commit; so do all that the disk held up."""
STOP_S = {"bag": 23.0, "sum": 23.0, "slots": 31.0}
"""When the coordinator's first life ends, in virtual seconds: in the middle of a round."""


def fleet_of(pictures: Path, kind: str) -> Fleet:
    """Three devices; a run begins when all have joined."""
    method, params, federation = KINDS[kind]
    tables = fleets.tables(pictures, method, devices=3, **{"start": "own", "join_grace_s": 60.0, **federation})
    tables["train"]["local_steps"] = 1
    return sim_fleets.build_fleet(settings.parse({**tables, "method": params}, Path("test.toml")))


# -- a disk that fails ----------------------------------------------------------------------------------------------


@dataclass
class Disk:
    """Lists what it is asked for, and fails once."""

    fails_at: int = -1
    too_late: bool = False
    """Whether it says no to what it has done."""
    operations: list[str] = field(default_factory=list)

    def carry_out(self, operation: str, act: Callable[[], Any]) -> Any:
        self.operations.append(operation)
        fails = len(self.operations) - 1 == self.fails_at
        result = act() if self.too_late or not fails else None
        if fails:
            raise sqlite3.OperationalError("disk I/O error")
        return result


QUICK = {"PRAGMA journal_mode=WAL": "PRAGMA journal_mode=MEMORY", "PRAGMA synchronous=FULL": "PRAGMA synchronous=OFF"}
"""In place of what waits for the real disk."""


class Connection(sqlite3.Connection):
    """To a database on such a disk."""

    disk: Disk

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        plain = super().execute
        statement = QUICK.get(statement, statement)
        return self.disk.carry_out(statement, lambda: plain(statement, *values))

    def executemany(self, statement: str, *values: Any) -> sqlite3.Cursor:
        plain = super().executemany
        return self.disk.carry_out(statement, lambda: plain(statement, *values))

    def executescript(self, statement: str) -> sqlite3.Cursor:
        plain = super().executescript
        return self.disk.carry_out(statement, lambda: plain(statement))


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    Connection.disk = Disk()
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))


def on_disk(path: Path, disk: Disk) -> Ledger:
    Connection.disk = disk
    return Ledger(path)


def in_memory(disk: Disk) -> Ledger:
    """The ledger of a simulation, where SQLite sees few of the writes: they fail as a whole."""
    Connection.disk = Disk()
    ledger = Ledger(None)
    for name in ("bind", "enrol", "commit", "close_exchange", "checkpoint"):
        setattr(ledger, name, partial(_refusable, disk, name, getattr(ledger, name)))
    return ledger


def _refusable(disk: Disk, name: str, write: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    with as_store_error(None):
        return disk.carry_out(name, lambda: write(*arguments, **named))


# -- a run on it ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Came:
    """What came of a run, and must be the same to the bit."""

    method: bytes
    checkpoint: bytes
    slots: list[str]
    """Devices that have one."""
    models: dict[str, bytes]
    accuracy: dict[int, dict[str, float]]
    """By completed rounds, then device."""
    contributors: list[int]
    rounds_done: dict[str, int]
    accepted: int


class Stopped(BaseException):
    """The coordinator's process is gone."""


def played(fleet: Fleet, open_ledger: Callable[[], Ledger], stop_s: float | None = None) -> Came:
    """A run; with stop_s, the coordinator stops then, and goes on from its file."""
    run = begun(fleet, open_ledger, {}, None)
    if stop_s is not None:
        run.clock.at(stop_s, stop)
    try:
        run.run()
    except Stopped:
        run.server.ledger.close()
        stores = {each.device.kit.id: each.participant.context.store for each in run.devices}
        run = begun(fleet, open_ledger, stores, run.to_json())
        run.run()
    assert run.server.rounds.phase is RoundPhase.DONE, run.server.rounds.reason
    return what_came(run)


def begun(
    fleet: Fleet, open_ledger: Callable[[], Ledger], stores: dict[str, Store], world: dict[str, Any] | None
) -> fleets.Run:
    """Where the disk will not have it, the coordinator is started again."""
    for _ in range(2):
        ledger = None
        try:
            ledger = open_ledger()
            run = fleets.Run(fleet, ledger=ledger, stores=stores, state=world)
        except StoreError:
            if ledger is not None:
                ledger.close()
            continue
        for device in run.devices:
            run.slow_down(device.device.kit.id, COMPUTE_S[device.device.kit.id])
        return run
    raise AssertionError("this disk fails only once")


def stop() -> None:
    raise Stopped


def what_came(run: fleets.Run) -> Came:
    Connection.disk = Disk()
    record, checkpoint = run.server.record, run.server.ledger.last_checkpoint()
    slots = [device for device in sorted(run.server.hellos) if run.server.ledger.slot(device) is not None]
    run.server.close()
    assert checkpoint is not None
    return Came(
        method=run.coordinator_bytes,
        checkpoint=checkpoint.state,
        slots=slots,
        models=run.model_bytes,
        accuracy=record.accuracy,
        contributors=[each.contributors for each in record.rounds],
        rounds_done=dict(record.rounds_done),
        accepted=record.updates["accepted"],
    )


def harmful(
    pictures: Path,
    kind: str,
    folder: Path,
    *,
    memory: bool = False,
    too_late: bool = False,
    only: str = "",
    every: int = 1,
) -> Iterator[str]:
    """The operations that, when they fail, change what comes of a run.

    only: those of this name.  every: besides the first of each name, one in so many.
    """
    fleet, numbers = fleet_of(pictures, kind), itertools.count()

    def play(disk: Disk) -> Came:
        if memory:
            return played(fleet, partial(in_memory, disk))
        return played(fleet, partial(on_disk, folder / f"{next(numbers)}.db", disk), STOP_S[kind])

    sound = Disk()
    clean = play(sound)
    assert sound.operations
    for at, operation in enumerate(sound.operations):
        if only not in ("", operation) or (at % every and operation in sound.operations[:at]):
            continue
        failing = Disk(at, too_late)
        try:
            same = play(failing) == clean
        except (AssertionError, RunFailed):  # it never ended, or ended badly
            same = False
        assert len(failing.operations) > at, "a run is not repeatable"
        if not same:
            yield f"{at}: {operation}"


# -- the proof ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_operation_of_any_name_may_fail(pictures: Path, tmp_path: Path, kind: str) -> None:
    assert list(harmful(pictures, kind, tmp_path, every=80)) == []


@pytest.mark.long
@pytest.mark.timeout(900)  # a run for each of some hundred operations
@pytest.mark.parametrize("kind", KINDS)
def test_any_operation_may_fail(pictures: Path, tmp_path: Path, kind: str) -> None:
    assert list(harmful(pictures, kind, tmp_path)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_any_commit_may_be_done_and_yet_fail(pictures: Path, tmp_path: Path, kind: str) -> None:
    assert list(harmful(pictures, kind, tmp_path, too_late=True, only="COMMIT")) == []


@pytest.mark.parametrize("kind", KINDS)
def test_any_write_of_a_simulation_may_fail(pictures: Path, tmp_path: Path, kind: str) -> None:
    assert list(harmful(pictures, kind, tmp_path, memory=True)) == []


def test_the_runs_read_and_write_whatever_a_ledger_holds(pictures: Path, tmp_path: Path) -> None:
    disk = Disk()
    came = played(fleet_of(pictures, "slots"), partial(on_disk, tmp_path / "ledger.db", disk), STOP_S["slots"])
    assert came.slots == ["device-00", "device-02"]
    for table in ("meta", "devices", "uploads", "closed", "slots", "checkpoint"):
        assert any(each.startswith("SELECT") and f"FROM {table}" in each for each in disk.operations), table
        assert any(each.startswith("INSERT") and f"INTO {table}" in each for each in disk.operations), table


# -- what the proof would find --------------------------------------------------------------------------------------

CarryOut = Callable[[RoundCommand, float], RoundEvent | None]


def lost(state: RoundState, carry_out: CarryOut, noted: Callable[[str], None]) -> RoundQueue:
    """A queue that lets go of what the disk refuses."""

    def tried(command: RoundCommand, now_s: float) -> RoundEvent | None:
        try:
            return carry_out(command, now_s)
        except StoreError:
            return None

    return RoundQueue(state, tried, noted)


def overtaken(state: RoundState, carry_out: CarryOut, noted: Callable[[str], None]) -> RoundQueue:
    """A queue that goes on behind an upload that was refused, and then takes another one for it."""
    refused: list[Fold] = []

    def tried(command: RoundCommand, now_s: float) -> RoundEvent | None:
        if not isinstance(command, Fold):
            return carry_out(command, now_s)
        try:
            carry_out(command, now_s)
        except StoreError:
            refused.append(command)
        else:
            while refused:
                carry_out(replace(refused.pop(), upload=command.upload), now_s)
        return None

    return RoundQueue(state, tried, noted)


def test_an_upload_that_is_lost_would_show(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.serving.server.RoundQueue", lost)
    assert next(harmful(pictures, "slots", tmp_path, only=SLOT), None)


def test_an_upload_that_takes_the_place_of_another_would_show(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.serving.server.RoundQueue", overtaken)
    assert next(harmful(pictures, "slots", tmp_path, only=SLOT), None)


@pytest.mark.parametrize("kind", ["sum", "slots"])
def test_an_upload_that_is_added_twice_would_show(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    add = Aggregation.add

    def added_then_refused(self: Aggregation, upload: Upload) -> None:
        add(self, upload)
        with as_store_error(None):
            Connection.disk.carry_out("after it was added", lambda: None)

    monkeypatch.setattr(Aggregation, "add", added_then_refused)
    assert next(harmful(pictures, kind, tmp_path, only="after it was added"), None)


SLOT = "SELECT * FROM slots WHERE device = ?"


def test_a_slot_that_does_not_read_holds_the_uploads_behind_it(pictures: Path) -> None:
    """Four uploads are durable together, and the disk refuses while the second one is added up."""
    tables = fleets.tables(pictures, "fedssa", devices=4)
    fleet = sim_fleets.build_fleet(settings.parse({**tables, "method": {"cached": True}}, Path("test.toml")))
    clean, run = fleets.Run(fleet).finished(), fleets.Run(fleet)
    slot, refused = run.server.ledger.slot, []

    def once(device: str) -> bytes | None:
        if device == "device-01" and not refused:
            refused.append(device)
            raise StoreError("ledger.db: disk I/O error; check free space and the folder's rights")
        return slot(device)

    run.server.ledger.slot = once  # type: ignore[method-assign]  # a disk that fails
    run.finished()
    assert refused
    assert run.result.completed
    assert run.result.updates["accepted"] == clean.result.updates["accepted"]
    assert [each.contributors for each in run.result.history] == [4, 4, 4]
    assert run.coordinator_bytes == clean.coordinator_bytes
    assert run.model_bytes == clean.model_bytes

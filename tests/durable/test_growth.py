"""What a database takes of a disk follows what it holds, not the number of rounds; a full disk is made room on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.ledger import Ledger, Row
from edge_sdk.at_rest.write_ahead_log import cut_uncommitted
from edge_sdk.device.store import FinishedExchange, RoundStart, SqliteStore
from edge_sdk.durable import LEAST_LOG_BYTES
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.samples.rows import RowFile
from edge_sdk.samples.store import SampleStore

UPLOADS, UPLOAD_BYTES, STATE_BYTES = 10, 4_000, 20_000
KEPT_BYTES = UPLOADS * UPLOAD_BYTES + STATE_BYTES
MIB = 1024 * 1024
Disk = Callable[[int], Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A function that gives a folder on a disk of so many bytes, or skips the test."""
    mounted = []

    def made(size_bytes: int) -> Path:
        place = tmp_path / "disk"
        place.mkdir()
        mount = shutil.which("mount")
        command = [str(mount), "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(place)]
        if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("may not mount a small disk (tmpfs) here")
        mounted.append(place)
        return place

    yield made
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def take_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def ledger_round(ledger: Ledger, round_: int) -> None:
    place = ExchangeId(round_, 0)
    devices = tuple(f"device-{number:02}" for number in range(UPLOADS))
    ledger.commit([Row(place, device, os.urandom(UPLOAD_BYTES)) for device in devices])
    ledger.close_exchange(place, devices, now=False)
    ledger.checkpoint(round_ + 1, os.urandom(STATE_BYTES), {}, history={round_: {"accuracy": 0.5}})


def store_round(store: SqliteStore, round_: int) -> None:
    start = RoundStart(round_, os.urandom(STATE_BYTES), b"")
    store.save(FinishedExchange(round_, 0, os.urandom(KEPT_BYTES - STATE_BYTES), b"upload"), start)


def samples_round(rows: RowFile, round_: int) -> None:
    new = {round_: (str(round_), os.urandom(KEPT_BYTES))}
    rows.commit(new=new, labels={}, gone=[round_ - 1], settings={"tick": round_})


def bounded_rows(path: Path) -> RowFile:
    rows = RowFile(path)
    rows.bound(100 * MIB, LEAST_LOG_BYTES)
    return rows


FILES = pytest.mark.parametrize(
    ("opened", "round_of"),
    [(Ledger, ledger_round), (SqliteStore, store_round), (bounded_rows, samples_round)],
    ids=["ledger", "store", "samples"],
)


def test_the_log_of_a_ledger_follows_what_it_holds(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    for round_ in range(40):
        ledger_round(ledger, round_)
    taken = take_bytes(tmp_path)
    ledger.close()
    assert taken <= LEAST_LOG_BYTES + 6 * KEPT_BYTES


def test_the_log_of_a_ledger_follows_what_it_holds_while_devices_enrol(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    for number in range(150):
        ledger.enrol(f"device-{number:03}", None, b"hello")
    taken = take_bytes(tmp_path)
    ledger.close()
    assert taken <= LEAST_LOG_BYTES + 3 * KEPT_BYTES


def test_the_log_of_a_device_follows_what_it_holds(tmp_path: Path) -> None:
    model_bytes = 690_000
    store = SqliteStore(tmp_path / "app.db")
    most = 0
    for round_ in range(12):
        start = RoundStart(round_, os.urandom(model_bytes), b"")
        store.save(FinishedExchange(round_, 0, b"assign", b"upload"), start)
        most = max(most, take_bytes(tmp_path))
    store.close()
    assert most <= 5.5 * model_bytes


def test_the_log_of_a_sample_store_follows_what_it_holds(tmp_path: Path) -> None:
    samples = SampleStore(tmp_path / "samples.db", classes=2, max_samples=100, max_bytes=64 * MIB)
    most = 0
    for number in range(2_000):
        samples.observe(np.full(500, number, np.float32), number % 2)
        most = max(most, take_bytes(tmp_path))
    samples.close()
    assert most <= 2 * LEAST_LOG_BYTES


def test_a_log_is_short_again_after_a_large_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "app.db")
    store.save_start(RoundStart(0, os.urandom(8 * MIB), b""))
    for round_ in range(2):
        store_round(store, round_)
    taken = (tmp_path / "app.db-wal").stat().st_size
    store.close()
    assert taken <= LEAST_LOG_BYTES


@pytest.mark.long
def test_ten_thousand_rounds_on_a_disk_of_12_mb(disk: Disk) -> None:
    folder = disk(12 * 1000 * 1000)
    most = rounds_with_restarts(folder, 10_000, every=1_000)
    assert most <= 3 * MIB


def test_rounds_on_a_small_disk_go_on_and_so_does_a_restart(disk: Disk) -> None:
    folder = disk(3 * MIB)
    assert rounds_with_restarts(folder, 60, every=20) <= 2 * MIB


def rounds_with_restarts(folder: Path, rounds: int, every: int) -> int:
    """Carry rounds out, each life in a process that ends as one that is killed; returns the most that the folder took."""
    most = 0
    for first in range(0, rounds, every):
        if (child := os.fork()) == 0:
            try:
                ledger = Ledger(folder / "ledger.db")
                for round_ in range(first, first + every):
                    ledger_round(ledger, round_)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        most = max(most, take_bytes(folder))
    return most


@FILES
def test_a_full_disk_is_made_room_on_once(
    disk: Disk, opened: Callable[[Path], Any], round_of: Callable[[Any, int], None]
) -> None:
    """The disk has room left for what the file lacks, and for no round; of the log, nearly all was replaced since."""
    folder = disk(4 * MIB)
    for lives in (range(4), range(4, 8)):
        file = opened(folder / "state.db")
        for round_ in lives:
            round_of(file, round_)
        if lives[0] == 0:
            file.close()
    (folder / "ballast").write_bytes(bytes(4 * MIB - take_bytes(folder) - KEPT_BYTES * 2 // 3))
    for round_ in range(8, 12):
        round_of(file, round_)
    file.close()


def test_only_what_is_behind_the_last_commit_is_cut_off(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "app.db")
    store_round(store, 0)
    log = tmp_path / "app.db-wal"
    whole = log.read_bytes()
    with log.open("ab") as file:
        file.write(whole[32 : 32 + 24 + 1024].replace(whole[36:40], bytes(4), 1))  # a frame that commits nothing
    cut_uncommitted(log)
    assert log.read_bytes() == whole
    store_round(store, 1)
    store.close()

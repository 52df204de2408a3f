"""Flipped bits and cut files: each is told in one line that names the file, or changes nothing."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.ledger import Ledger, Row, Slots
from edge_sdk.device.store import FinishedExchange, RoundStart, SqliteStore, Store
from edge_sdk.device.training.app_model import ModelOrigin
from edge_sdk.errors import Damaged, StoreError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.samples.store import SampleStore
from edge_sdk.serving.versions import Versions
from edge_sim.clock.checkpoint import Checkpoints
from edge_sim.clock.store_parts import StoreParts

FLIPS, CUTS = 16, 4
"""So many bits are flipped in each file, and so often its end is cut off; with --all a hundred times as often."""
STATE = {"now_s": 12.5, "begun_s": 1.0, "hardware": {"a": [1, 2.25]}, "unclosed": {}}


# -- what lies on a disk --------------------------------------------------------------------------------------------


def fill_store(path: Path) -> None:
    store = SqliteStore(path)
    store.enter_run(b"welcome" * 20, RoundStart(0, bytes(range(256)) * 20, b"method" * 9, b"snapshot"), b"origin")
    store.save(FinishedExchange(0, 0, b"assign" * 50, b"upload" * 50))
    store.mark_receipted(0, 0)
    store.save(FinishedExchange(0, 1, b"assign 1", b"upload 1" * 100))
    store.close()


def read_store(path: Path) -> Any:
    store = SqliteStore(path)
    with closing(store):
        return (
            *(store.boot_epoch, store.secret, store.welcome(), store.origin(), store.round_start()),
            *(store.finished(), store.upload(0, 1), store.saved_round()),
        )


def fill_ledger(path: Path) -> None:
    ledger = Ledger(path)
    ledger.bind(b"spec" * 20)
    for device in "abc":
        ledger.enrol(device, None, f"hello of {device}".encode() * 9)
    ledger.commit([Row(ExchangeId(0, 0), device, f"frame of {device}".encode() * 200) for device in "abc"])
    ledger.close_exchange(ExchangeId(0, 0), ("a", "b", "c"), now=True)
    ledger.checkpoint(1, b"state" * 500, {"rounds": [{"bytes": 3}]}, Slots(filled=("a", "b")))
    ledger.commit([Row(ExchangeId(1, 0), device, f"frame of {device}".encode() * 300) for device in "ab"])
    ledger.close_exchange(ExchangeId(1, 0), ("a", "b"), now=True)
    ledger.keep_orders({"drained": ["c"]})
    ledger.close()


def read_ledger(path: Path) -> Any:
    ledger = Ledger(path)
    with closing(ledger):
        return contents(ledger)


def contents(ledger: Ledger) -> Any:
    places = [ExchangeId(round_, exchange) for round_ in range(2) for exchange in range(2)]
    return (
        *(ledger.epoch, ledger.run, ledger.enrolled(), ledger.orders(), ledger.last_checkpoint()),
        *([ledger.uploads(place) for place in places], [ledger.closed(round_) for round_ in range(2)]),
        *([ledger.slot(device) for device in "abc"], [ledger.has(place, "a") for place in places]),
    )


APP = ModelOrigin(b"body", b"weights")
ROOM: dict[str, Any] = {"classes": 3, "seed": 5}


def fill_samples(path: Path) -> None:
    with SampleStore(path, **ROOM) as store:
        for i in range(40):
            store.observe(np.full(16, i, np.float32), i % 3 if i % 4 else None)


def read_samples(path: Path) -> Any:
    """A damaged sample is removed, with a line in the log; what is left is as it was."""
    with SampleStore(path, **ROOM) as store:
        data, counts = store.take_snapshot().data, store.counts()
        return sorted(zip(data.train.x[:, 0].tolist(), data.train.y.tolist(), strict=True)), counts.unlabelled


def fill_served(path: Path) -> None:
    versions = Versions(path.parent, str, APP)
    for round_ in range(4):
        versions.add(round_, bytes([round_]) * 300)
    versions.joined_with({"accuracy": 0.25})


def read_served(path: Path) -> Any:
    versions = Versions(path.parent, str, APP)
    if versions.fault:
        raise Damaged(path, versions.fault)
    return versions.index, [versions.state(each) for each in versions.index.versions]


def fill_checkpoint(path: Path) -> None:
    for name in ("ledger", "a"):
        (fill_ledger if name == "ledger" else fill_store)(path.parent / f"{name}.old")
    stores: dict[str, Store] = {name: SqliteStore(path.parent / "a.old") for name in "abc"[:1]}
    stores |= dict.fromkeys("bc", stores["a"])
    ledger = Ledger(None, path.parent / "ledger.old")

    def copy_stores(folder: Path, last: Path) -> None:
        StoreParts(0, {}).save(folder, last, stores)

    Checkpoints(path.parent).save(ledger, copy_stores, STATE)
    ledger.close()
    stores["a"].close()


def read_checkpoint(path: Path) -> Any:
    ledger, stores, state = Checkpoints(path.parent).load()
    with closing(ledger):
        kept = {name: (store.welcome(), store.round_start(), store.finished()) for name, store in stores.items()}
        return contents(ledger), kept, state


@dataclass(frozen=True)
class Kind:
    file: str
    fill: Callable[[Path], None]
    read: Callable[[Path], Any]


KINDS = [
    Kind("device/lab.db", fill_store, read_store),
    Kind("run/ledger.db", fill_ledger, read_ledger),
    Kind("served/index.json", fill_served, read_served),
    Kind("served/3.model", fill_served, read_served),
    Kind("checkpoint/world.json", fill_checkpoint, read_checkpoint),
    Kind("checkpoint/ledger.db", fill_checkpoint, read_checkpoint),
    Kind("checkpoint/0-1.stores", fill_checkpoint, read_checkpoint),
]


def damages(content: bytes, seed: int, flips: int, cuts: int) -> list[bytes]:
    """The content with one bit flipped, or without its end."""
    rng = random.Random(seed)
    found = []
    for _ in range(flips):
        changed = bytearray(content)
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        found.append(bytes(changed))
    return found + [content[: rng.randrange(1, len(content))] for _ in range(cuts)]


def verdicts(kind: Kind, folder: Path, seed: int, flips: int = FLIPS, cuts: int = CUTS) -> dict[str, int]:
    path = folder / "whole" / kind.file
    path.parent.mkdir(parents=True)
    kind.fill(path)
    copy = shutil.copytree(folder / "whole", folder / "clean") / kind.file
    truth, count = kind.read(copy), {"same": 0, "told": 0, "silent": 0}
    for changed in damages(path.read_bytes(), seed, flips, cuts):
        at = shutil.copytree(folder / "whole", folder / "damaged") / kind.file
        at.write_bytes(changed)
        try:
            count["same" if kind.read(at) == truth else "silent"] += 1
        except StoreError as error:
            count["told" if str(at.parent) in str(error) and "\n" not in str(error) else "silent"] += 1
        shutil.rmtree(folder / "damaged")
    return count


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.file)
def test_damage_is_told_or_changes_nothing(tmp_path: Path, kind: Kind) -> None:
    count = verdicts(kind, tmp_path, seed=1)
    assert count["silent"] == 0
    assert count["told"] >= CUTS


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.file)
def test_more_damage(tmp_path: Path, kind: Kind) -> None:
    assert verdicts(kind, tmp_path, seed=2, flips=100 * FLIPS, cuts=100 * CUTS)["silent"] == 0


def test_a_damaged_sample_store_loses_no_label_unsaid(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "samples.db"
    fill_samples(path)
    whole = path.read_bytes()
    truth = read_samples(path)
    for changed in damages(whole, 3, FLIPS, CUTS):
        path.write_bytes(changed)
        caplog.clear()
        try:
            found = read_samples(path)
        except Damaged:
            continue
        assert found == truth or "damaged" in caplog.text
        assert set(found[0]) <= set(truth[0])


# -- a log that a killed process has left ------------------------------------------------------------------------------


def left_by_a_kill(folder: Path) -> Path:
    """A device's file with the log that a killed process has left: ten commits."""
    store = SqliteStore(folder / "live" / "lab.db")
    store.enter_run(b"welcome", RoundStart(0, bytes(5000), b""))
    for exchange in range(10):
        store.save(FinishedExchange(0, exchange, b"assign" * 30, b"upload" * 30))
    shutil.copytree(folder / "live", folder / "killed")
    store.close()
    return folder / "killed" / "lab.db"


def test_a_damaged_log_is_not_taken_for_a_power_cut(tmp_path: Path) -> None:
    path = left_by_a_kill(tmp_path)
    log = path.with_name("lab.db-wal")
    whole = log.read_bytes()
    last = len(whole) - 8 * (1024 + 24)  # the last commit may be half written
    for at in (3, 9, 17, 26, 40, 3000, *random.Random(4).sample(range(32, last), 30)):
        log.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        before = path.read_bytes()
        for _ in range(2):  # a try does not take away what shows the damage
            with pytest.raises(Damaged) as caught:
                SqliteStore(path)
            assert caught.value.path == path
        path.write_bytes(before)


def test_a_log_that_a_power_cut_left_half_written_is_read_up_to_there(tmp_path: Path) -> None:
    path = left_by_a_kill(tmp_path)
    log = path.with_name("lab.db-wal")
    whole = log.read_bytes()
    kept = []
    for cut in range(len(whole) // 2, len(whole), 1500):
        shutil.copytree(path.parent, tmp_path / "cut")
        (tmp_path / "cut" / "lab.db-wal").write_bytes(whole[:cut])
        with closing(SqliteStore(tmp_path / "cut" / "lab.db")) as store:
            kept.append(len(store.finished()))
        shutil.rmtree(tmp_path / "cut")
    assert kept == sorted(kept)
    assert kept[-1] > kept[0]


# -- files that are older than their digests ------------------------------------------------------------------------------


def without_digests(path: Path) -> None:
    """Make a file as it was before there were digests."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            if "digest" in [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN digest")
        connection.execute("PRAGMA user_version = 0")
        connection.commit()


@pytest.mark.skipif(sqlite3.sqlite_version_info < (3, 35), reason="drops no columns")
@pytest.mark.parametrize(
    ("fill", "read", "row"),
    [
        (fill_store, read_store, b"upload 1"),
        (fill_ledger, read_ledger, b"frame of a"),
        (fill_samples, read_samples, b"[0.8, 0.1"),
    ],
)
def test_older_files_open_and_get_their_digests(
    tmp_path: Path, fill: Callable[[Path], None], read: Callable[[Path], Any], row: bytes
) -> None:
    path, twin = tmp_path / "old" / "lab.db", tmp_path / "twin.db"
    fill(path)
    shutil.copy(path, twin)
    without_digests(path)
    found, wanted = read(path), read(twin)
    assert found == wanted
    content = path.read_bytes()
    at = content.index(row)
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])
    with pytest.raises(Damaged):
        read(path)


def test_an_older_checkpoint_and_an_older_index_open(tmp_path: Path) -> None:
    world, index = tmp_path / "checkpoint" / "world.json", tmp_path / "served" / "index.json"
    for path, fill in ((world, fill_checkpoint), (index, fill_served)):
        path.parent.mkdir()
        fill(path)
        path.write_text(json.dumps(json.loads(path.read_text())["value"]))
    assert read_checkpoint(world)[2] == STATE
    assert [each.rounds_done for each in read_served(index)[0].versions] == [1, 2, 3]


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lab.db"
    fill_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 9")
    before = path.read_bytes()
    with pytest.raises(Damaged, match="9"):
        SqliteStore(path)
    assert path.read_bytes() == before

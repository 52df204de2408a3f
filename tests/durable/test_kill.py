"""kill -9 at any moment: what was said to be durable is there."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from coordinator.ledger import Ledger
from edge_sdk.device.store import RoundStart, SqliteStore
from edge_sdk.errors import StoreError
from edge_sdk.protocol.exchange_id import ExchangeId

WRITE_UPLOADS = """
import sys
from pathlib import Path
from coordinator.ledger import Ledger, Row
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.errors import StoreError

ledger = Ledger(Path(sys.argv[1]))
for i in range(int(sys.argv[2]), 10**9):
    rows = [Row(ExchangeId(i, 0), f"device-{n}", f"{i} {n}".encode() * 50) for n in range(1 + i % 4)]
    ledger.commit(rows)
    print(i, flush=True)
"""

WRITE_ROUNDS = """
import sys
from pathlib import Path
from edge_sdk.device.store import FinishedExchange, RoundStart, SqliteStore

store = SqliteStore(Path(sys.argv[1]))
for i in range(int(sys.argv[2]), 10**9):
    start = RoundStart(i // 3, f"model {i // 3}".encode() * 200, b"") if i % 3 == 0 else None
    store.save(FinishedExchange(i // 3, i % 3, b"assign", f"upload {i}".encode()), start)
    print(i, flush=True)
"""


def killed(script: str, path, first: int, after_s: float) -> int:
    """Run it, kill it, and say which write was the last that it said to be durable."""
    child = subprocess.Popen([sys.executable, "-c", script, str(path), str(first)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child, child.stdout:
        child.stdout.readline()
        time.sleep(after_s)
        child.kill()
        said = child.stdout.read().split()
    return int(said[-1]) if said else first


@pytest.mark.processes
def test_no_acknowledged_upload_is_lost(tmp_path):
    rng, path, last = random.Random(0), tmp_path / "ledger.db", -1
    for life in range(1, 11):
        last = killed(WRITE_UPLOADS, path, last + 1, rng.random() * 0.1)
        ledger = Ledger(path)
        assert ledger.epoch == 2 * life  # the child's life and ours
        for i in range(last + 1):
            uploads = ledger.uploads(ExchangeId(i, 0))
            assert uploads == {f"device-{n}": f"{i} {n}".encode() * 50 for n in range(1 + i % 4)}
        torn = ledger.uploads(ExchangeId(last + 1, 0))  # durable, and killed before it could say so; or not at all
        assert len(torn) in (0, 1 + (last + 1) % 4)
        ledger.close()


@pytest.mark.processes
def test_no_exchange_of_a_device_is_lost(tmp_path):
    rng, path, last = random.Random(1), tmp_path / "device.db", -1
    for life in range(1, 11):
        last = killed(WRITE_ROUNDS, path, last + 1, rng.random() * 0.1)
        store = SqliteStore(path)
        assert store.boot_epoch == 2 * life
        start, done = store.round_start(), store.finished()
        store.close()
        newest = done[-1].round * 3 + done[-1].exchange
        assert newest in (last, last + 1)
        assert start == RoundStart(newest // 3, f"model {newest // 3}".encode() * 200, b"")
        assert [each.upload for each in done] == [
            f"upload {i}".encode() for i in range(newest - newest % 3, newest + 1)
        ]
        last = newest


@pytest.mark.processes
@pytest.mark.parametrize(("opener", "script"), [(Ledger, WRITE_UPLOADS), (SqliteStore, WRITE_ROUNDS)])
def test_a_second_process_is_kept_off(tmp_path, opener, script):
    path = tmp_path / "state.db"
    child = subprocess.Popen([sys.executable, "-c", script, str(path), "0"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child, child.stdout:
        child.stdout.readline()
        with pytest.raises(StoreError, match=r"state\.db: this or another process"):
            opener(path)
        child.kill()
    opener(path).close()

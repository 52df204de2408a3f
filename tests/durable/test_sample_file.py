"""The file of a sample store: power cuts, full disks, and files of others."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import StoreError
from edge_sdk.samples.rows import sample_id
from edge_sdk.samples.store import SampleStore

ROOM = {"classes": 4, "max_samples": 24, "max_unlabelled": 6, "unsaved": 5, "save_every_s": 1e9}


def values(n):
    return np.full(64, n, np.float32)


def carry_out(store, i):
    """Make the change number i of an endless stream, the same in each process."""
    rng = np.random.default_rng(i)
    what, old, y = rng.random(), max(0, i - int(rng.integers(1, 30))), int(rng.integers(4))
    if what < 0.7:
        store.observe(values(i), y if rng.random() < 0.7 else None)
    elif what < 0.85:
        store.label(sample_id(values(old).tobytes()), y)
    elif what < 0.95:
        store.discard(sample_id(values(old).tobytes()))
    else:
        store.release(store.take_snapshot().id)


def write(path, first):
    """Carry the stream out from `first` on; prints each number with how many changes a power cut could lose."""
    with SampleStore(path, **ROOM) as store:
        for i in range(first, 10**9):
            carry_out(store, i)
            sys.stdout.write(f"{i} {store.counts().unsaved}\n")
            sys.stdout.flush()


def everything(store):
    data, counts = store.take_snapshot().data, store.counts()
    parts = [data.train, data.validation, data.local_test]
    held = [sorted(zip(part.x[:, 0], part.y, strict=True)) if part else [] for part in parts]
    return held, counts.train, counts.validation, counts.test, counts.unlabelled


@pytest.mark.processes
def test_a_power_cut_loses_at_most_the_unsaved_changes(tmp_path):
    """After kill -9 the store holds what the first so many changes lead to, and no fewer than it had saved."""
    rng, path, done = random.Random(0), tmp_path / "s.db", 0
    twin = SampleStore(None, **ROOM)
    for _ in range(8):
        program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_sample_file as t"
        child = subprocess.Popen(
            [sys.executable, "-c", f"{program}; t.write({str(path)!r}, {done})"], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        with child, child.stdout:
            said = [child.stdout.readline().split() for _ in range(rng.randrange(1, 60))]
            child.kill()
            rest = child.stdout.read().splitlines(keepends=True)
            said += [line.split() for line in rest if line.endswith(b"\n")]
        assert all(int(unsaved) < ROOM["unsaved"] for _, unsaved in said)
        saved = max([done, *(int(i) + 1 for i, unsaved in said if unsaved == b"0")])
        with SampleStore(path, **ROOM) as store:
            found = everything(store)
        while done < saved:
            carry_out(twin, done)
            done += 1
        while everything(twin) != found:
            assert done <= saved + 200  # else it is no state that the stream passes through
            carry_out(twin, done)
            done += 1


def test_a_full_disk_does_not_stop_the_app(tmp_path, small_disk):
    now_s = [0.0]
    store = SampleStore(tmp_path / "s.db", classes=4, unsaved=4, clock=lambda: now_s[0])
    for i in range(4):
        store.observe(values(i), 0)
    store.flush()
    with small_disk(sum(path.stat().st_size for path in tmp_path.iterdir())):
        for i in range(4, 60):
            store.observe(values(i), 1)
        assert store.counts().dropped == 56 - 16  # 4 times `unsaved` wait in memory
        with pytest.raises(StoreError, match=r"s\.db"):
            store.flush()
        with pytest.raises(StoreError):
            store.take_snapshot()
    now_s[0] = 60
    store.observe(values(99), 2)
    assert store.counts().unsaved == 0
    assert [y for _, y in everything(store)[0][0]].count(1) > 0
    assert len(store) == 21
    store.close()


def test_a_file_of_another_program(tmp_path, foreign_database):
    before = foreign_database(tmp_path / "s.db")
    with pytest.raises(StoreError, match="another program"):
        SampleStore(tmp_path / "s.db", classes=4)
    assert (tmp_path / "s.db").read_bytes() == before

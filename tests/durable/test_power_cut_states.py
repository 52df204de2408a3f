"""What a power cut leaves of our databases, and what one failing call of the disk does to them."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_disk import Disk, Files, recorded

from coordinator.ledger import Ledger, Row, Slots
from edge_sdk.device.store import FinishedExchange, RoundStart, SqliteStore
from edge_sdk.errors import StoreError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.samples.store import SampleStore

CUTS, ALL_CUTS = 100, 1700
"""Power cuts for each kind of file; with --all more than 5000 in all."""
MOST_CALLS = 25
"""So many of the calls of a disk fail in each run of the tests; with --all each of them."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, if the system has one: what is synced there costs nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield Path(name)


@dataclass(frozen=True)
class Kind:
    """A file, what is done to it step by step, and what it then holds."""

    open: Callable[[Path], Any]
    steps: tuple[Callable[[Any], None], ...]
    read: Callable[[Any], Any]


# -- what is done -----------------------------------------------------------------------------------------------------


def begin(round_: int) -> Callable[[SqliteStore], None]:
    start = RoundStart(round_, bytes([round_]) * 3000, b"method" * round_)
    return lambda store: store.save(FinishedExchange(round_, 0, b"assign", bytes([round_]) * 500), start)


def exchange(round_: int, number: int) -> Callable[[SqliteStore], None]:
    return lambda store: store.save(FinishedExchange(round_, number, b"assign" * 20, bytes([number]) * 900))


def read_store(store: SqliteStore) -> Any:
    finished = tuple(replace(each, receipted=False) for each in store.finished())
    return store.welcome(), store.round_start(), finished, store.origin()


STORE = Kind(
    SqliteStore,
    (
        lambda store: store.enter_run(b"welcome", RoundStart(0, bytes(3000), b""), b"origin"),
        *(step for round_ in range(1, 6) for step in (begin(round_), exchange(round_, 1), exchange(round_, 2))),
        lambda store: store.adopt(RoundStart(6, b"adopted" * 300, b""), b"new origin"),
        lambda store: store.save_welcome(b"another"),
    ),
    read_store,
)


def uploads(round_: int, devices: str) -> Callable[[Ledger], None]:
    rows = [Row(ExchangeId(round_, 0), device, bytes([round_]) * 4000) for device in devices]
    return lambda ledger: ledger.commit(rows)


def close_round(round_: int) -> Callable[[Ledger], None]:
    def close(ledger: Ledger) -> None:
        ledger.close_exchange(ExchangeId(round_, 0), ("a", "b"), now=True)

    return close


def checkpoint(round_: int) -> Callable[[Ledger], None]:
    return lambda ledger: ledger.checkpoint(round_ + 1, bytes([round_]) * 9000, {"round": round_}, Slots(("a",)))


def read_ledger(ledger: Ledger) -> Any:
    places = [ExchangeId(round_, 0) for round_ in range(5)]
    return (
        *(ledger.enrolled(), ledger.last_checkpoint(), ledger.orders(), ledger.run != b""),
        *([ledger.uploads(place) for place in places], [ledger.closed(place.round) for place in places]),
        *([ledger.has(place, "b") for place in places], [ledger.slot(device) for device in "ab"]),
    )


LEDGER = Kind(
    Ledger,
    (
        lambda ledger: ledger.bind(b"spec") and None,
        *((lambda ledger, each=each: ledger.enrol(each, None, b"hello") and None) for each in "ab"),
        *(
            step
            for round_ in range(4)
            for step in (uploads(round_, "a"), uploads(round_, "b"), close_round(round_), checkpoint(round_))
        ),
        lambda ledger: ledger.keep_orders({"drained": ["a"]}),
        lambda ledger: ledger.forget("b"),
    ),
    read_ledger,
)


def open_samples(path: Path) -> SampleStore:
    return SampleStore(path, classes=3, max_samples=20, unsaved=1000, save_every_s=1e9, clock=lambda: 0.0)


def observe(first: int, count: int = 4) -> Callable[[SampleStore], None]:
    def add(store: SampleStore) -> None:
        for i in range(first, first + count):
            store.observe(np.full(300, i, np.float32), i % 3)
        store.flush()

    return add


def read_samples(store: SampleStore) -> Any:
    data = store.take_snapshot().data
    return sorted(float(x.flat[0]) for x in data.train.x), store.counts().train


SAMPLES = Kind(open_samples, (observe(0, 1), *(observe(1 + 4 * i) for i in range(12))), read_samples)
"""The first sample is saved at once."""
KINDS = [pytest.param(kind, id=name) for name, kind in (("device", STORE), ("ledger", LEDGER), ("samples", SAMPLES))]


def states(kind: Kind, folder: Path) -> list[Any]:
    """What the file holds after no step, one step, two ..."""
    found = []
    for count in range(len(kind.steps) + 1):
        with closing(kind.open(folder / "truth" / f"{count}.db")) as opened:
            for step in kind.steps[:count]:
                step(opened)
            found.append(kind.read(opened))
    return found


# -- power cuts -------------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    """What became of the power cuts."""

    lost: int = 0
    """An acknowledged step is gone."""
    corrupt: int = 0
    """The file cannot be read, or holds what no step has left."""


def cut(kind: Kind, folder: Path, monkeypatch: pytest.MonkeyPatch, cuts: int, *, synchronous: str = "FULL") -> Counts:
    """Cut the power at random calls of the disk; look at what is left as a restart would."""
    wanted, disk, path = states(kind, folder), Disk(), folder / "live.db"
    acknowledged = []
    with recorded(disk, monkeypatch, synchronous=synchronous), closing(kind.open(path)) as opened:
        for step in kind.steps:
            step(opened)
            acknowledged.append(len(disk.calls))
    rng, counts = random.Random(1), Counts()
    moments = sorted(rng.randrange(len(disk.calls)) for _ in range(cuts))
    files, done = Files(), 0
    for moment in moments:
        while done < moment:
            files.carry_out(disk.calls[done])
            done += 1
        at_least = sum(each <= moment for each in acknowledged)
        _judge(kind, folder, files.after_power_cut(rng), wanted, at_least=at_least, counts=counts)
    return counts


def _judge(
    kind: Kind, folder: Path, left: dict[str, bytes], wanted: list[Any], *, at_least: int, counts: Counts
) -> None:
    for old in folder.glob("after.db*"):
        old.unlink()
    for name, content in left.items():
        (folder / name.rsplit("/", 1)[1].replace("live.db", "after.db")).write_bytes(content)
    try:
        with closing(kind.open(folder / "after.db")) as again:
            found = kind.read(again)
    except StoreError:
        counts.corrupt += 1
        return
    if found in wanted[at_least : at_least + 2]:
        return
    if found in wanted[:at_least]:
        counts.lost += 1
    else:
        counts.corrupt += 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_power_cut_loses_nothing_acknowledged(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    assert cut(kind, folder, monkeypatch, CUTS) == Counts()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_more_power_cuts(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    assert cut(kind, folder, monkeypatch, ALL_CUTS) == Counts()


@pytest.mark.parametrize("kind", KINDS)
def test_commits_that_wait_for_no_sync_would_show(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    assert cut(kind, folder, monkeypatch, CUTS, synchronous="NORMAL").lost > 0


# -- one call that fails ----------------------------------------------------------------------------------------------


def carry_out(kind: Kind, path: Path, again: bool) -> int:
    """Open, do all steps, and close; what the disk refuses is tried once more.  Returns how often it refused.

    again: whether that is done by a process that starts anew.
    """
    refusals, opened, left = 0, None, list(kind.steps)
    while left or opened is None:
        try:
            if opened is None:
                opened = kind.open(path)
            if left:
                left[0](opened)
                del left[0]
        except StoreError:  # noqa: PERF203  # a disk that refuses
            refusals += 1
            assert refusals < 3
            if again and opened is not None:
                _stop(opened)
                opened = None
    _stop(opened)
    return refusals


def _stop(opened: Any) -> None:
    with suppress(StoreError):
        opened.close()


@pytest.mark.parametrize("again", [False, True], ids=["goes on", "starts anew"])
@pytest.mark.parametrize("kind", KINDS)
def test_each_call_of_the_disk_fails_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, kind: Kind, again: bool
) -> None:
    disk = Disk()
    with recorded(disk, monkeypatch):
        carry_out(kind, folder / "clean.db", again)
    with closing(kind.open(folder / "clean.db")) as clean:
        wanted = kind.read(clean)
    stride = 1 if request.config.getoption("--all") else max(1, len(disk.calls) // MOST_CALLS)
    for fails_at in range(random.Random(2).randrange(stride), len(disk.calls), stride):
        faulty = Disk(fails_at=fails_at)
        path = folder / f"{fails_at}.db"
        with recorded(faulty, monkeypatch):
            carry_out(kind, path, again)
        assert faulty.failed
        with closing(kind.open(path)) as found:
            assert kind.read(found) == wanted, fails_at

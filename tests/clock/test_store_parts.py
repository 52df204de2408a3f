"""A checkpoint writes what changed; whatever cuts it short, the last whole one is there, to the bit."""

from __future__ import annotations

import random
import shutil
from dataclasses import astuple
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.ledger import Ledger
from edge_sdk.at_rest.digests import json_with_digest
from edge_sdk.device.store import FinishedExchange, MemoryStore, RoundStart, Store
from edge_sdk.errors import Damaged, StoreError
from edge_sdk.protocol.frames.frame_parts import FrameParts
from edge_sim.clock import checkpoint, store_parts
from edge_sim.clock.checkpoint import Checkpoints
from edge_sim.clock.store_parts import MOST_PARTS, KeptStores, StoreParts, save_stores

DEVICES, MODEL_BYTES = 20, 40_000
Contents = dict[str, tuple[Any, ...]]


class Fleet:
    """Stores that change at random."""

    def __init__(self, seed: int = 0) -> None:
        self.draws = random.Random(seed)
        self.stores: dict[str, Store] = {}

    def works(self, *numbers: int, round_: int = 0) -> None:
        knowledge = self.draws.randbytes(MODEL_BYTES)
        for number in numbers:
            store = self.stores.setdefault(f"device-{number:02d}", MemoryStore())
            assert isinstance(store, MemoryStore)
            if store.welcome() is None:
                store.enter_run(self.draws.randbytes(40), self.start(round_))
            store.begin_round(self.start(round_))
            assign = FrameParts(b"to %d " % number, knowledge, b"end")
            store.save(FinishedExchange(round_, 0, assign, self.draws.randbytes(90)))
            store.mark_receipted(round_, 0)
            store.rest(partial(RoundStart, *astuple(self.start(round_ + 1))))

    def start(self, round_: int) -> RoundStart:
        return RoundStart(round_, self.draws.randbytes(MODEL_BYTES), b"method", b"")

    @property
    def contents(self) -> Contents:
        return contents(self.stores)


def contents(stores: Any) -> Contents:
    return {
        device: (
            *(store.welcome(), store.round_start()),
            *((at.round, at.exchange, bytes(at.assign), at.upload, at.receipted) for at in store.finished()),
        )
        for device, store in sorted(stores.items())
    }


def save(folder: Path, parts: StoreParts, fleet: Fleet, **state: Any) -> None:
    state = {"now_s": 1.0, "begun_s": 0.0, "hardware": {}, "open": {}, "resumed": {}} | state
    ledger = Ledger(None)
    Checkpoints(folder / "checkpoint").save(ledger, lambda new, last: parts.save(new, last, fleet.stores), state)
    ledger.close()


@pytest.mark.parametrize(("takes_s", "rests_s"), [(0.5, 30.0), (3.0, 30.0), (8.0, 80.0)])
def test_checkpoints_take_at_most_a_tenth_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_s: float, rests_s: float
) -> None:
    now_s = 100.0
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now_s))
    checkpoints, ledger = Checkpoints(tmp_path / "checkpoint"), Ledger(None)
    due = [checkpoints.due()]
    now_s += checkpoint.FIRST_S
    due += [checkpoints.due()]

    def copy_stores(_new: Path, _last: Path) -> None:
        nonlocal now_s
        now_s += takes_s

    checkpoints.save(ledger, copy_stores, {"now_s": 1.0})
    ledger.close()
    for step_s in (0.0, rests_s - 0.1, 0.2):
        now_s += step_s
        due += [checkpoints.due()]
    assert due == [False, True, False, False, True]


def loaded(folder: Path) -> Contents:
    ledger, stores, _ = Checkpoints(folder / "checkpoint").load()
    ledger.close()
    return contents(stores)


def written(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (folder / "checkpoint").glob("*.stores")}


def test_a_checkpoint_writes_only_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, parts, wrote = Fleet(), StoreParts(0, {}), []

    def noting(path: Path, stores: Any) -> None:
        pairs = [*stores]
        wrote.append([device for device, _ in pairs])
        save_stores(path, pairs)

    monkeypatch.setattr(store_parts, "save_stores", noting)
    fleet.works(*range(DEVICES))
    save(tmp_path, parts, fleet)
    first = written(tmp_path)
    fleet.works(3, 4, round_=1)
    save(tmp_path, parts, fleet)
    assert loaded(tmp_path) == fleet.contents
    assert first.items() < written(tmp_path).items()  # the same file under a second name
    save(tmp_path, parts, fleet)
    assert [len(each) for each in wrote] == [DEVICES, 2]
    assert wrote[1] == ["device-03", "device-04"]


def test_the_knowledge_of_an_assign_is_written_and_read_once(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.works(*range(DEVICES))
    save(tmp_path, StoreParts(0, {}), fleet)
    (part,) = (tmp_path / "checkpoint").glob("*.stores")
    assert part.stat().st_size < 1.8 * DEVICES * MODEL_BYTES
    kept = KeptStores([part])
    middles = {id(done.assign.middle) for store in kept.values() for done in store.finished()}
    kept.close()
    assert len(middles) == 1


def test_parts_take_at_most_about_twice_what_counts_and_stay_few(tmp_path: Path) -> None:
    fleet, parts = Fleet(), StoreParts(0, {})
    for round_ in range(3 * MOST_PARTS):
        fleet.works(*fleet.draws.sample(range(DEVICES), 2), round_=round_)
        save(tmp_path, parts, fleet)
        found = [*(tmp_path / "checkpoint").glob("*.stores")]
        assert len(found) <= MOST_PARTS
    rows = sum(len({*KeptStores([path])}) for path in found)
    assert rows <= 2 * len(fleet.stores)
    assert loaded(tmp_path) == fleet.contents


def test_many_parts_that_all_count_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_parts, "MOST_PARTS", 6)
    fleet, parts = Fleet(), StoreParts(0, {})
    for number in range(DEVICES):
        fleet.works(number)
        save(tmp_path, parts, fleet)
        assert len(written(tmp_path)) <= 6
    assert loaded(tmp_path) == fleet.contents


def test_a_resumed_run_goes_on_from_the_parts_that_it_read(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.works(*range(DEVICES))
    save(tmp_path, StoreParts(0, {}), fleet)
    before = written(tmp_path)
    _, kept, _ = Checkpoints(tmp_path / "checkpoint").load()
    assert isinstance(kept, KeptStores)
    fleet.stores, parts = {**kept}, StoreParts(0, kept.part_of)
    kept.close()
    fleet.works(5, round_=1)
    save(tmp_path, parts, fleet)
    assert before.items() < written(tmp_path).items()
    assert loaded(tmp_path) == fleet.contents


class Cut(BaseException):
    """The machine has lost its power."""


@pytest.mark.parametrize("seed", range(12))
def test_a_cut_at_any_byte_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The writing of a part ends at a random byte, or the saving between any two of its steps; then a run resumes."""
    fleet, parts, draws = Fleet(seed), StoreParts(0, {}), random.Random(seed)
    whole: Contents = {}
    for round_ in range(8):
        fleet.works(*draws.sample(range(DEVICES), 6), round_=round_)
        with monkeypatch.context() as patch:
            if round_ and draws.random() < 0.7:
                cut_short(patch, draws)
            try:
                save(tmp_path, parts, fleet)
                whole = fleet.contents
            except Cut:
                found = loaded(tmp_path)
                assert found in (whole, fleet.contents)  # the latter if only the clearing up was cut
                whole = found
                _, kept, _ = Checkpoints(tmp_path / "checkpoint").load()
                assert isinstance(kept, KeptStores)
                fleet.stores, parts = {**kept}, StoreParts(0, kept.part_of)
                kept.close()
        assert loaded(tmp_path) == whole


def cut_short(patch: pytest.MonkeyPatch, draws: random.Random) -> None:
    """Have the next checkpoint end early; what it leaves stays, as after a power cut."""
    rmtree, replace = shutil.rmtree, Path.replace

    def torn(path: Path, stores: Any) -> None:
        save_stores(path, stores)
        content = path.read_bytes()
        path.write_bytes(content[: draws.randrange(len(content))])
        raise Cut

    def no_rename(self: Path, target: Path) -> Path:
        if self.name.startswith("checkpoint") and draws.random() < 0.5:
            raise Cut
        return replace(self, target)

    begun: list[Path] = []

    def no_clearing(path: Path, **more: Any) -> None:
        if path.name == "checkpoint.old":
            raise Cut
        if not begun:  # what an earlier cut has left; what this one leaves stays
            rmtree(path, **more)
        begun.append(path)

    if draws.random() < 0.5:
        patch.setattr(store_parts, "save_stores", torn)
    patch.setattr(Path, "replace", no_rename)
    patch.setattr(shutil, "rmtree", no_clearing)


def test_a_checkpoint_that_fails_is_written_whole_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, parts = Fleet(), StoreParts(0, {})
    fleet.works(*range(DEVICES))
    save(tmp_path, parts, fleet)
    before = fleet.contents
    fleet.works(*range(DEVICES - 2), round_=1)  # the first part is left out
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(StoreError, match="No space left"):
            save(tmp_path, parts, fleet)
    assert loaded(tmp_path) == before
    save(tmp_path, parts, fleet)
    assert loaded(tmp_path) == fleet.contents


def test_a_file_system_without_second_names_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(OSError(95, "Operation not supported")))
    fleet, parts = Fleet(), StoreParts(0, {})
    fleet.works(*range(DEVICES))
    save(tmp_path, parts, fleet)
    fleet.works(1, round_=1)
    save(tmp_path, parts, fleet)
    assert len(written(tmp_path)) == 2
    assert loaded(tmp_path) == fleet.contents


def test_a_missing_part_is_told_in_one_line(tmp_path: Path) -> None:
    """Without it older states of its devices would count."""
    fleet, parts = Fleet(), StoreParts(0, {})
    for round_ in range(2):
        fleet.works(*range(DEVICES if not round_ else 3), round_=round_)
        save(tmp_path, parts, fleet)
    (tmp_path / "checkpoint" / "0-2.stores").unlink()
    with pytest.raises(Damaged, match=r"0-2\.stores: is damaged \(it is missing\)"):
        loaded(tmp_path)


def test_boards_in_the_same_state_are_written_once_and_older_checkpoints_are_read(tmp_path: Path) -> None:
    boards = {f"device-{number}": {"flops": number % 2, "on_s": 0.1} for number in range(1000)}
    fleet = Fleet()
    fleet.works(1)
    save(tmp_path, StoreParts(0, {}), fleet, hardware=boards)
    world = tmp_path / "checkpoint" / "world.json"
    assert world.stat().st_size < 24_000
    _, _, state = Checkpoints(tmp_path / "checkpoint").load()
    assert state["hardware"] == boards
    world.write_bytes(json_with_digest(state))  # as before 2026-12
    (tmp_path / "checkpoint" / "0-1.stores").rename(tmp_path / "checkpoint" / "0.stores")
    assert Checkpoints(tmp_path / "checkpoint").load()[2] == state
    assert loaded(tmp_path) == fleet.contents

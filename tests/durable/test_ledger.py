"""The coordinator's ledger: what it accepts once, forgets on purpose, and says again after a restart."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from coordinator.ledger import Checkpoint, Ledger, Row
from edge_sdk.durable import APPLICATION_ID, FileForm, file_form
from edge_sdk.errors import StoreError
from edge_sdk.protocol.exchange_id import ExchangeId

PLACES = tuple(ExchangeId(round_, exchange) for round_ in range(3) for exchange in range(2))
rows = st.builds(Row, st.sampled_from(PLACES), st.sampled_from("abc"), st.binary(max_size=4))


@pytest.fixture
def ledger():
    ledger = Ledger(None)
    yield ledger
    ledger.close()


@examples(60)
@given(st.lists(st.lists(rows, max_size=5), max_size=6), st.integers(0, 3))
def test_the_first_durable_upload_wins_and_a_checkpoint_forgets_what_is_before_it(groups, round_):
    ledger = Ledger(None)
    first: dict[tuple[ExchangeId, str], bytes] = {}
    for group in groups:
        ledger.commit(iter(group))
        for row in group:
            first.setdefault((row.place, row.device), row.frame)
    ledger.checkpoint(round_, b"state", {"rounds": [1]})
    kept = {key: frame for key, frame in first.items() if key[0].round >= round_}
    for place in PLACES:
        assert ledger.uploads(place) == {device: frame for (at, device), frame in kept.items() if at == place}
        for device in "abc":
            assert ledger.has(place, device) is ((place, device) in kept)
    assert ledger.last_checkpoint() == Checkpoint(round_, b"state", {"rounds": [1]})
    ledger.close()


def test_of_two_copies_in_one_group_the_first_is_on_disk(tmp_path):
    ledger, place = Ledger(tmp_path / "ledger.db"), ExchangeId(0, 0)
    ledger.commit([Row(place, "a", b"first"), Row(place, "a", b"second")])
    assert ledger.uploads(place) == {"a": b"first"}
    ledger.close()


def test_a_new_ledger_is_empty(ledger):
    assert ledger.epoch == 1
    assert ledger.last_checkpoint() is None
    assert ledger.closed(0) == ledger.uploads(ExchangeId(0, 0)) == ledger.enrolled() == {}


def test_the_epoch_counts_lives(tmp_path):
    for life in (1, 2, 3):
        ledger = Ledger(tmp_path / "ledger.db")
        assert ledger.epoch == life
        ledger.close()


def test_everything_outlives_the_process(tmp_path):
    ledger = Ledger(tmp_path / "new" / "folder" / "ledger.db")
    assert ledger.bind(b"spec")
    assert ledger.enrol("b", None, b"hello") == 0
    ledger.checkpoint(1, b"state", {"bytes": 3}, history={1: {"late": False}, 2: {}})
    ledger.checkpoint(1, b"state", {"bytes": 3}, history={2: {"late": True}})
    ledger.commit([Row(ExchangeId(1, 0), "b", b"frame")])
    ledger.close_exchange(ExchangeId(1, 0), ("b",), now=True)
    ledger.close()
    again = Ledger(tmp_path / "new" / "folder" / "ledger.db")
    assert again.bind(b"spec")
    assert again.enrolled() == {"b": (0, b"hello")}
    assert again.last_checkpoint() == Checkpoint(1, b"state", {"bytes": 3}, {1: {"late": False}, 2: {"late": True}})
    assert again.uploads(ExchangeId(1, 0)) == {"b": b"frame"}
    assert again.has(ExchangeId(1, 0), "b")
    assert again.closed(1) == {0: ("b",)}
    again.close()


def test_a_ledger_belongs_to_one_configuration(ledger):
    assert ledger.bind(b"spec")
    assert ledger.bind(b"spec")
    assert not ledger.bind(b"another spec")
    assert ledger.bind(b"spec")  # the refused one left no trace


def test_a_run_has_a_name_of_its_own(tmp_path):
    """Which outlives a restart, so that devices know whether they come back to the same run."""
    names = []
    for file in ("one.db", "two.db"):
        ledger = Ledger(tmp_path / file)
        ledger.bind(b"spec")
        names.append(ledger.run)
        ledger.copy_to(tmp_path / "copy.db")
        ledger.close()
        for again in (Ledger(tmp_path / file), Ledger(None, tmp_path / "copy.db")):
            assert again.bind(b"spec")
            assert not again.bind(b"another spec")
            assert again.run == names[-1]
            again.close()
    assert len(set(names)) == 2
    assert {len(name) for name in names} == {16}


def test_a_simulated_run_has_the_same_name_each_time():
    names = set()
    for spec in (b"spec", b"spec", b"another spec"):
        ledger = Ledger(None)
        ledger.bind(spec)
        names.add(ledger.run)
        ledger.close()
    assert len(names) == 2


def test_numbers_are_kept_for_ever(ledger):
    assert ledger.enrol("b", None, b"1") == 0
    assert ledger.enrol("a", None, b"1") == 1
    assert ledger.enrol("b", None, b"2") == 0
    assert ledger.enrol("b", 7, b"3") == 0  # the one it had, whatever a changed roster says
    assert ledger.enrol("c", 9, b"1") == 9
    assert ledger.enrol("d", None, b"1") == 10
    assert ledger.enrolled() == {"b": (0, b"3"), "a": (1, b"1"), "c": (9, b"1"), "d": (10, b"1")}


def test_the_number_of_a_forgotten_device_is_free(ledger):
    ledger.enrol("b", 0, b"hello")
    ledger.enrol("a", 1, b"hello")
    ledger.forget("b")
    assert ledger.enrol("c", 0, b"hello") == 0
    assert ledger.enrolled() == {"c": (0, b"hello"), "a": (1, b"hello")}


def test_a_number_that_is_taken_is_not_given_away(ledger):
    """The roster grew while the run was down, and the places in it moved."""
    assert ledger.enrol("b", 0, b"hello of b") == 0
    assert ledger.enrol("a", 0, b"hello of a") == 1
    assert ledger.enrolled() == {"b": (0, b"hello of b"), "a": (1, b"hello of a")}


def test_how_an_exchange_closed_is_on_record_at_once_or_with_the_next_commit(tmp_path):
    path = tmp_path / "ledger.db"

    def on_disk():
        """What a restart would find."""
        copy = Ledger(None, path)  # reads what is committed; the writer is closed here
        found = copy.closed(0)
        copy.close()
        return found

    ledger = Ledger(path)
    ledger.close_exchange(ExchangeId(0, 0), ("a", "b"), now=False)
    ledger.close()
    assert on_disk() == {}
    ledger = Ledger(path)
    ledger.close_exchange(ExchangeId(0, 0), ("a", "b"), now=False)
    ledger.commit([Row(ExchangeId(0, 1), "a", b"frame")])
    ledger.close()
    assert on_disk() == {0: ("a", "b")}
    ledger = Ledger(path)
    ledger.close_exchange(ExchangeId(0, 1), ("a",), now=True)
    assert ledger.closed(0) == {0: ("a", "b"), 1: ("a",)}
    ledger.close()
    assert on_disk() == {0: ("a", "b"), 1: ("a",)}


def test_the_last_checkpoint_counts_and_what_was_before_it_is_gone(ledger):
    for round_ in range(3):
        ledger.close_exchange(ExchangeId(round_, 0), ("a",), now=True)
        ledger.checkpoint(round_ + 1, f"state {round_}".encode(), {"round": round_})
        assert ledger.last_checkpoint() == Checkpoint(round_ + 1, f"state {round_}".encode(), {"round": round_})
        assert ledger.closed(round_) == {}


def test_a_checkpoint_makes_waiting_records_needless(ledger):
    ledger.close_exchange(ExchangeId(0, 0), ("a",), now=False)
    ledger.checkpoint(1, b"state", {})
    ledger.commit([Row(ExchangeId(1, 0), "a", b"frame")])
    assert ledger.closed(0) == {}
    ledger.close_exchange(ExchangeId(1, 0), ("a",), now=False)
    ledger.checkpoint(1, b"state again", {})
    ledger.commit(())
    assert ledger.closed(1) == {0: ("a",)}


def test_a_copy_holds_everything(ledger, tmp_path):
    ledger.bind(b"spec")
    ledger.enrol("a", None, b"hello")
    ledger.checkpoint(1, b"state", {"n": 1})
    ledger.commit([Row(ExchangeId(1, 0), "a", b"frame")])
    ledger.close_exchange(ExchangeId(1, 0), ("a",), now=False)  # waits for a commit, and still is in the copy
    for _ in range(2):  # over itself, too
        ledger.copy_to(tmp_path / "copy.db")
    for opened in (Ledger(None, tmp_path / "copy.db"), Ledger(tmp_path / "copy.db")):
        assert opened.epoch == ledger.epoch + 1
        assert opened.bind(b"spec")
        assert opened.enrolled() == {"a": (0, b"hello")}
        assert opened.last_checkpoint() == Checkpoint(1, b"state", {"n": 1})
        assert opened.uploads(ExchangeId(1, 0)) == {"a": b"frame"}
        assert opened.has(ExchangeId(1, 0), "a")
        assert opened.closed(1) == {0: ("a",)}
        opened.commit([Row(ExchangeId(1, 0), "b", b"more")])  # on its own from here
        opened.close()
    assert not ledger.has(ExchangeId(1, 0), "b")


@pytest.mark.parametrize("contents", ["missing.db", "garbage.db", "theirs.db"])
def test_contents_that_are_no_ledger_are_refused(tmp_path, contents, foreign_database):
    (tmp_path / "garbage.db").write_bytes(b"once upon a time " * 100)
    foreign_database(tmp_path / "theirs.db")
    with pytest.raises(StoreError, match=f"{contents}: ") as caught:
        Ledger(None, tmp_path / contents)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "missing.db").exists()


UPLOAD_BYTES, GROUP, GROUPS = 40_000, 20, 6
COUNTERS = Path("/proc/self/io")


def written_bytes() -> int:
    return int(re.search(r"wchar: (\d+)", COUNTERS.read_text())[1])  # type: ignore[index]  # the file always has it


def groups_of_a_round(round_: int) -> list[list[Row]]:
    names = [[f"d-{group}-{number}" for number in range(GROUP)] for group in range(GROUPS)]
    frame = bytes([round_]) * UPLOAD_BYTES
    return [[Row(ExchangeId(round_, 0), name, frame) for name in group] for group in names]


@pytest.mark.skipif(not COUNTERS.exists(), reason="the kernel does not count what a process writes")
def test_an_upload_is_written_once(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")
    before, rounds = written_bytes(), 5
    for round_ in range(rounds):
        for group in groups_of_a_round(round_):
            ledger.commit(group)
        ledger.checkpoint(round_ + 1, bytes(10_000), {})
    ledger.close()
    assert written_bytes() - before <= 1.3 * rounds * GROUPS * GROUP * UPLOAD_BYTES
    assert (tmp_path / "ledger.db").stat().st_size <= GROUP * UPLOAD_BYTES


@pytest.mark.parametrize("form", [FileForm(16384), FileForm(8192, shrinks=True)])
def test_a_file_keeps_its_form(tmp_path, form):
    """Files of earlier versions do not shrink; a deleted one is written again in its own form."""
    path = tmp_path / "ledger.db"
    earlier = sqlite3.connect(path)
    earlier.executescript(
        f"PRAGMA page_size={form.page_bytes}; PRAGMA auto_vacuum={int(form.shrinks)}; "
        f"PRAGMA application_id={APPLICATION_ID}; VACUUM"
    )
    earlier.close()
    ledger = Ledger(path)
    ledger.commit(groups_of_a_round(0)[0])
    path.unlink()
    with pytest.raises(StoreError, match=r"ledger\.db"):
        ledger.commit(groups_of_a_round(0)[1])
    ledger.commit(groups_of_a_round(0)[1])
    ledger.copy_to(tmp_path / "copy.db")
    ledger.close()
    assert file_form(path) == file_form(tmp_path / "copy.db") == form
    for again in (Ledger(path), Ledger(None, tmp_path / "copy.db")):
        assert len(again.uploads(ExchangeId(0, 0))) == 2 * GROUP
        again.checkpoint(1, b"", {})
        again.commit(groups_of_a_round(1)[0])
        again.close()

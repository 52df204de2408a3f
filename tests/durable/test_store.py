"""A device's store: on disk and in memory the same, and on disk what outlives the power."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from edge_sdk.device.store import FinishedExchange, MemoryStore, RoundStart, SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "device.db")
    yield store
    store.close()


def done(round_: int, exchange: int, text: str = "", *, receipted: bool = False) -> FinishedExchange:
    return FinishedExchange(
        round_, exchange, f"assign {round_} {exchange}".encode(), f"upload {text}".encode(), receipted
    )


def test_a_new_store_is_empty(store):
    assert store.boot_epoch == 1
    assert store.welcome() is None
    assert store.round_start() is None
    assert store.saved_round() is None
    assert store.finished() == ()


def test_the_last_welcome_counts(store):
    store.save_welcome(b"first")
    store.save_welcome(b"second")
    assert store.welcome() == b"second"


def test_exchanges_add_up_until_a_new_start_replaces_them(store):
    store.save_start(RoundStart(0, b"model", b"method"))
    store.save(done(0, 0))
    store.save(done(0, 1))
    assert store.finished() == (done(0, 0), done(0, 1))
    assert [store.upload(0, exchange) for exchange in range(3)] == [done(0, 0).upload, done(0, 1).upload, None]
    store.save(done(1, 0), RoundStart(1, b"model 1", b"method 1"))
    assert store.round_start() == RoundStart(1, b"model 1", b"method 1")
    assert store.saved_round() == 1
    assert store.finished() == (done(1, 0),)
    assert (store.upload(0, 1), store.upload(1, 0)) == (None, done(1, 0).upload)
    store.save_start(RoundStart(2, b"", b""))
    assert store.finished() == ()
    assert store.upload(1, 0) is None
    store.save(done(2, 0))
    store.enter_run(b"welcome", RoundStart(0, b"", b""))
    assert store.upload(2, 0) is None


def test_an_upload_can_still_be_sent_once_it_has_its_receipt(store):
    store.save_start(RoundStart(0, b"", b""))
    store.save(done(0, 0, "known"))
    store.mark_receipted(0, 0)
    assert store.upload(0, 0) == done(0, 0, "known").upload


def test_a_start_that_is_only_held_leaves_what_may_have_to_be_sent_again(store):
    first, second = RoundStart(0, b"model", b"method"), RoundStart(1, b"model 1", b"method 1")
    store.save_start(first)
    store.save(done(0, 0))
    store.begin_round(second)
    assert store.round_start() == (second if isinstance(store, MemoryStore) else first)
    assert store.saved_round() == 0
    assert store.finished() == (done(0, 0),)
    store.save(done(1, 0), second)
    assert (store.round_start(), store.saved_round(), store.finished()) == (second, 1, (done(1, 0),))


def test_exchanges_come_in_order_and_once(store):
    store.save(done(0, 1))
    store.save(done(0, 0))
    store.save(done(0, 1, "again"))
    assert store.finished() == (done(0, 0), done(0, 1, "again"))


def test_a_receipt_is_remembered(store):
    store.save(done(0, 0))
    store.save(done(0, 1))
    store.mark_receipted(0, 1)
    store.mark_receipted(7, 7)
    assert store.finished() == (done(0, 0), done(0, 1, receipted=True))
    store.save(done(0, 2))
    assert store.finished() == (done(0, 0), done(0, 1, receipted=True), done(0, 2))


places = st.tuples(st.integers(0, 2), st.integers(0, 2))
starts = st.builds(RoundStart, st.integers(0, 2), st.binary(max_size=3), st.binary(max_size=3))
dones = st.builds(
    lambda place, assign, upload: FinishedExchange(*place, assign, upload),
    places,
    st.binary(max_size=3),
    st.binary(max_size=3),
)
actions = st.one_of(
    st.tuples(st.just("save"), dones, st.none() | starts),
    st.tuples(st.just("save_start"), starts),
    st.tuples(st.just("mark_receipted"), places),
    st.tuples(st.just("save_welcome"), st.binary(max_size=3)),
)


@examples(25)
@given(st.lists(actions, max_size=12))
def test_disk_and_memory_are_the_same(script):
    with tempfile.TemporaryDirectory() as folder:
        disk, memory = SqliteStore(Path(folder) / "device.db"), MemoryStore()
        for name, *arguments in script:
            for store in (disk, memory):
                getattr(store, name)(*(arguments[0] if name == "mark_receipted" else arguments))
            assert disk.welcome() == memory.welcome()
            assert disk.round_start() == memory.round_start()
            assert disk.finished() == memory.finished()
        disk.close()


def test_what_is_saved_outlives_the_process(tmp_path):
    store = SqliteStore(tmp_path / "state" / "device.db")
    store.save_welcome(b"welcome")
    store.save(done(0, 0), RoundStart(0, b"model", b"method"))
    store.mark_receipted(0, 0)
    store.save(done(0, 1))  # the receipt rides along
    store.mark_receipted(0, 1)  # not durable by itself: costs one duplicate
    store.close()
    again = SqliteStore(tmp_path / "state" / "device.db")
    assert again.boot_epoch == 2
    assert again.welcome() == b"welcome"
    assert again.round_start() == RoundStart(0, b"model", b"method")
    assert again.finished() == (done(0, 0, receipted=True), done(0, 1))
    again.close()


def test_the_secret_of_a_device_is_drawn_once(tmp_path):
    """It keys the noise: with another one the same data would leave with other noise, which cancels out."""
    secrets = []
    for _ in range(2):
        store = SqliteStore(tmp_path / "device.db")
        secrets.append(store.secret)
        store.close()
    other = SqliteStore(tmp_path / "other.db")
    assert secrets[0] == secrets[1] != other.secret
    other.close()


def test_a_store_in_memory_asks_for_the_start_between_rounds():
    store, live = MemoryStore(), [b"after round 0"]
    first = RoundStart(0, b"model", b"")
    store.begin_round(first)
    store.save(FinishedExchange(0, 0, b"assign", b"upload"), first)
    assert store.round_start() == first
    store.rest(lambda: RoundStart(1, live[0], b""))
    assert store.round_start() == RoundStart(1, b"after round 0", b"")
    assert store.saved_round() == 0
    before = copy.deepcopy(store)
    store.hold()
    live[0] = b"lost with the power"
    for each in (store, before):
        assert each.round_start() == RoundStart(1, b"after round 0", b"")
        assert each.finished() == (FinishedExchange(0, 0, b"assign", b"upload"),)


def test_a_store_in_memory_drops_an_older_upload_that_has_its_receipt():
    store = MemoryStore()
    store.save(FinishedExchange(0, 0, b"assign", b"sent"), RoundStart(0, b"", b""))
    store.begin_round(RoundStart(1, b"", b""))
    assert store.upload(0, 0) == b"sent"  # the coordinator may still ask for it
    store.mark_receipted(0, 0)
    store.begin_round(RoundStart(1, b"", b""))
    assert store.upload(0, 0) is None
    assert [done.receipted for done in store.finished()] == [True]

"""The sample store: what it keeps, in which part, within which bounds, and what survives."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sdk.errors import StoreError, UsageError
from edge_sdk.samples.reservoir import Reservoir
from edge_sdk.samples.rows import RowFile
from edge_sdk.samples.store import LEAST_BYTES, SampleStore

PARTS = ("train", "validation", "local_test")


def sample(i, d=4):
    return np.full(d, i, np.float32)


def held(store):
    """The numbers of the labelled samples by part, each with its label."""
    data = store.take_snapshot().data
    parts = [getattr(data, name) for name in PARTS]
    return [dict(zip(part.x[:, 0].astype(int), part.y.tolist(), strict=True)) if part else {} for part in parts]


def together(store):
    return {number: y for part in held(store) for number, y in part.items()}


def memory(**more):
    return SampleStore(None, **{"classes": 4, **more})


# -- which samples stay ----------------------------------------------------------------------------------------------


@given(labels=st.lists(st.integers(0, 3), max_size=120), room=st.integers(4, 30), seed=st.integers(0, 3))
def test_each_class_keeps_an_equal_share(labels, room, seed):
    store = memory(max_samples=room, seed=seed)
    for i, y in enumerate(labels):
        store.observe(sample(i), y)
    came = np.bincount(labels, minlength=4)
    counts = np.sum([store.counts().train, store.counts().validation, store.counts().test], axis=0)
    assert counts.sum() == len(store) == min(room, len(labels))
    most = counts.max()
    for kept, all_ in zip(counts, came, strict=True):
        assert kept == all_ or kept >= most - 1  # what was cut is among the largest; a rare class is whole


@given(st.permutations(range(40)), st.integers(0, 3))
def test_what_stays_does_not_depend_on_the_order(order, seed):
    one, other = memory(max_samples=12, seed=seed), memory(max_samples=12, seed=seed)
    for i in range(40):
        one.observe(sample(i), i % 2)
        other.observe(sample(order[i]), order[i] % 2)
    assert together(one) == together(other)


def test_the_draw_is_uniform():
    kept = np.zeros(50)
    for seed in range(400):
        reservoir = Reservoir(10, seed)
        for i in range(50):
            kept[i] += 1
            for gone in reservoir.add(str(i), 0):
                kept[int(gone)] -= 1
    assert np.abs(kept - 80).max() < 4.5 * np.sqrt(400 * 0.2 * 0.8)  # 4.5 deviations of each of 50 counts


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=150))
def test_parts_are_disjoint_for_ever(steps):
    store, seen = memory(max_samples=6), {}
    for i, y in steps:
        store.observe(sample(i), y)
        for part, numbers in enumerate(held(store)):
            for number in numbers:
                assert seen.setdefault(number, part) == part


def test_parts_have_their_shares_and_the_same_in_every_store():
    one, other = memory(split=(0.5, 0.25, 0.25)), memory(split=(0.5, 0.25, 0.25))
    for i in range(2000):
        one.observe(sample(i), 0)
        other.observe(sample(1999 - i), 3)
    assert [set(part) for part in held(one)] == [set(part) for part in held(other)]
    sizes = np.array([len(part) for part in held(one)])
    assert (np.abs(sizes - [1000, 500, 500]) < 100).all()


def test_a_sample_observed_twice_is_one_with_the_newest_label():
    store = memory()
    first = store.observe(sample(1), 0)
    assert store.observe(sample(1), 2) == first
    assert together(store) == {1: 2}
    assert store.observe(sample(1)) == first
    assert together(store) == {1: 2}


# -- labels that come later ------------------------------------------------------------------------------------------


def test_an_empty_store_is_a_store():
    assert memory()
    assert len(memory()) == 0


def test_a_label_may_come_later():
    store = memory()
    later = store.observe(sample(1))
    assert together(store) == {}
    assert store.counts().unlabelled == 1
    assert store.label(later, 3)
    assert together(store) == {1: 3}
    assert store.counts().unlabelled == 0


def test_the_oldest_samples_without_a_label_give_way():
    store = memory(max_unlabelled=2)
    ids = [store.observe(sample(i)) for i in range(4)]
    assert [store.label(each, 0) for each in ids] == [False, False, True, True]
    assert store.counts().dropped == 2
    assert not store.label("no such sample", 0)


def test_a_discarded_sample_is_gone():
    store = memory()
    one, two = store.observe(sample(1), 1), store.observe(sample(2))
    assert store.discard(one)
    assert store.discard(two)
    assert not store.discard(one)
    assert not store.label(two, 1)
    assert together(store) == {}


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [4, -1, 1.0, "pump", True, np.float32(1)])
def test_a_class_that_there_is_not(y):
    store = memory()
    one = store.observe(sample(1))
    with pytest.raises(UsageError, match=r"0\.\.3"):
        store.observe(sample(2), y)
    with pytest.raises(UsageError, match=r"0\.\.3"):
        store.label(one, y)
    assert store.counts().unlabelled == 1


@pytest.mark.parametrize(
    "x",
    [
        np.array([1, np.nan, 0, 0], np.float32),
        np.array([1, np.inf, 0, 0]),
        np.array([1e39, 0, 0, 0]),
        np.zeros(3, np.float32),
        np.zeros((2, 2), np.float32),
        np.zeros(4, np.uint8),
        np.zeros(4, np.int64),
        np.float32(1),
        np.zeros(0, np.float32),
        [[1.0], [1.0, 2.0]],
        "text",
        None,
    ],
)
def test_a_sample_that_does_not_fit(x):
    store = memory()
    store.observe(sample(1), 0)
    with pytest.raises(UsageError, match="sample"):
        store.observe(x, 0)
    assert len(store) == 1


def test_a_declared_form_holds_from_the_first_sample_on():
    store = memory(shape=(8, 8), dtype="uint8")
    with pytest.raises(UsageError, match=r"\(8, 8\)"):
        store.observe(sample(1), 0)
    assert store.take_snapshot().data.train.x.shape == (0, 8, 8)
    with pytest.raises(UsageError, match="both"):
        memory(shape=(8, 8))


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 1},
        {"max_samples": 3},
        {"max_bytes": LEAST_BYTES - 1},
        {"unsaved": 0},
        {"max_unlabelled": -1},
        {"classes": "4"},
        {"classes": None},
        {"max_samples": 50.0},
        {"max_bytes": "8 MB"},
        {"split": (0.5, 0.5, 0.5)},
        {"split": (0.0, 0.5, 0.5)},
        {"shape": (4,), "dtype": "int16"},
        {"shape": (0,), "dtype": "uint8"},
    ],
)
def test_settings_out_of_range(wrong):
    with pytest.raises(UsageError):
        memory(**wrong)


@pytest.mark.parametrize("path", [".", "", "..", 5, "a\0b"])
def test_a_path_that_is_no_file(path):
    with pytest.raises(UsageError, match=r"^path "):
        SampleStore(path, classes=4)


def test_samples_too_large_for_the_bytes(tmp_path):
    with SampleStore(tmp_path / "s.db", classes=4, max_bytes=LEAST_BYTES) as store, pytest.raises(UsageError):
        store.observe(np.zeros((400, 400)), 0)


@pytest.mark.parametrize("other", [{"classes": 5}, {"seed": 1}, {"split": (0.7, 0.2, 0.1)}])
def test_a_file_keeps_the_settings_that_parts_depend_on(tmp_path, other):
    made = {"classes": 4, "seed": 0, "split": (0.8, 0.1, 0.1)}
    with SampleStore(tmp_path / "s.db", **made) as store:
        store.observe(sample(1), 0)
    with pytest.raises(UsageError, match=next(iter(other))):
        SampleStore(tmp_path / "s.db", **made | other)
    SampleStore(tmp_path / "s.db", **made).close()  # the failed ones have not kept the file


# -- on the disk -----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("observe"), st.integers(0, 60), st.one_of(st.none(), st.integers(0, 3))),
        st.tuples(st.just("label"), st.integers(0, 60), st.integers(0, 3)),
        st.tuples(st.just("discard"), st.integers(0, 60), st.none()),
        st.tuples(st.just("snapshot"), st.integers(0, 5), st.none()),
    ),
    max_size=80,
)
ROOM = {"max_samples": 20, "max_unlabelled": 5}


def carry_out(store, steps, ids=None):
    """Do what the steps say; a snapshot is taken and one of the last is released."""
    ids, taken = {} if ids is None else ids, []
    for what, i, y in steps:
        if what == "observe":
            ids[i] = store.observe(sample(i), y)
        elif what == "label":
            store.label(ids.get(i, ""), y)
        elif what == "discard":
            store.discard(ids.get(i, ""))
        else:
            taken.append(store.take_snapshot().id)
            store.release(taken[max(0, len(taken) - 1 - i)])


def everything(store):
    counts = store.counts()
    return held(store), counts.train, counts.validation, counts.test, counts.unlabelled


@settings(max_examples=15, deadline=None)
@given(steps=STEPS, more=STEPS)
def test_a_store_that_was_opened_again_is_the_same(tmp_path_factory, steps, more):
    path = tmp_path_factory.mktemp("stores") / "s.db"
    whole, ids = memory(**ROOM), {}
    carry_out(whole, steps, ids)
    with SampleStore(path, classes=4, **ROOM) as store:
        carry_out(store, steps)
        before = everything(store)
    assert before == everything(whole)
    with SampleStore(path, classes=4, **ROOM) as store:
        assert everything(store) == before
        carry_out(store, more, dict(ids))
        carry_out(whole, more, dict(ids))
        assert everything(store) == everything(whole)


@settings(max_examples=4, deadline=None)
@given(d=st.sampled_from([40, 300, 2000]), seed=st.integers(0, 99), every=st.integers(50, 300))
def test_the_file_stays_within_its_bytes(tmp_path_factory, d, seed, every):
    folder, rng, most = tmp_path_factory.mktemp("bounded"), np.random.default_rng(seed), 0
    with SampleStore(folder / "s.db", classes=4, max_samples=10**6, max_bytes=LEAST_BYTES) as store:
        for i in range(1_500_000 // (4 * d + 400)):
            store.observe(rng.random(d, np.float32), int(rng.integers(4)) if rng.random() < 0.8 else None)
            if i % every == 0:
                store.release(store.take_snapshot().id)
            if i % 50 == 0:
                most = max(most, sum(path.stat().st_size for path in folder.iterdir()))
        assert 0 < len(store) <= store.capacity
        store.flush()
    assert most <= LEAST_BYTES


def test_settings_of_room_may_change(tmp_path):
    with SampleStore(tmp_path / "s.db", classes=4) as store:
        for i in range(40):
            store.observe(sample(i), i % 4)
            store.observe(sample(100 + i))
    with SampleStore(tmp_path / "s.db", classes=4, max_samples=8, max_unlabelled=3) as store:
        assert len(store) == 8
        assert store.counts().unlabelled == 3
        small = together(store)
    with SampleStore(tmp_path / "s.db", classes=4) as store:
        assert together(store) == small


def test_changes_are_saved_together_and_at_longer_intervals_at_once(tmp_path):
    now_s = [0.0]
    with SampleStore(tmp_path / "s.db", classes=4, unsaved=8, save_every_s=10, clock=lambda: now_s[0]) as store:
        waiting = []
        for i in range(20):
            store.observe(sample(i), 0)
            waiting.append(store.counts().unsaved)
        assert waiting == [0, *[1, 2, 3, 4, 5, 6, 7, 0] * 2, 1, 2, 3]
        now_s[0] = 11
        store.save_if_due()
        assert store.counts().unsaved == 0
        for i in range(20, 24):
            now_s[0] += 10
            store.observe(sample(i), 0)
            assert store.counts().unsaved == 0
        store.observe(sample(30), 0)
        store.flush()
        assert store.counts().unsaved == 0


def test_an_interrupt_after_a_commit_costs_nothing(tmp_path, monkeypatch):
    """Ctrl-C may come once the samples are on the disk, and before the store knows; it is closed then."""
    commit = RowFile.commit

    def interrupted(file, **changes):
        commit(file, **changes)
        raise KeyboardInterrupt

    store = SampleStore(tmp_path / "s.db", classes=4)
    for i in range(5):
        store.observe(sample(i), i % 4)
    with monkeypatch.context() as patched:
        patched.setattr(RowFile, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.flush()
    store.observe(sample(5), 1)
    store.close()
    with SampleStore(tmp_path / "s.db", classes=4) as again:
        assert together(again) == {i: i % 4 for i in range(6)}


def test_a_damaged_sample_is_left_out_and_said(tmp_path, caplog):
    with SampleStore(tmp_path / "s.db", classes=4) as store:
        for i in range(20):
            store.observe(sample(i), 0)
        old = store.take_snapshot().id
    with sqlite3.connect(tmp_path / "s.db") as db:
        db.execute("UPDATE samples SET x = zeroblob(16) WHERE key IN (3, 4)")
    db.close()
    with SampleStore(tmp_path / "s.db", classes=4) as store:
        assert store.snapshot(old) is None
        assert set(together(store)) == set(range(20)) - {3, 4}
        assert "2 samples" in caplog.text
        assert set(together(store)) == set(range(20)) - {3, 4}


# -- snapshots -------------------------------------------------------------------------------------------------------


def contents(snapshot):
    data = snapshot.data
    return [
        None if part is None else (part.x.tobytes(), part.y.tobytes())
        for part in (data.train, data.validation, data.local_test)
    ]


@settings(max_examples=15, deadline=None)
@given(steps=STEPS, more=STEPS)
def test_a_snapshot_can_be_read_again_until_a_newer_one_is_released(tmp_path_factory, steps, more):
    path = tmp_path_factory.mktemp("stores") / "s.db"
    more = [step for step in more if step[0] != "snapshot"]
    with SampleStore(path, classes=4, **ROOM) as store:
        ids = {}
        carry_out(store, steps, ids)
        first = store.take_snapshot()
        carry_out(store, more, ids)
        second = store.take_snapshot()
        assert contents(store.snapshot(first.id)) == contents(first)
        carry_out(store, more, ids)
    with SampleStore(path, classes=4, **ROOM) as store:
        assert contents(store.snapshot(first.id)) == contents(first)
        assert contents(store.snapshot(second.id)) == contents(second)
        store.release(second.id)
        assert contents(store.snapshot(second.id)) == contents(second)
        assert (store.snapshot(first.id) is None) == (first.id != second.id)


def test_unchanged_data_are_the_same_snapshot():
    store = memory()
    store.observe(sample(1), 0)
    first = store.take_snapshot()
    store.observe(sample(2))
    assert store.take_snapshot(first) is first
    store.observe(sample(2), 0)
    assert store.take_snapshot(first).id != first.id
    assert memory().snapshot(first.id) is None


def test_a_class_that_was_lost_is_told_once(tmp_path):
    with SampleStore(tmp_path / "s.db", classes=4, split=(1, 0, 0)) as store:
        one = store.observe(sample(1), 2)
        store.observe(sample(2), 0)
        assert store.take_snapshot().lost == ()
        store.label(one, 3)
    with SampleStore(tmp_path / "s.db", classes=4, split=(1, 0, 0)) as store:
        assert store.take_snapshot().lost == (2,)
        store.observe(sample(3), 0)
        assert store.take_snapshot().lost == ()


def test_released_samples_leave_the_disk(tmp_path):
    with SampleStore(tmp_path / "s.db", classes=4, max_samples=4, unsaved=8) as store:
        store.observe(sample(0, 100), 0)
        for i in range(1, 200):
            store.observe(sample(i, 100), i % 4)
            if i % 10 == 0:
                store.release(store.take_snapshot().id)
        store.flush()
    with sqlite3.connect(tmp_path / "s.db") as db:
        (rows,) = db.execute("SELECT COUNT(*) FROM samples").fetchone()
    db.close()
    assert rows <= 3 * 4


def test_a_closed_store_says_so_and_closes_again(tmp_path):
    store = SampleStore(tmp_path / "s.db", classes=4)
    name = store.observe(sample(1), 2)
    store.close()
    for late in (lambda: store.observe(sample(2), 0), lambda: store.label(name, 1), lambda: store.discard(name)):
        with pytest.raises(UsageError, match="closed"):
            late()
    with pytest.raises(StoreError) as caught:
        store.take_snapshot()
    assert "damaged" not in str(caught.value)
    store.flush()
    store.close()
    with SampleStore(tmp_path / "s.db", classes=4) as again:
        assert len(again) == 1

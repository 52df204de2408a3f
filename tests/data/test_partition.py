"""Who holds which samples: every sample once, as many classes as asked for, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from properties import examples

from edge_sdk.errors import UsageError
from edge_sim.config.settings import PartitionTable
from edge_sim.data import partition as drawing
from edge_sim.data.partition import partition

KINDS = ("iid", "classes_per_device", "dirichlet")


def labels(classes: int, each: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.arange(classes * each) % classes)


def is_whole(parts: list[np.ndarray], count: int) -> bool:
    """Every sample on exactly one device, in order."""
    return np.array_equal(np.sort(np.concatenate(parts)), np.arange(count)) and all(
        part.dtype == np.int64 and bool((np.diff(part) > 0).all()) for part in parts
    )


@examples(100)
@given(
    table=st.builds(
        PartitionTable,
        kind=st.sampled_from(KINDS),
        classes_per_device=st.integers(1, 6),
        alpha=st.floats(1e-3, 1e6),
        min_samples=st.integers(1, 5),
    ),
    y=st.lists(st.integers(0, 5), min_size=1, max_size=120).map(np.array),
    devices=st.integers(1, 8),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_sample_goes_to_exactly_one_device(table, y, devices, seed):
    """Whatever the labels: all of it, the same again for the same seed, and enough on each; or a UsageError."""

    def deal():
        return partition(table, y, devices, 6, seed)

    try:
        parts = deal()
    except UsageError:
        with pytest.raises(UsageError, match=r"^partition\.[a-z_]+: "):
            deal()
        return
    assert len(parts) == devices
    assert is_whole(parts, len(y))
    assert min(map(len, parts)) >= table.min_samples
    assert all(np.array_equal(a, b) for a, b in zip(parts, deal(), strict=True))


@examples(100)
@given(
    classes=st.integers(1, 12),
    held=st.integers(1, 12),
    devices=st.integers(1, 15),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_device_has_as_many_classes_as_asked_for(classes, held, devices, seed):
    """And each class has about as many holders, who share it evenly."""
    assume(held <= classes <= devices * held)
    y = labels(classes, 40)
    parts = partition(PartitionTable(classes_per_device=held, min_samples=1), y, devices, classes, seed)
    counts = np.array([np.bincount(y[part], minlength=classes) for part in parts])  # (devices, classes)
    assert ((counts > 0).sum(axis=1) == held).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for k in range(classes):
        shares = counts[counts[:, k] > 0, k]
        assert shares.max() - shares.min() <= 1
    assert is_whole(parts, len(y))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_is_another_partition(kind):
    y, table = labels(6, 40), PartitionTable(kind=kind)
    first, second = (partition(table, y, 5, 6, seed) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_partition_may_have_a_seed_of_its_own():
    y, own = labels(6, 40), PartitionTable(seed=9)
    first, second, same = (
        partition(own, y, 4, 6, 0),
        partition(own, y, 4, 6, 1),
        partition(PartitionTable(), y, 4, 6, 9),
    )
    for a, b, c in zip(first, second, same, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c)


def test_identically_distributed_parts_are_of_equal_size():
    sizes = [len(part) for part in partition(PartitionTable(kind="iid"), labels(4, 25), 7, 4, 0)]
    assert sorted(sizes) == [14, 14, 14, 14, 14, 15, 15]


def test_just_enough_samples_are_enough():
    parts = partition(PartitionTable(kind="iid", min_samples=25), labels(4, 25), 4, 4, 0)
    assert [len(part) for part in parts] == [25, 25, 25, 25]


def test_alpha_says_how_uneven_the_shares_are():
    y = labels(10, 200)

    def largest_share(alpha: float) -> float:
        """Mean over devices of the share of their most frequent class."""
        parts = partition(PartitionTable(kind="dirichlet", alpha=alpha), y, 8, 10, 0)
        return float(np.mean([np.bincount(y[part]).max() / len(part) for part in parts]))

    assert largest_share(0.1) > 0.4
    assert largest_share(100.0) < 0.2


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"classes_per_device": 5}, r"partition\.classes_per_device: .*4, found 5"),
        ({"classes_per_device": 1}, r"partition\.classes_per_device: 3 .*1 .*4 classes; "),
        (
            {"kind": "iid", "min_samples": 14},
            r"partition\.min_samples: 3 .*14 .*42, .*40 .*; ",
        ),
        (
            {"kind": "dirichlet", "alpha": 0.001, "min_samples": 13},
            r"partition\.alpha: .*0\.001.* 3 .*13 samples; ",
        ),
    ],
)
def test_what_cannot_be_is_said(table, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        partition(PartitionTable(**table), labels(4, 10), 3, 4, 0)


def test_many_devices_get_their_parts_and_too_many_are_refused_at_once():
    y = labels(10, 20_000)
    assert is_whole(partition(PartitionTable(kind="dirichlet", alpha=50.0), y, 20_000, 10, 0), 200_000)
    with pytest.raises(UsageError, match=r"^partition\.min_samples: 100,000 .* 400,000, .*200,000 for them"):
        partition(PartitionTable(kind="dirichlet", alpha=0.1), y, 100_000, 10, 0)


def test_draws_that_leave_many_devices_short_are_not_repeated(monkeypatch):
    drawn: list[int] = []
    divide = drawing._divide
    monkeypatch.setattr(drawing, "_divide", lambda *given: drawn.append(1) or divide(*given))
    with pytest.raises(UsageError, match="min_samples"):
        partition(PartitionTable(kind="dirichlet", alpha=0.1, min_samples=5), labels(10, 500), 500, 10, 0)
    assert len(drawn) == 3 * 10
    drawn.clear()
    with pytest.raises(UsageError, match="min_samples"):  # of few devices one of many draws may do
        partition(PartitionTable(kind="dirichlet", alpha=0.001, min_samples=13), labels(10, 12), 8, 10, 0)
    assert len(drawn) == drawing.DIRICHLET_TRIES * 10


def test_classes_that_no_sample_has_leave_their_holders_poorer():
    """Possible only as far as there are samples; still every sample goes somewhere."""
    y = np.array([0, 1] * 20)
    parts = partition(PartitionTable(classes_per_device=2, min_samples=1), y, 4, 4, 0)
    assert is_whole(parts, 40)

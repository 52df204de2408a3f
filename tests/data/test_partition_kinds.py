"""All kinds of partitions alike, and those by size and by user; the older kinds more closely in test_partition.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import UsageError
from edge_sim.config.settings import PartitionTable
from edge_sim.data.partition import partition

KINDS = (
    "iid",
    "dirichlet",
    "dirichlet-per-device",
    "dirichlet-equal",
    "shards",
    "classes_per_device",
    "quantity_skew",
    "user",
)
CLASSES = 4


def table(kind: str, **more: Any) -> PartitionTable:
    return PartitionTable(kind=kind, **{"min_samples": 1, "classes_per_device": 2, **more})


def labels(count: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.arange(count) % CLASSES)


def counts(y: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """Samples by device and class: (devices, CLASSES)."""
    return np.array([np.bincount(y[part], minlength=CLASSES) for part in parts])


@given(
    st.sampled_from(KINDS),
    st.integers(60, 300),
    st.integers(2, 10),
    st.tuples(st.floats(0.3, 100), st.integers(1, 4)),
    st.integers(0, 2**32 - 1),
)
def test_every_sample_goes_to_exactly_one_device(kind, count, devices, shape, seed) -> None:
    alpha, least = shape
    y, users = labels(count), np.arange(count) % 13
    rule = table(kind, alpha=alpha, min_samples=least)
    parts = partition(rule, y, devices, CLASSES, seed, users=users)
    assert len(parts) == devices
    assert sorted(np.concatenate(parts)) == list(range(count))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert min(map(len, parts)) >= least
    again = partition(rule, y, devices, CLASSES, seed, users=users)
    assert all((a == b).all() for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_seed_counts_before_the_federations(kind: str) -> None:
    y, users = labels(200), np.arange(200) % 13

    def drawn(own: int | None, federation: int) -> list[list[int]]:
        parts = partition(table(kind, seed=own), y, 6, CLASSES, federation, users=users)
        return [list(part) for part in parts]

    assert drawn(5, 0) == drawn(5, 1) == drawn(None, 5)
    assert drawn(6, 0) != drawn(5, 0)


def test_quantity_skew_skews_sizes_and_not_classes() -> None:
    y = labels(20_000)

    def sizes(alpha: float) -> tuple[float, float]:
        held = counts(y, partition(table("quantity_skew", alpha=alpha, min_samples=200), y, 10, CLASSES, 0))
        mix = held / held.sum(axis=1, keepdims=True)
        return float(held.sum(axis=1).std() / 2000), float(np.abs(mix - 0.25).max())

    skewed, mix = sizes(0.3)
    even, _ = sizes(1000)
    assert skewed > 0.7
    assert even < 0.1
    assert mix < 0.1


def test_a_user_is_never_torn_apart() -> None:
    y, users = labels(90), np.array(list("abcdefghi") * 10)
    parts = partition(table("user"), y, 4, CLASSES, 0, users=users)
    owners = [set(users[part]) for part in parts]
    assert sorted(name for own in owners for name in own) == list("abcdefghi")
    assert sorted(map(len, owners)) == [2, 2, 2, 3]
    alone = partition(table("user"), y, 9, CLASSES, 0, users=users)
    assert [set(users[part]) for part in alone] == [{name} for name in "abcdefghi"]


@pytest.mark.parametrize(
    ("rule", "devices", "message"),
    [
        (
            table("quantity_skew", min_samples=11),
            4,
            r"partition\.min_samples: 4 devices with 11 samples each need 44, and there are 40",
        ),
        (table("user"), 4, r"partition\.kind: 3 users .* 4 devices"),
    ],
)
def test_what_cannot_be_dealt_is_refused(rule: PartitionTable, devices: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        partition(rule, labels(40), devices, CLASSES, 0, users=np.arange(40) % 3)


def test_users_must_be_known() -> None:
    with pytest.raises(UsageError, match=r'"user" .* user_train'):
        partition(table("user"), labels(40), 4, CLASSES, 0)


@pytest.mark.parametrize("alpha", [0.01, 0.5, 100.0])
def test_devices_of_one_size_with_mixes_of_their_own(alpha: float) -> None:
    y = labels(1003)
    parts = partition(table("dirichlet-equal", alpha=alpha), y, 10, CLASSES, 0)
    assert sorted(map(len, parts)) == [100] * 7 + [101] * 3
    largest = (counts(y, parts) / np.array([[len(part)] for part in parts])).max(axis=1)
    assert np.median(largest) > 0.95 if alpha < 0.1 else True
    assert largest.max() < 0.45 if alpha > 10 else True


def test_mixes_for_each_device_serve_more_devices_than_classes() -> None:
    """Where each class alone is divided, a small alpha gives it to one device, and most devices have nothing."""
    y = labels(2000)
    parts = partition(table("dirichlet-per-device", alpha=0.01, min_samples=4), y, 20, CLASSES, 0)
    held = counts(y, parts)
    assert np.median(held.max(axis=1) / held.sum(axis=1)) > 0.95
    with pytest.raises(UsageError, match=r"partition\.alpha: .* 20 devices"):
        partition(table("dirichlet", alpha=0.01, min_samples=4), y, 20, CLASSES, 0)
    even = counts(y, partition(table("dirichlet-per-device", alpha=1e5), y, 4, CLASSES, 0))
    assert np.abs(even - 125).max() <= 5


def test_shards_hold_neighbouring_samples_of_the_sorted_set() -> None:
    y = labels(400)
    parts = partition(table("shards", shards_per_device=2), y, 10, CLASSES, 0)
    assert {len(part) for part in parts} == {40}
    assert ((counts(y, parts) > 0).sum(axis=1) <= 2).all()  # 20 shards of 20, five in each class of 100
    with pytest.raises(UsageError, match=r"partition\.shards_per_device: 400 samples"):
        partition(table("shards", shards_per_device=50), y, 10, CLASSES, 0)

"""Draws that keep the mix of classes, and the division of a device's own samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import UsageError
from edge_sim.data.draw import cut, draw_evenly, hold_out

labels = st.lists(st.integers(0, 5), min_size=1, max_size=80).map(np.array)
seeds = st.integers(0, 2**32 - 1)


@given(labels, st.data(), seeds)
def test_an_even_draw_has_each_class_within_one_of_its_share(y: np.ndarray, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(0, len(y)))
    drawn = draw_evenly(y, count, np.random.default_rng(seed))
    assert len(drawn) == count
    assert (np.diff(drawn) > 0).all()
    for k in np.unique(y):
        assert abs((y[drawn] == k).sum() - count * (y == k).mean()) < 1
    np.testing.assert_array_equal(drawn, draw_evenly(y, count, np.random.default_rng(seed)))


def test_an_even_draw_reaches_every_sample() -> None:
    y = np.array([0, 0, 0, 1, 1, 2])
    drawn = np.concatenate([draw_evenly(y, 1, np.random.default_rng(seed)) for seed in range(200)])
    counts = np.bincount(drawn, minlength=6)
    assert (counts > 10).all()  # about 33 each


@given(labels, st.tuples(*[st.floats(0, 10) for _ in range(2)]), seeds)
def test_a_cut_is_a_partition_with_the_sizes_asked_for(y: np.ndarray, held: tuple[float, float], seed: int) -> None:
    shares = (8.0, *held)
    try:
        parts = cut(y, shares, np.random.default_rng(seed))
    except UsageError:
        wanted = sum(max(1, round(len(y) * share / sum(shares))) for share in held if share)
        assert wanted >= len(y)
        return
    assert sorted(np.concatenate(parts)) == list(range(len(y)))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert len(parts[0]) > 0
    for part, share in zip(parts[1:], held, strict=True):
        exact = len(y) * share / sum(shares)
        assert (len(part) == 0) if share == 0 else (len(part) >= 1 and abs(len(part) - exact) <= max(0.5, 1 - exact))


def test_eight_one_one_of_a_hundred() -> None:
    y = np.repeat([0, 1], [60, 40])
    train, validation, test = cut(y, (8, 1, 1), np.random.default_rng(3))
    assert [list(np.bincount(y[part])) for part in (train, validation, test)] == [[48, 32], [6, 4], [6, 4]]


def test_all_to_train_leaves_the_order_alone() -> None:
    train, validation, test = cut(np.arange(9), (1.0, 0.0, 0.0), np.random.default_rng(0))
    np.testing.assert_array_equal(train, np.arange(9))
    assert len(validation) == len(test) == 0


def test_too_few_to_cut_says_what_to_raise() -> None:
    with pytest.raises(UsageError, match=r"8:1:1; raise partition\.min_samples"):
        cut(np.zeros(2, int), (8, 1, 1), np.random.default_rng(0))


@given(labels, st.floats(0.05, 0.9), seeds)
def test_hold_out_takes_the_same_share_of_every_class(y: np.ndarray, fraction: float, seed: int) -> None:
    rest, held = hold_out(y, fraction, np.random.default_rng(seed))
    assert sorted(np.concatenate([rest, held])) == list(range(len(y)))
    for k in np.unique(y):
        assert (y[held] == k).sum() == round(fraction * (y == k).sum())

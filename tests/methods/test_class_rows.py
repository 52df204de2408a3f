"""Means of class rows over their holders, and what becomes of a class that nobody brings."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from method_specs import rows_of
from properties import examples

from edge_sdk.reductions.class_rows import MOST, carried_over, mean_over_holders


def test_two_holders_by_hand() -> None:
    """n = (3, 1), C = (1, 0) and (0, 1): the weighted mean is (.75, .25); equation 6 of FedProto, with its division too
    many, would be (.375, .125); with equal counts it is the plain mean (.5, .5)."""
    weighted = mean_over_holders([rows_of([4], [[1, 0]], [3]), rows_of([4], [[0, 1]], [1])])
    assert weighted == rows_of([4], [[0.75, 0.25]], [4])
    assert mean_over_holders([rows_of([4], [[1, 0]]), rows_of([4], [[0, 1]])]) == rows_of([4], [[0.5, 0.5]], [2])


def test_a_class_counts_its_own_holders_only() -> None:
    mean = mean_over_holders([rows_of([0, 2], [[2, 2], [6, 6]]), rows_of([2, 5], [[8, 8], [1, 1]])])
    assert mean == rows_of([0, 2, 5], [[2, 2], [7, 7], [1, 1]], [1, 2, 1])


def test_there_is_no_mean_of_nothing() -> None:
    with pytest.raises(ValueError, match="no class rows"):
        mean_over_holders([])


def test_counts_of_many_devices_stay_within_the_wire() -> None:
    full = rows_of([0], [[1.0]], [MOST])
    assert mean_over_holders([full, full]).counts.tolist() == [MOST]
    assert mean_over_holders([full, full]).rows.tolist() == [[1.0]]


def test_a_class_without_holder_keeps_its_row_and_a_late_one_is_added() -> None:
    before = rows_of([1, 3], [[1, 1], [3, 3]], [5, 6])
    now = rows_of([0, 3], [[9, 9], [8, 8]], [1, 2])
    assert carried_over(before, now) == rows_of([0, 1, 3], [[9, 9], [1, 1], [8, 8]], [1, 5, 2])
    assert carried_over(None, now) == now


VALUES = st.floats(-1e3, 1e3, width=32) | st.sampled_from([1e-12, -1e-12, 1e3, 0.0])


@st.composite
def uploads(draw: st.DrawFn) -> list:
    """Up to four devices with some of four classes each, values from 1e-12 to 1e3."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        classes = sorted(draw(st.sets(st.integers(0, 3), min_size=1)))
        rows = [draw(st.lists(VALUES, min_size=2, max_size=2)) for _ in classes]
        found.append(rows_of(classes, rows, [draw(st.integers(1, 1000)) for _ in classes]))
    return found


@examples(50)  # a busy machine is no fault
@given(uploads())
def test_the_mean_is_that_of_all_samples_and_lies_between_its_holders(ups: list) -> None:
    mean = mean_over_holders(ups)
    assert mean.classes.tolist() == sorted({int(each) for up in ups for each in up.classes})
    for label, row, count in zip(mean.classes, mean.rows, mean.counts, strict=True):
        held = [(up.rows[at], up.counts[at]) for up in ups for at in np.flatnonzero(up.classes == label)]
        samples = np.repeat([row for row, _ in held], [n for _, n in held], axis=0).astype(np.float64)
        np.testing.assert_allclose(row, samples.mean(axis=0), rtol=1e-6, atol=1e-6)
        assert (row >= samples.min(axis=0) - 1e-3).all()
        assert (row <= samples.max(axis=0) + 1e-3).all()
        assert count == len(samples)


def test_the_order_is_for_the_caller_to_fix() -> None:
    """Float sums depend on it; so `finish` sums in number order, which the merge laws hold it to."""
    rng = np.random.default_rng(0)
    ups = [rows_of([0], rng.normal(size=(1, 50)) * 10.0 ** rng.integers(-12, 4)) for _ in range(4)]
    means = [mean_over_holders([ups[i] for i in order]).rows for order in permutations(range(4))]
    np.testing.assert_allclose(means, np.broadcast_to(means[0], (24, 1, 50)), rtol=1e-6)

"""The quick look at an array says what a look at every number says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from edge_sdk.protocol.frames import value_range
from edge_sdk.protocol.frames.value_range import all_finite, all_within, min_max

ANY = st.sampled_from(("f2", "f4", "f8", ">f4", "i4", "i1")).flatmap(
    lambda code: arrays(code, array_shapes(max_dims=2, max_side=5))
)


@given(array=ANY, most=st.sampled_from((1.0, 1e3, 1e6)))
def test_as_number_by_number(array: NDArray[Any], most: float) -> None:
    numbers = [float(each) for each in array.ravel()]
    assert all_finite(array) == all(map(math.isfinite, numbers))
    assert all_within(array, most) == all(-most <= each <= most for each in numbers)


@pytest.mark.parametrize("size", [1, 8192, 8193, 100_000])
@pytest.mark.parametrize("code", ["f2", "f4"])
def test_one_bad_number_among_many(size: int, code: str) -> None:
    for at in {0, size // 2, size - 1}:
        array = np.full(size, 0.5, code)
        assert all_finite(array)
        assert all_within(array, 1e3)
        for bad in (np.nan, np.inf, -np.inf):
            array[at] = bad
            assert not all_finite(array)
            assert not all_within(array, 1e3)


def test_the_bound_is_exact() -> None:
    for most in (1e3, 1e6):
        edge = np.array([[most, -most, 0]], np.float32)
        assert all_within(edge, most)
        for beyond in (np.nextafter(np.float32(most), np.float32(np.inf)), np.float32(-most * 1.0001)):
            edge[0, 2] = beyond
            assert not all_within(edge, most)


def test_large_numbers_whose_squares_overflow_are_finite() -> None:
    assert all_finite(np.full(3, 3e38, np.float32))
    assert all_finite(np.full(3, 6e4, np.float16))


def test_extremes_carry_nan() -> None:
    assert min_max(np.array([3, -1, 2], np.float32)) == (-1.0, 3.0)
    assert all(map(math.isnan, min_max(np.array([3, np.nan, 2], np.float32))))


def test_arrays_in_frames_are_told_apart() -> None:
    size = 10_000
    frames = [np.full(size, value, np.float32).tobytes() for value in (1.0, 2.0, np.nan)]
    received = [np.ndarray((size,), np.float32, memoryview(frame)) for frame in frames]
    for _ in range(2):
        assert [all_within(array, 1.5) for array in received] == [True, False, False]
        assert [all_finite(array) for array in received] == [True, True, False]
    for frame in frames:  # each array is gone before the next one comes
        assert min_max(np.ndarray((size,), np.float32, frame))[0] is not None
    assert min_max(np.ndarray((size,), np.float32, frames[1])) == (2.0, 2.0)


def test_an_array_that_can_change_is_looked_at_each_time() -> None:
    array = np.zeros(10_000, np.float32)
    assert all_finite(array)
    array[-1] = np.inf
    assert not all_finite(array)
    view = array[:]
    view.flags.writeable = False
    assert min_max(view)[1] == np.inf
    array[-1] = 5.0
    assert min_max(view)[1] == 5.0


def test_the_range_of_a_shared_array_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each simulated device checks the whole test set when it wakes."""
    shared, other = np.full(20_000, 2, np.float32), np.full(20_000, 3, np.float32)
    value_range.note_shared(shared)
    monkeypatch.setattr(value_range, "np", None)  # nothing can look at the numbers now
    assert all_finite(shared)
    with pytest.raises(AttributeError):
        all_finite(other)
    monkeypatch.undo()
    others = [np.full(9000, i, np.float32) for i in range(40)]
    for each in others:
        value_range.note_shared(each)
    assert [min_max(each) for each in others] == [(i, i) for i in range(40)]
    assert len(value_range._SHARED) <= 16

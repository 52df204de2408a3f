"""LowRank: what is cut, what is put together again, and what is refused before anything is computed with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from payload_bytes import payload_bytes
from properties import examples
from protocol_samples import PAYLOADS

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.knowledge import Expect
from edge_sdk.protocol.low_rank import LowRank, as_matrix, expanded, factorised, joined, rank_of, stored

SAMPLE = PAYLOADS["low-rank"]
EXPECT = Expect(classes=3, weight_count=12)


def changed(**fields: object) -> LowRank:
    arrays = {key: np.array(value, getattr(SAMPLE, key).dtype) for key, value in fields.items() if key != "layout"}
    return replace(SAMPLE, **{**fields, **arrays})


def test_it_is_what_its_parts_multiply_to() -> None:
    u, s, v = SAMPLE.values[:2], SAMPLE.values[2], SAMPLE.values[3:8]
    np.testing.assert_allclose(expanded(SAMPLE), [*np.outer(u * s, v).ravel(), *SAMPLE.values[8:]])


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (changed(heights=[2]), "1 heights"),
        (changed(heights=[], widths=[], ranks=[]), "0 heights"),
        (changed(heights=[0, 2]), "rank 1 for an array of 0 by 5"),
        (changed(ranks=[2, 0]), "rank 2 for an array of 2 by 5"),
        (changed(ranks=[-1, 0]), "rank -1"),
        (changed(ranks=[0, 0]), "10 numbers, expected 12"),
        (changed(heights=[2, 3], values=[1] * 11), "arrays of 13 numbers together, expected 12"),
        (changed(values=[*[2000.0] * 3, *[1.0] * 7]), "numbers of up to 4e"),
        (changed(values=[np.nan] + [1.0] * 9), "numbers of up to nan"),
    ],
)
def test_what_does_not_fit_is_refused(payload: LowRank, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words) as caught:
        payload.check(EXPECT)
    assert caught.value.kind == "knowledge"


def test_another_layout_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="another architecture"):
        SAMPLE.check(replace(EXPECT, layout=bytes(16)))


@examples(30)
@given(seed=st.integers(0, 2**32 - 1), energy=st.floats(0, 1))
def test_what_is_cut_keeps_the_share_and_is_never_larger(seed: int, energy: float) -> None:
    rng = np.random.default_rng(seed)
    shapes = [as_matrix(shape) for shape in ((7, 9), (5,), (4, 3, 3, 3), (1, 6), (3, 1))]
    arrays = [rng.normal(size=shape) * 0.8 ** np.arange(shape[1]) for shape in shapes]
    found = joined(shapes, [factorised(array, energy) for array in arrays], bytes(16))
    flat = np.concatenate([array.ravel() for array in arrays])
    found.check(Expect(classes=3, weight_count=flat.size))
    assert payload_bytes(found) <= 4 * flat.size + 3 * 4 * len(shapes)
    restored, begin = expanded(found), 0
    for array, (a, b, n) in zip(arrays, found.shapes, strict=True):
        part = restored[begin : begin + a * b].reshape(a, b)
        begin += a * b
        lost = ((array - part) ** 2).sum()
        assert lost <= (1 - energy) * (array**2).sum() + 1e-9
        if not n:
            np.testing.assert_allclose(part, array, rtol=1e-6)


def test_a_share_that_no_rank_exceeds_keeps_all() -> None:
    assert rank_of(np.array([3.0, 1.0]), 1.0) == 2
    assert rank_of(np.zeros(2), 0.5) == 2
    rank, numbers = factorised(np.zeros((20, 20)), 0.5)
    assert (rank, numbers.size) == (0, 400)
    assert stored(20, 20, 0) == 400

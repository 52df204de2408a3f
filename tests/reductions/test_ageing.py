"""How much an old upload counts: worked numbers, and the same bits in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.protocol.knowledge import ClassRows, PublicLogits, Weights
from edge_sdk.reductions import Combining, WeightedSum
from edge_sdk.reductions.influence import UNITS, aged, lighter, staleness_units, staleness_weight

LAYOUT = bytes(16)


def weights(*values: float, count: int = 1) -> Weights:
    return Weights(values=np.array(values, np.float32), layout=LAYOUT, count=count)


def rows(classes: list[int], values: list[list[float]], counts: list[int]) -> ClassRows:
    return ClassRows(
        classes=np.array(classes, np.int32), rows=np.array(values, np.float32), counts=np.array(counts, np.int32)
    )


def test_the_weight_is_one_over_the_root_of_one_more_than_the_age() -> None:
    assert [staleness_weight(tau) for tau in (0, 3, 8)] == [1.0, 0.5, 1 / 3]
    assert [staleness_units(tau) for tau in (0, 1, 2, 3, 10**9)] == [1024, 724, 591, 512, 1]


def test_old_weights_move_the_newest_ones_by_what_training_changed() -> None:
    newest, began = {"weights": weights(10, 10)}, {"weights": weights(1, 2)}
    found: Any = aged({"weights": weights(3, 0, count=5)}, 3, began, newest)["weights"]
    assert found.values.tolist() == [11.0, 9.0]  # 10 + (3 - 1) / 2, 10 + (0 - 2) / 2
    assert found.count == 5


def test_weights_of_the_newest_version_keep_their_bits() -> None:
    sent = weights(0.1, 0.2)
    assert aged({"weights": sent}, 0, {"weights": weights(0.3, 0.4)}, {"weights": weights(0.3, 0.4)})["weights"] is sent


def test_a_row_of_age_three_counts_half() -> None:
    combining = Combining(units=UNITS)
    ups: list[Any] = [lighter(rows([0], [[1.0]], [10]), 0), lighter(rows([0, 1], [[4.0], [7.0]], [10, 4]), 3)]
    found = combining.rows(ups)
    assert found is not None
    assert found.rows.tolist() == [[2.0], [7.0]]  # (10 * 1 + 5 * 4) / 15
    assert found.counts.tolist() == [15, 2]


def test_logits_of_age_three_count_half() -> None:
    ups: list[Any] = [
        lighter(PublicLogits(values=np.array([[value]], np.float32), batch=bytes(8)), tau)
        for value, tau in ((1.0, 0), (4.0, 3))
    ]
    found = Combining(units=UNITS).logits(
        {number: up.values for number, up in enumerate(ups)}, np.array([0]), [up.contributors for up in ups]
    )
    assert found.tolist() == [[2.0]]  # (1 + 4 / 2) / 1.5


@pytest.mark.parametrize("scale", [1, UNITS])
def test_rows_of_one_age_have_the_bits_of_a_round(scale: int) -> None:
    rng = np.random.default_rng(0)
    ups = [rows([0, 2], rng.normal(size=(2, 5)).tolist(), [3, 7]) for _ in range(4)]
    plain = Combining().rows(ups)
    fresh: list[Any] = [lighter(up, 0) if scale > 1 else up for up in ups]
    found = Combining(units=scale).rows(fresh)
    assert plain is not None
    assert found is not None
    assert found.rows.tobytes() == plain.rows.tobytes()
    assert found.counts.tolist() == plain.counts.tolist()


@given(st.permutations(list(range(6))), st.lists(st.integers(0, 20), min_size=6, max_size=6))
def test_any_order_of_old_and_new_weights_gives_the_same_bits(order: list[int], ages: list[int]) -> None:
    rng = np.random.default_rng(1)
    newest = {"weights": weights(*rng.normal(size=8))}
    ups: list[Any] = []
    for number, tau in enumerate(ages):
        began = {"weights": weights(*rng.normal(size=8))}
        ups.append(aged({"weights": weights(*rng.normal(size=8), count=number + 1)}, tau, began, newest)["weights"])

    def mean(numbers: list[int]) -> bytes:
        total = WeightedSum()
        for number in numbers:
            total = total.add(number, ups[number])
        return total.mean().values.tobytes()

    assert mean(order) == mean(list(range(6)))

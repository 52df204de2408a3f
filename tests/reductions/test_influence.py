"""Promise S11: what one device can move in any reduction that ships is bounded, whatever it claims and whatever it sends.

With counts cut to a cap w and values of magnitude C at most, replacing what one device sends moves no number of a mean
by more than 2 C w / (W + w), W the counts of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pytest

from edge_sdk.methods import feddf_al
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sdk.protocol.knowledge import ClassRows, Payload, PublicLogits, Weights
from edge_sdk.reductions import (
    MOST,
    Bag,
    Change,
    Contribution,
    MixedSum,
    changed,
    mean_in_order,
    mean_over_holders,
    mean_over_others,
)
from edge_sdk.reductions.influence import CountCap, RobustTable, beyond, capped, count_cap

C = 1e4
"""The bound on values."""
LAYOUT = bytes(16)
ROUNDS = 400
"""Random federations for each reduction: six of them, with 3 to 9 devices, are 14,400 contributions in the mean."""


def weights(values: np.ndarray, count: int) -> Weights:
    return Weights(values=values, layout=LAYOUT, count=count)


def rows(values: np.ndarray, count: int) -> ClassRows:
    """Rows of two classes that share the count."""
    counts = np.array([max(count // 2, 1), max(count // 2, 1)], np.int32)
    return ClassRows(classes=np.arange(2, dtype=np.int32), rows=values.reshape(2, -1), counts=counts)


def logits(values: np.ndarray, _count: int) -> PublicLogits:
    return PublicLogits(values=values.reshape(2, -1), batch=bytes(8))


Aggregates = Sequence[Contribution]


def of(kind: Any, role: str, ups: Aggregates) -> Any:
    return reduce(kind.add, ups, kind()), role


def bag_mean(ups: Aggregates) -> np.ndarray:
    aggregate, role = of(Bag, "x", ups)
    return mean_in_order(up.values for up in aggregate.payloads(PublicLogits, role).values())


def holders(ups: Aggregates) -> np.ndarray:
    aggregate, role = of(Bag, "x", ups)
    return mean_over_holders(list(aggregate.payloads(ClassRows, role).values())).rows


def others(ups: Aggregates) -> np.ndarray:
    """What the last device gets, which holds out itself."""
    aggregate, role = of(Bag, "x", ups)
    found = mean_over_others(list(aggregate.payloads(ClassRows, role).values()))[-1]
    assert found is not None
    return found.rows


def mixed(ups: Aggregates) -> np.ndarray:
    return of(MixedSum, "weights", ups)[0].weights.mean().values


def slots(ups: Aggregates) -> np.ndarray:
    change = of(Change, "weights", ups)[0]
    return changed(None, change, LAYOUT).mean().values


def groups(ups: Aggregates) -> np.ndarray:
    return of(feddf_al.Groups, "weights", ups)[0].sums[LAYOUT.hex()].mean().values


CASES: dict[type, tuple[tuple[Callable[[Aggregates], np.ndarray], str, Callable[..., Payload]], ...]] = {
    Bag: ((bag_mean, "x", logits), (holders, "x", rows), (others, "x", rows)),
    Change: ((slots, "weights", weights),),
    MixedSum: ((mixed, "weights", weights),),
    feddf_al.Groups: ((groups, "weights", weights),),
}


def test_every_reduction_that_ships_is_looked_at() -> None:
    assert {load_method(name).reduction for name in method_names()} == CASES.keys()


@pytest.mark.parametrize(
    "case", [case for cases in CASES.values() for case in cases], ids=lambda case: case[0].__name__
)
def test_one_device_moves_a_mean_by_a_bounded_amount(case: tuple[Any, str, Any]) -> None:
    mean, role, payload = case
    rng = np.random.default_rng(11)
    for _ in range(ROUNDS):
        count = int(rng.integers(3, 10))
        honest = [int(each) for each in rng.integers(2, 200, count)]
        cap = count_cap(RobustTable(), honest)
        ups = [contribution(i, role, payload(awkward(rng), n), cap, n) for i, n in enumerate(honest)]
        claim = int(rng.choice([0, 1, honest[0], cap.most, MOST]))
        lie = contribution(0, role, payload(rng.choice([-C, C]) * np.ones(8, np.float32), max(claim, 1)), cap, claim)
        before, after = mean(ups).astype(np.float64), mean([lie, *ups[1:]]).astype(np.float64)
        own = max(weight(ups[0], role), weight(lie, role))
        counted = ups[1:-1] if mean is others else ups[1:]
        rest = sum(weight(up, role) for up in counted)
        assert own <= cap.most
        assert abs(after - before).max() <= 2 * C * own / (rest + own) * (1 + 1e-5) + 1e-3


def contribution(number: int, role: str, payload: Payload, cap: CountCap, declared: int) -> Contribution:
    """An upload as the coordinator counts it."""
    most = cap.of(declared)
    known = {role: payload} if most is None else capped({role: payload}, most)
    return Contribution(number=number, samples=declared, knowledge=known)


def awkward(rng: np.random.Generator) -> np.ndarray:
    """Values at the bound, and small ones."""
    return np.where(rng.random(8) < 0.5, rng.choice([-C, C], 8), rng.normal(size=8)).astype(np.float32)


def weight(up: Contribution, role: str) -> int:
    """What the upload weighs with in each number of the mean."""
    payload = up.knowledge[role]
    if isinstance(payload, ClassRows):
        return int(payload.counts[0])
    return payload.count if isinstance(payload, Weights) else 1


def test_who_claims_too_much_weighs_as_the_median() -> None:
    cap = count_cap(RobustTable(), [10, 20, 30, 0, MOST])
    assert cap == CountCap(140, 20)
    assert [cap.of(each) for each in (0, 1, 140, 141, MOST)] == [1, None, None, 20, 20]
    assert count_cap(RobustTable(), [10, MOST]) == CountCap(70, 10)  # one of two does not raise the median
    assert count_cap(RobustTable(count_factor=0), [10, 20]) == CountCap()
    assert count_cap(RobustTable(most_samples=50), [10, 20, 30]) == CountCap(50, 50)
    assert count_cap(RobustTable(), [0, 0]) == CountCap()


def test_counts_of_classes_are_cut_in_proportion_and_never_to_zero() -> None:
    up = ClassRows(
        classes=np.arange(3, dtype=np.int32),
        rows=np.zeros((3, 2), np.float32),
        counts=np.array([MOST, MOST // 2, 1], np.int32),
    )
    (cut,) = capped({"rows": up}, 30).values()
    assert cut.counts.tolist() == [19, 9, 1]  # type: ignore[attr-defined]  # it has rows
    whole = {"rows": up}
    assert capped(whole, 2 * MOST) is whole


@pytest.mark.parametrize(
    ("payload", "key"),
    [
        (PublicLogits(values=np.full((1, 2), 2e4, np.float32), batch=bytes(8)), "largest_logit"),
        (rows(np.full(8, -2e5, np.float32), 2), "largest_row"),
        (weights(np.full(8, 2e4, np.float32), 1), "largest_weight"),
    ],
)
def test_values_are_bounded_by_kind(payload: Payload, key: str) -> None:
    assert f"robust.{key}" in beyond({"x": payload}, RobustTable())
    assert beyond({"x": payload}, RobustTable(largest_logit=1e6, largest_row=1e6, largest_weight=1e6)) == ""

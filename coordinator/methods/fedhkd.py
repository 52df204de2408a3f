"""FedHKD (coordinator half): the mean of weights, and per class the mean of hyper-knowledge over its holders, eq. 9.

Chen et al. 2023, ICLR.  Hyper-knowledge is made anew in each round: a class that nobody shares is gone, unless
`carry_rounds` keeps it for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, cast

import numpy as np

from coordinator.aggregate import Bag
from coordinator.class_rows import mean_over_holders
from coordinator.methods.base import At, Contribution
from coordinator.methods.fedavg import next_weights
from coordinator.weighted_sum import WeightedSum
from edge_sdk.protocol.contracts.fedhkd import FEDHKD
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Packed, wire


@wire("fedhkd-coordinator-state")
@dataclass(frozen=True, slots=True)
class FedHKDCoordinatorState:
    """w^t, and the hyper-knowledge with the rounds since each of its classes was last shared."""

    weights: Weights | None = None
    hyper: HyperKnowledge | None = None
    ages: Annotated[tuple[int, ...], Packed(32768)] = ()


@dataclass(frozen=True, slots=True)
class HyperSum:
    """Weights, summed, and hyper-knowledge, which is small, as it came."""

    weights: WeightedSum = field(default_factory=WeightedSum)
    hyper: Bag = field(default_factory=Bag)


class FedHKDCoordinator:
    """Averages weights over devices, hyper-knowledge over the holders of each class by their samples of it."""

    contract = FEDHKD

    def init(self, spec: FederationSpec) -> FedHKDCoordinatorState:
        """Neither weights nor hyper-knowledge."""
        return FedHKDCoordinatorState()

    def common(self, state: FedHKDCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Both, as far as they are there."""
        down: dict[str, Payload] = {} if state.weights is None else {"weights": state.weights}
        return down if state.hyper is None else {**down, "hyper": state.hyper}

    def personal(self, state: FedHKDCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def zero(self) -> HyperSum:
        """No uploads."""
        return HyperSum()

    def add(self, aggregate: HyperSum, contribution: Contribution) -> HyperSum:
        """One more."""
        known = contribution.knowledge
        weights = aggregate.weights.add(contribution.number, cast("Weights", known["weights"]))
        if "hyper" not in known:
            return HyperSum(weights, aggregate.hyper)
        small = replace(contribution, knowledge={"hyper": known["hyper"]})
        return HyperSum(weights, aggregate.hyper.add(small))

    def merge(self, a: HyperSum, b: HyperSum) -> HyperSum:
        """Both together."""
        return HyperSum(a.weights.merge(b.weights), a.hyper.merge(b.hyper))

    def finish(
        self, spec: FederationSpec, state: FedHKDCoordinatorState, at: At, aggregate: HyperSum
    ) -> FedHKDCoordinatorState:
        """Divide."""
        params = self.contract.read(spec.params)
        weights = next_weights(at, aggregate.weights, params.start, state.weights)
        ups = [cast("HyperKnowledge", up.knowledge["hyper"]) for up in aggregate.hyper]  # in number order
        hyper, ages = carried(state, mean_hyper(ups) if ups else None, params.carry_rounds)
        return FedHKDCoordinatorState(weights, hyper, ages)


def mean_hyper(ups: Sequence[HyperKnowledge]) -> HyperKnowledge:
    """Equation 9: per class the mean over its holders, by their samples of it; features and predictions alike."""
    features, soft = (
        mean_over_holders([ClassRows(classes=up.classes, rows=getattr(up, part), counts=up.counts) for up in ups])
        for part in ("features", "soft")
    )
    return HyperKnowledge(classes=features.classes, features=features.rows, soft=soft.rows, counts=features.counts)


def carried(
    before: FedHKDCoordinatorState, now: HyperKnowledge | None, rounds: int
) -> tuple[HyperKnowledge | None, tuple[int, ...]]:
    """The hyper-knowledge of this round, with what may still be kept of the one before, and the age of each class."""
    parts = [] if now is None else [(now, np.zeros(len(now.classes), np.int64))]
    if before.hyper is not None:
        ages = np.array(before.ages, np.int64) + 1  # (m,)
        kept = ages <= rounds
        if now is not None:
            kept &= ~np.isin(before.hyper.classes, now.classes)
        if kept.any():
            parts.append((_chosen(before.hyper, kept), ages[kept]))
    if not parts:
        return None, ()
    order = np.argsort(np.concatenate([hyper.classes for hyper, _ in parts]))
    every = HyperKnowledge(
        **{name: np.concatenate([getattr(hyper, name) for hyper, _ in parts])[order] for name in _ARRAYS}
    )
    return every, tuple(np.concatenate([ages for _, ages in parts])[order].tolist())


_ARRAYS = ("classes", "features", "soft", "counts")


def _chosen(hyper: HyperKnowledge, kept: np.typing.NDArray[np.bool_]) -> HyperKnowledge:
    return HyperKnowledge(**{name: getattr(hyper, name)[kept] for name in _ARRAYS})


METHOD = FedHKDCoordinator()

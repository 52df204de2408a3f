"""The reduction of a method that averages weights and trades something small beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from coordinator.aggregate import Bag
from coordinator.methods.base import Contribution
from coordinator.weighted_sum import WeightedSum
from edge_sdk.protocol.knowledge import Weights


@dataclass(frozen=True, slots=True)
class SumAndBag:
    """Weights, summed, and the rest of each upload, which is small, as it came."""

    weights: WeightedSum = field(default_factory=WeightedSum)
    rest: Bag = field(default_factory=Bag)


class InSumAndBag:
    """`weights` are summed up, whatever stands beside them is kept until the exchange ends."""

    def zero(self) -> SumAndBag:
        """No uploads."""
        return SumAndBag()

    def add(self, aggregate: SumAndBag, contribution: Contribution) -> SumAndBag:
        """One more."""
        weights, rest = aggregate.weights, dict(contribution.knowledge)
        if "weights" in rest:
            weights = weights.add(contribution.number, cast("Weights", rest.pop("weights")))
        return SumAndBag(weights, aggregate.rest.add(replace(contribution, knowledge=rest)))

    def merge(self, a: SumAndBag, b: SumAndBag) -> SumAndBag:
        """Both together."""
        return SumAndBag(a.weights.merge(b.weights), a.rest.merge(b.rest))

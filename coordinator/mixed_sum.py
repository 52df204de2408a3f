"""The reduction of methods that share weights and something small beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from coordinator.aggregate import Bag
from coordinator.methods.base import Contribution
from coordinator.weighted_sum import WeightedSum
from edge_sdk.protocol.knowledge import Weights


@dataclass(frozen=True, slots=True)
class MixedSum:
    """Weights, summed, and the rest as it came, by device."""

    weights: WeightedSum = field(default_factory=WeightedSum)
    rest: Bag = field(default_factory=Bag)


class InMixedSum:
    """Weights travel in the role `weights`; a device that shares none of them counts for the rest alone."""

    def zero(self) -> MixedSum:
        """No uploads."""
        return MixedSum()

    def add(self, aggregate: MixedSum, contribution: Contribution) -> MixedSum:
        """One more."""
        known, weights = dict(contribution.knowledge), aggregate.weights
        if "weights" in known:
            weights = weights.add(contribution.number, cast("Weights", known.pop("weights")))
        return MixedSum(weights, aggregate.rest.add(replace(contribution, knowledge=known)))

    def merge(self, a: MixedSum, b: MixedSum) -> MixedSum:
        """Both together."""
        return MixedSum(a.weights.merge(b.weights), a.rest.merge(b.rest))

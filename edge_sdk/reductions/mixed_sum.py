"""The aggregate of methods that share weights and a smaller payload beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from edge_sdk.protocol.knowledge import Weights
from edge_sdk.reductions.bag import Bag
from edge_sdk.reductions.contribution import Contribution
from edge_sdk.reductions.weighted_sum import WeightedSum


@dataclass(frozen=True, slots=True)
class MixedSum:
    """The sum of the payloads in the role `weights`, and all other payloads by device.

    A device without weights counts only for the other payloads.
    """

    weights: WeightedSum = field(default_factory=WeightedSum)
    rest: Bag = field(default_factory=Bag)

    @property
    def answered(self) -> int:
        """The number of devices that took part in the exchange."""
        return len(self.rest)

    def add(self, contribution: Contribution) -> MixedSum:
        """Return the aggregate with one more device."""
        known, weights = dict(contribution.knowledge), self.weights
        if "weights" in known:
            weights = weights.add(contribution.number, cast("Weights", known.pop("weights")))
        return MixedSum(weights, self.rest.add(replace(contribution, knowledge=known)))

    def merge(self, other: MixedSum) -> MixedSum:
        """Merge both aggregates."""
        return MixedSum(self.weights.merge(other.weights), self.rest.merge(other.rest))

"""FedDF-AL (coordinator half): the mean of weights within each architecture, then FedAL between all devices.

Han, Shi and Huang, IEEE JSAC 2024, section V.  An architecture that nobody brings in a round is not averaged in it, and
its devices go on with what they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast

from coordinator.aggregate import Bag
from coordinator.methods.base import At, Contribution
from coordinator.methods.fedal import FedALCoordinator, FedALCoordinatorState
from coordinator.weighted_sum import WeightedSum
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.contracts.feddf_al import FEDDF_AL
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Items, wire


@wire("feddf-al-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class FedDFALCoordinatorState:
    """FedAL's state, the means that wait to go out, and which architectures had one before."""

    transfer: FedALCoordinatorState
    means: Mapping[str, Weights] = field(default_factory=dict)
    """By layout."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Layout by the number of each device that stands behind a mean."""
    begun: Annotated[tuple[str, ...], Items(0, 2**20)] = ()
    """Layouts that were averaged at some time, sorted: their devices have a common start."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Of an exchange of weights a sum for each layout; of any other the uploads."""

    sums: Mapping[str, WeightedSum] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)
    bag: Bag = field(default_factory=Bag)

    def add(self, up: Contribution) -> Groups:
        """With one more device."""
        if "weights" not in up.knowledge:
            return replace(self, bag=self.bag.add(up))
        weights = cast("Weights", up.knowledge["weights"])
        layout = weights.layout.hex()
        return self.merge(Groups({layout: WeightedSum().add(up.number, weights)}, {str(up.number): layout}))

    def merge(self, other: Groups) -> Groups:
        """Both together, layout by layout."""
        none = WeightedSum()
        layouts = sorted({*self.sums, *other.sums})
        sums = {each: self.sums.get(each, none).merge(other.sums.get(each, none)) for each in layouts}
        return Groups(sums, {**self.members, **other.members}, self.bag.merge(other.bag))


class FedDFALCoordinator:
    """Exchange 0 averages weights; those behind it are FedAL's."""

    contract = FEDDF_AL

    def __init__(self) -> None:
        self._transfer = FedALCoordinator(cast("Any", FEDDF_AL))

    def init(self, spec: FederationSpec) -> FedDFALCoordinatorState:
        """FedAL's seeded discriminator."""
        return FedDFALCoordinatorState(transfer=self._transfer.init(spec))

    def common(self, state: FedDFALCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Nothing: both the mean and the feedback depend on the device."""
        return {}

    def personal(self, state: FedDFALCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """The mean of the device's architecture, then the feedback of each iteration."""
        if at.exchange == 1:
            layout = state.members.get(str(number))
            return {} if layout is None else {"weights": state.means[layout]}
        return self._transfer.personal(state.transfer, _iteration(at), number) if at.exchange else {}

    def zero(self) -> Groups:
        """No uploads."""
        return Groups()

    def add(self, aggregate: Groups, contribution: Contribution) -> Groups:
        """One more."""
        return aggregate.add(contribution)

    def merge(self, a: Groups, b: Groups) -> Groups:
        """Both together."""
        return a.merge(b)

    def finish(
        self, spec: FederationSpec, state: FedDFALCoordinatorState, at: At, aggregate: Groups
    ) -> FedDFALCoordinatorState:
        """Divide each sum; or one iteration of FedAL, after which the means have gone out."""
        if at.exchange:
            transfer = self._transfer.finish(spec, state.transfer, _iteration(at), aggregate.bag)
            return FedDFALCoordinatorState(transfer=transfer, begun=state.begun)
        if not aggregate.sums:
            raise EmptyRound(f"round {at.round}: no weights arrived; wait for devices, or lower the quorum")
        start = self.contract.read(spec.params).start
        means = {
            layout: total.mean() if layout in state.begun else total.start(start)
            for layout, total in aggregate.sums.items()
        }
        begun = tuple(sorted({*state.begun, *means}))
        return FedDFALCoordinatorState(transfer=state.transfer, means=means, members=aggregate.members, begun=begun)


def _iteration(at: At) -> At:
    """The place that FedAL knows: its exchanges begin with our second."""
    return At(at.round, at.exchange - 1)


METHOD = FedDFALCoordinator()

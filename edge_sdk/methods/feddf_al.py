"""FedDF-AL: equal architectures average their weights, and then all learn from each other as in FedAL.

Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning", IEEE JSAC 2024,
section V, after Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020.  The
paper has one paragraph on it; the order of its parts is our reading.

    exchange 0       the local stage; weights go up, and are averaged within each architecture
    exchange 1...    FedAL's (fedal.py); the first one brings the mean down

An architecture without uploads in a round is not averaged, and its devices continue with their own weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, cast

from edge_sdk.methods import fedal
from edge_sdk.methods.contract import averaging, transfer
from edge_sdk.methods.contract.base import Down, Exchange, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Items, wire
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Bag, Contribution, WeightedSum


@dataclass(frozen=True, kw_only=True)
class Params(fedal.Params):
    """Hyper-parameters of FedDF-AL: those of FedAL, and how weights are averaged."""

    tau: Annotated[int, Range(1, 1000)] = 15
    """tau: iterations of the transfer stage, each one round trip."""
    weighting: Weighting = "samples"
    """The mean over devices of one architecture: by their `samples` or `uniform`."""
    start: Start = "first"
    """An architecture's first mean: `first`, its lowest-numbered contributor's model; `equal`: all start alike."""


@wire("feddf-al-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of FedAL, the means for the next exchange, and the architectures that had a mean before."""

    transfer: fedal.State
    means: Mapping[str, Weights] = field(default_factory=dict)
    """The means by layout."""
    members: Mapping[str, str] = field(default_factory=dict)
    """The layout by device number, for each device whose weights are in a mean."""
    begun: Annotated[tuple[str, ...], Items(0, 2**20)] = ()
    """The layouts that were averaged before, sorted: their devices have a common start."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The aggregate of an exchange: a sum for each layout if weights travel, otherwise the uploads."""

    sums: Mapping[str, WeightedSum] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)
    bag: Bag = field(default_factory=Bag)

    @property
    def answered(self) -> int:
        """Devices that took part in the exchange."""
        return len(self.members) + len(self.bag)

    def add(self, up: Contribution) -> Groups:
        """Return the aggregate with one more device."""
        if "weights" not in up.knowledge:
            return replace(self, bag=self.bag.add(up))
        weights = cast("Weights", up.knowledge["weights"])
        layout = weights.layout.hex()
        return self.merge(Groups({layout: WeightedSum().add(up.number, weights)}, {str(up.number): layout}))

    def merge(self, other: Groups) -> Groups:
        """Merge both aggregates, layout by layout."""
        none = WeightedSum()
        layouts = sorted({*self.sums, *other.sums})
        sums = {each: self.sums.get(each, none).merge(other.sums.get(each, none)) for each in layouts}
        return Groups(sums, {**self.members, **other.members}, self.bag.merge(other.bag))


class FedDFAL(fedal.Adversarial[Params]):
    """Runs one exchange of weights, then the exchanges of FedAL."""

    name = "feddf_al"
    title = "FedDF-AL: equal architectures averaged, then FedAL between all"
    citation = "Han, Shi and Huang 2024, IEEE JSAC; Lin et al. 2020, NeurIPS, arXiv:2006.07242"
    needs = frozenset({"predict", "logit-gradients", "weights"})
    teaches = frozenset()
    shares_weights = True
    same_layout = False
    discloses = f"{averaging.DISCLOSES}; logits on the public samples"
    reduction = Groups
    before = 1

    def iterations(self) -> tuple[Exchange, ...]:
        """Return the exchanges: one of weights, then FedAL's; the first of these brings the mean down."""
        first, *rest = super().iterations()
        mean = {"weights": Slot(Weights, personal=True, optional=True)}
        return (Exchange(up=averaging.UP), Exchange(down=mean, up=first.up), *rest)

    def share(self, device: OnDevice[transfer.TransferProgress]) -> Stage[Up]:
        """Send the weights after the local stage."""
        return (yield from averaging.read_weights(device, self.params.weighting))

    def receive(self, device: OnDevice[transfer.TransferProgress]) -> Stage[None]:
        """Take over the mean of the device's architecture."""
        yield from averaging.write_weights(device)

    def begin(self, spec: FederationSpec) -> State:
        """Return FedAL's seeded discriminator."""
        return State(transfer=fedal.first_state(self.params, spec))

    def down_to(self, state: State, at: ExchangeId, number: int) -> Down:
        """Send the mean of the device's architecture, then the feedback of each iteration."""
        if at.exchange == 1:
            layout = state.members.get(str(number))
            return {} if layout is None else {"weights": state.means[layout]}
        return fedal.feedback_to(state.transfer, at.exchange - self.before, number)

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Groups) -> State:
        """Divide each sum, or run one iteration of FedAL, after which the means have gone out."""
        if at.exchange:
            after = fedal.after_iteration(self.params, spec, state.transfer, self.iteration(at), uploads.bag)
            return State(transfer=after, begun=state.begun)
        means = {
            layout: total.mean() if layout in state.begun else total.start(self.params.start)
            for layout, total in uploads.sums.items()
        }
        begun = tuple(sorted({*state.begun, *means}))
        return State(transfer=state.transfer, means=means, members=uploads.members, begun=begun)

    def instruments(
        self, spec: FederationSpec, before: State, after: State, at: ExchangeId, uploads: Groups
    ) -> Mapping[str, float]:
        """Measure the discriminator as FedAL does."""
        return fedal.adversarial_instruments(self.params, after.transfer, uploads.bag) if at.exchange else {}

    def iteration(self, at: ExchangeId) -> ExchangeId:
        """Return the exchange as FedAL counts it."""
        return ExchangeId(at.round, at.exchange - self.before)

"""The common part of methods that average weights: FedAvg's round and its mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from edge_sdk.methods.contract.base import Caching, Down, Exchange, Method, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.requests import MeasuredModel, ModelRole, ReadWeights, WriteWeights
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, wire
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Change, SlotSum, WeightedSum, changed

DOWN = {"weights": Slot(Weights, optional=True)}
UP = {"weights": Slot(Weights)}
BODY_DOWN = {"weights": Slot(Weights, optional=True, without_head=True)}
BODY_UP = {"weights": Slot(Weights, without_head=True)}
DISCLOSES = "all weights of the model, from which training samples can be reconstructed, and the number of samples"
DISCLOSES_BODY = "all weights in front of the last layer, and the number of samples"


class AveragingParams(Protocol):
    """The parameters that every method of this kind has."""

    @property
    def start(self) -> str:
        """How round 0 begins (edge_sdk.methods.contract.description.Start)."""


P = TypeVar("P", bound=AveragingParams)


@wire("fedavg-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingState:
    """The averaged weights w^t, or None before the first round, because the coordinator has no model of its own."""

    weights: Weights | None = None
    rounds: Count
    """The number of rounds.  After the last one, the mean goes out only if the closing exchange carries it."""
    slots: SlotSum | None = None
    """The running sum over all slots, or None unless the result is the mean over all slots."""


class Averaging(Method[P]):
    """Devices of one architecture train, and average their weights.

    receive   w <- w^t                     nothing came in round 0: the device's own weights
    share     w and the number of samples
    reduce    w^{t+1} = sum_i n_i w_i / sum_i n_i, in the first round a common start

    Its parameters are `start`, also `weighting` unless the class fixes it, and `cached` and `max_slot_age` if it offers
    slots.
    """

    exchanges = (Exchange(down=DOWN, up=UP),)
    closing = Exchange(down=DOWN)
    global_model: bool = True
    needs = frozenset({"predict", "logit-gradients", "weights"})
    shares_weights = True
    means = frozenset({"weights"})
    reduction: type = Change
    body = False
    """Whether only the body is shared, and the weights of the last layer stay on the device."""

    def __init__(self, params: P | None = None) -> None:
        super().__init__(params)
        if getattr(self.params, "cached", False):
            self.caching = slots(self.params, self.params.max_slot_age)  # type: ignore[attr-defined]  # beside cached

    @property
    def weighting(self) -> str:
        """How devices are weighted in the mean (edge_sdk.methods.contract.description.Weighting)."""
        return str(self.params.weighting)  # type: ignore[attr-defined]  # a class without it overrides this

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Take over the mean."""
        yield from write_weights(device, without_head=self.body, of=self.global_of)

    def arrives(self, *, closing: bool) -> MeasuredModel:
        """Return the global model in rounds; with slots their mean only arrives at the end."""
        return "active" if self.caching and not closing else super().arrives(closing=closing)

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the weights."""
        return (
            yield from read_weights(
                device, self.weighting, without_head=self.body, of=self.global_of, lent=_goes_straight_out(type(self))
            )
        )

    def begin(self, spec: FederationSpec) -> Any:
        """Start without weights: devices begin with their own."""
        return AveragingState(rounds=spec.rounds)

    def down(self, state: Any, at: ExchangeId) -> Down:
        """Send the mean, from the second round on; at the end send the mean over slots, if the method keeps slots."""
        if at.round < state.rounds:
            return {"weights": state.weights}
        return {"weights": over_slots(state.slots, state.weights)} if self.closing.down else {}

    def reduce(self, spec: FederationSpec, state: Any, at: ExchangeId, uploads: Any) -> Any:
        """Compute the mean of the round, and update the slots."""
        weights = self.mean(uploads.now, state.weights)
        return replace(state, weights=weights, slots=self.slots_after(state.slots, at, uploads, weights.layout))

    def of_unrelated_nets(self, before: Weights | None) -> bool:
        """Whether a round's uploads come from nets with different starts; all then continue from one of them."""
        return self.shares_weights and before is None and self.params.start == "first"

    def mean(self, sums: WeightedSum, before: Weights | None) -> Weights:
        """Return w^{t+1}: the weighted mean, or a common start if there was no w^t."""
        return sums.start(self.params.start) if before is None else sums.mean()

    def slots_after(self, slots: SlotSum | None, at: ExchangeId, change: Change, layout: bytes) -> SlotSum | None:
        """Return the slots after a round; return `slots` unchanged if the method keeps none, or none yet."""
        if self.caching is None or at.round < self.caching.first_round:
            return slots
        return changed(slots, change, layout)


def _goes_straight_out(method: type[Method[Any]]) -> bool:
    """Whether nothing reads the upload or changes the model after `Averaging.share`; a subclass may do so."""
    stages = "personalise", "exchange", "step"
    return method.share is Averaging.share and all(getattr(method, name) is getattr(Method, name) for name in stages)


def write_weights(
    device: OnDevice[Any], role: str = "weights", *, without_head: bool = False, of: ModelRole = "own"
) -> Stage[None]:
    """Overwrite a model's weights, or those in front of the last layer, with the received ones, if there are any."""
    weights = device.received(Weights, role)
    if weights is not None:
        # a view of the received frame: releasing it avoids holding megabytes twice
        yield WriteWeights(np.asarray(weights.values, np.float32), without_head=without_head, of=of)


def read_weights(
    device: OnDevice[Any], weighting: str, *, without_head: bool = False, of: ModelRole = "own", lent: bool = False
) -> Stage[Up]:
    """Read the weights to send; include the number of samples if the weighting needs it.  lent: see ReadWeights."""
    weights: Weights = yield ReadWeights(without_head=without_head, of=of, lent=lent)
    return {"weights": replace(weights, count=device.job.samples if weighting == "samples" else 1)}


def slots(params: AveragingParams, max_slot_age: int) -> Caching:
    """Return the slot rules of a method that averages over all devices ever seen; different starts get no slots."""
    return Caching(first_round=0 if params.start == "equal" else 1, max_age=max_slot_age)


def over_slots(slots: SlotSum | None, active: Weights | None) -> Weights | None:
    """Return the mean over all slots; if there are no slots, the mean over the devices that answered."""
    return slots.mean() if slots else active

"""LG-FedAvg: devices with any extractor average the whole of their last layers.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020
(arXiv:2001.01523), Algorithm 1, in the form that is compared with: from scratch, the last layer alone is shared.

    receive   the whole last layer; the extractor stays the device's own
    train     CE(y, f(x)), all of the model
    share     the whole last layer
    reduce    the mean of last layers over the devices that answered
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.description import Weighting
from edge_sdk.methods.contract.last_layer import every_class
from edge_sdk.methods.contract.requests import ReadHead, WriteHead
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, wire
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import MOST, Bag, mean_over_holders


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of LG-FedAvg."""

    weighting: Weighting = "samples"
    """The mean over devices: by their `samples`, or `uniform`, as in the authors' code."""


class LastLayerParams(Protocol):
    """The parameters that every method of this kind has."""

    @property
    def weighting(self) -> str:
        """How devices are weighted in the mean (edge_sdk.methods.contract.description.Weighting)."""


P = TypeVar("P", bound=LastLayerParams)


@wire("lg-fedavg-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The mean of the last layers, or None before the first round, in which devices begin with their own."""

    header: ClassRows | None = None  # (k, d + 1)
    rounds: Count
    """The number of rounds.  After the last one, the mean is not needed: the result is each device's trained model."""


class LastLayer(Method[P]):
    """A device shares its last layer and nothing in front of it; FedClassAvg does the same."""

    exchanges = (
        Exchange(
            down={"header": Slot(ClassRows, optional=True, extra_columns=1)},
            up={"header": Slot(ClassRows, extra_columns=1)},
        ),
    )
    needs = frozenset({"predict", "logit-gradients", "head-rows"})
    same_width = True
    means = frozenset({"header"})
    discloses = "all rows of the last layer, those of classes that the device does not hold included, and its samples"

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Overwrite the last layer with the received one, if there is one."""
        header = device.received(ClassRows, "header")
        if header is not None:
            yield WriteHead(header.classes.astype(np.int64), header.rows.astype(np.float32))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send all rows; the coordinator knows the device's number of samples."""
        rows: Floats = yield ReadHead()  # (k, d + 1)
        return {"header": every_class(rows)}

    def begin(self, spec: FederationSpec) -> State:
        """Start without a mean."""
        return State(rounds=spec.rounds)

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the mean, from the second round on."""
        return {"header": state.header} if at.round < state.rounds else {}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Compute the mean; all rows weigh the device's samples of all classes, because they are one layer."""
        by_samples, units = self.params.weighting == "samples", self.combining.units
        ups = []
        for number, header in uploads.payloads(ClassRows, "header").items():
            count = min(uploads.uploads[number].samples, MOST) if by_samples else 1
            by_age = int(min(header.counts[0], units))  # 1 in rounds, even if the device states another number
            counts: Any = np.full(len(header.classes), count * by_age, np.int64)
            ups.append(replace(header, counts=counts))
        mean = mean_over_holders(ups)
        return replace(state, header=replace(mean, counts=np.maximum(mean.counts // units, 1)))


class LGFedAvg(LastLayer[Params]):
    """Trains without further loss terms."""

    name = "lg_fedavg"
    title = "LG-FedAvg: the last layer averaged, extractors of any architecture kept"
    citation = "Liang et al. 2020, arXiv:2001.01523"

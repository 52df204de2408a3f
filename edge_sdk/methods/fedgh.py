"""FedGH: one last layer for all devices, which the coordinator trains on their mean features.

Yi, Wang, Liu, Shi and Yu, "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023
(arXiv:2303.13137), Algorithm 1.

    receive   the whole last layer; the extractor stays the device's own, of any architecture
    train     CE(y, f(x)), all of the model
    share     of each class held the mean feature over the device's samples, as in inference after training
    reduce    some passes of SGD on CE(c, W h + b), where each (mean feature h, class c) of each device is one item

A device's result is its extractor under the last layer that arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from edge_sdk.methods.contract import last_layer
from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up, as_sent
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.requests import ClassMeans, Evaluate, Report, WriteHead
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import wire
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Bag

_STREAM = 0x66656467
"""Separates these draws from the draws of devices, whose seeds end in their number."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedGH; the defaults are those of the authors' code."""

    server_epochs: Annotated[int, Range(1, 100_000)] = 1
    """Passes over the mean features of a round."""
    server_rate: Annotated[float, Range(0, 100)] = 0.01
    """The learning rate of the last layer on the coordinator (SGD)."""
    server_batch: Annotated[int, Range(0, 65536)] = 0
    """The number of mean features in a mini-batch; 0 takes train.batch_size."""


@wire("fedgh-coordinator-state")
@dataclass(frozen=True, slots=True)
class State:
    """The last layer of the next round."""

    header: ClassRows  # (k, d + 1)


DOWN = {"header": Slot(ClassRows, extra_columns=1)}


class FedGH(Method[Params]):
    """Trains a common last layer on the coordinator."""

    name = "fedgh"
    title = "FedGH: one last layer, trained on the coordinator on the mean features of all devices"
    citation = "Yi et al. 2023, ACM MM, arXiv:2303.13137"
    exchanges = (Exchange(down=DOWN, up={"means": Slot(ClassRows)}),)
    closing = Exchange(down=DOWN)
    personal_after = "arrival"
    needs = frozenset({"predict", "logit-gradients", "features", "head-rows"})
    same_width = True
    holders_wanted = 1
    discloses = "which classes the device holds, and the mean feature of each"

    # -- on the device ----------------------------------------------------------------------------------------------

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Overwrite the last layer with the received one."""
        header = device.received(ClassRows, "header")
        if header is not None:
            yield WriteHead(header.classes.astype(np.int64), header.rows.astype(np.float32))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the mean features, each as one item; where instruments are read, also measure the trained model."""
        if device.job.instruments and device.job.learns:
            measured: Mapping[str, float] = yield Evaluate(device.job.round + 1, recorded=False)
            yield Report({f"trained_{name}": value for name, value in measured.items() if name == "accuracy"})
        means: ClassRows = yield ClassMeans()
        return {"means": as_sent(means, "uniform")}

    # -- on the coordinator -----------------------------------------------------------------------------------------

    def begin(self, spec: FederationSpec) -> State:
        """Start with a last layer drawn from the federation's seed: the authors' code takes that of device 0."""
        rng = np.random.default_rng([spec.seed, _STREAM])
        return State(last_layer.every_class(last_layer.random_rows(spec.classes, spec.feature_dim, rng)))

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the last layer, the same to all devices."""
        return {"header": state.header}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Train the last layer on the mean features of the round."""
        x, y = last_layer.items_of(list(uploads.payloads(ClassRows, "means").values()))
        rows = last_layer.trained_layer(
            state.header.rows,
            x,
            y,
            epochs=self.params.server_epochs,
            rate=self.params.server_rate,
            batch=self.params.server_batch or spec.train.batch_size,
            rng=np.random.default_rng([spec.seed, _STREAM, at.round]),
        )
        return State(last_layer.every_class(rows))

    def instruments(
        self, spec: FederationSpec, before: State, after: State, at: ExchangeId, uploads: Bag
    ) -> Mapping[str, float]:
        """Measure the last layer on the mean features of the round, before and after its training."""
        x, y = last_layer.items_of(list(uploads.payloads(ClassRows, "means").values()))
        found: dict[str, float] = {}
        for when, state in (("before", before), ("after", after)):
            loss, right = last_layer.figures(state.header.rows, x, y)
            found |= {f"head_loss_{when}": loss, f"head_accuracy_{when}": right}
        return found

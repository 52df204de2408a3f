"""FedBABU: bodies are trained under one fixed random last layer; each device tunes its own at the end.

Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022
(arXiv:2106.06042), Algorithm 1.

    receive   the body, under the last layer that all devices draw from the federation's seed
    measure   the global model as it is, the personal one after tuning; then both are put back
    train     CE(y, f(x)), the body alone
    share     the body
    reduce    the mean of bodies, as FedAvg's of whole models (averaging.py)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.averaging import BODY_DOWN, BODY_UP, DISCLOSES_BODY, Averaging
from edge_sdk.methods.contract.base import Exchange, OnDevice, Stage
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.methods.contract.last_layer import random_rows
from edge_sdk.methods.contract.requests import Evaluate, Fit, ReadHead, WriteHead
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.messages import FederationSpec

_STREAM = 0x62616275
"""Separates the draw of the last layer from the draws of batches, whose seeds end in the device's number."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedBABU."""

    tune_steps: Annotated[int, Range(0, paper="1 to 5 epochs")] = 20
    """Steps of tuning before a device measures or uses its model; the paper takes one to five epochs.  0 disables
    it."""
    tune: Literal["head", "all"] = "head"
    """The part that is tuned: the `head`, or `all` of the model."""
    tune_rate: Annotated[float, Range(1e-6, 1e3)] = 1.0
    """The factor on the learning rate of [train] during tuning."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples`, as in the paper, or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's body, with `equal` from equal weights."""


class FedBABU(Averaging[Params]):
    """Trains a body under a head that never moves, and tunes the head for itself."""

    name = "fedbabu"
    title = "FedBABU: bodies are averaged under a fixed random last layer, which each device tunes in the end"
    citation = "Oh et al. 2022, ICLR, arXiv:2106.06042"
    exchanges = (Exchange(down=BODY_DOWN, up=BODY_UP),)
    closing = Exchange(down=BODY_DOWN)
    personal_after = "arrival"
    body = True
    needs = frozenset({"predict", "logit-gradients", "head-rows", "weights"})
    discloses = DISCLOSES_BODY

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Write the common last layer and the received body."""
        own: Floats = yield ReadHead()
        yield WriteHead(np.arange(len(own)), common_head(device.job.spec, own.shape[1] - 1))
        yield from super().receive(device)

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure before and after tuning.  At the end of the run the tuning is kept; before that it is undone."""
        yield from super().measure(device)
        yield from self.measure_personal(device)
        if not device.job.closing:
            yield from self.receive(device)

    def measure_personal(self, device: OnDevice[Any]) -> Stage[None]:
        """Tune, and measure."""
        job, params = device.job, self.params
        if params.tune_steps:
            optim = replace(job.optim, learning_rate=params.tune_rate * job.optim.learning_rate)
            source = job.private_batches(params.tune_steps)
            yield Fit(source=source, objective=(CrossEntropy(),), optim=optim, part=params.tune)
        yield Evaluate(job.round)

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train the body alone."""
        yield from device.fit((CrossEntropy(),), part="body")


def common_head(spec: FederationSpec, width: int) -> Floats:
    """Return the common last layer, (k, d + 1), drawn from U(-1/sqrt d, 1/sqrt d) like torch's layers."""
    return random_rows(spec.classes, width, np.random.default_rng([spec.seed, _STREAM]))

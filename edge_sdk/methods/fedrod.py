"""FedRoD: FedAvg under a balanced loss, and on each device a personal last layer beside the shared one.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022
(arXiv:2107.00778), Algorithm 1.

    train, share     (theta, G) <- mean, train CE(y, softmax(G R(x) + gamma log n)), share (theta, G)     equation 5
    personalise      train P on CE(y, softmax((G + P) R(x))), theta and G as they are                     equation 6

G + P is one linear layer, with which the personal model predicts; the global model has G.  P is kept from round to
round, and never leaves the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.averaging import DISCLOSES, Averaging
from edge_sdk.methods.contract.base import OnDevice, Stage
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.methods.contract.requests import ReadHead, ReadWeights, WriteHead, WriteWeights
from edge_sdk.objectives import BalancedCrossEntropy, CrossEntropy
from edge_sdk.protocol.frames.schema import Matrix, wire


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedRoD."""

    gamma: Annotated[float, Range(0, 10, paper="1")] = 1.0
    """gamma: logits are raised by gamma log n of their class, n its samples on the device.  0: plain cross-entropy."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""


@wire("fedrod-state")
@dataclass(frozen=True, slots=True)
class DeviceState:
    """The personal layer P, or None before the first round, when it is zero."""

    personal: Matrix | None = None  # (k, d + 1)


class FedRoD(Averaging[Params]):
    """Trains the shared model, then the personal layer."""

    name = "fedrod"
    title = "FedRoD: FedAvg under a balanced loss, and a last layer of each device's own on top"
    citation = "Chen and Chao 2022, ICLR, arXiv:2107.00778"
    needs = frozenset({"predict", "logit-gradients", "head-rows", "weights"})
    terms = frozenset({"cross-entropy", "balanced-cross-entropy"})
    discloses = DISCLOSES
    device_state = DeviceState

    def receive(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Take over the mean; at the end keep the personal model, which is the device's result."""
        if device.job.closing:
            device.kept = yield ReadWeights()
        yield from super().receive(device)

    def measure(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Measure the mean; at the end go back to the personal model."""
        yield from super().measure(device)
        if device.job.closing:
            yield WriteWeights(device.kept.values)

    def train(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Train the whole model on equation 5."""
        counts = np.array(device.job.class_counts, np.float32)  # (k,)
        yield from device.fit((BalancedCrossEntropy(counts=counts, gamma=self.params.gamma),))

    def personalise(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Train the last layer alone on equation 6, starting from G + P."""
        generic: Floats = yield ReadHead()  # (k, d + 1)
        if device.state.personal is not None:
            yield WriteHead(np.arange(len(generic)), generic + device.state.personal)
        yield from device.fit((CrossEntropy(),), part="head")
        both: Floats = yield ReadHead()
        device.state = DeviceState(both - generic)

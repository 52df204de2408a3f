"""Ditto: FedAvg, and on each device a second, personal model that is held near the mean.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (arXiv:2012.04221),
Algorithm 1.

    train, share     w <- w^t, train CE, share w                       as in FedAvg
    personalise      train v on CE + (lambda / 2) |v - w^t|^2          on the same batches

The global model is w; the personal one, v, predicts and never leaves the device.  While w is trained, the generator
holds v, so memory holds one model and copies of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from edge_sdk.methods.contract.averaging import DISCLOSES, Averaging
from edge_sdk.methods.contract.base import OnDevice, Stage
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.methods.contract.requests import ReadWeights, WriteWeights
from edge_sdk.objectives import CrossEntropy, Proximal
from edge_sdk.protocol.knowledge import Weights


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of Ditto."""

    attraction: Annotated[float, Range(0, 1000, paper="0.05 to 2")] = 1.0
    """lambda: (lambda / 2) |v - w^t|^2 is added to the loss of the device's own model v; the paper tunes it in 0.05 ...
    2.  With 0 v is trained alone."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""


class Ditto(Averaging[Params]):
    """Trains two models in each round: a shared one and a personal one."""

    name = "ditto"
    title = "Ditto: FedAvg, and a model of each device's own near it"
    citation = "Li et al. 2021, ICML, arXiv:2012.04221"
    terms = frozenset({"cross-entropy", "proximal"})
    discloses = DISCLOSES

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Keep v, and take over w^t; in round 0 w^t is the device's own model, because nothing was received."""
        own: Weights = yield ReadWeights()
        yield from super().receive(device)
        anchor: Weights = yield ReadWeights()
        device.kept = own, anchor

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure w^t; at the end go back to v, which is the device's result."""
        yield from super().measure(device)
        if device.job.closing:
            own, _ = device.kept
            yield WriteWeights(own.values)

    def personalise(self, device: OnDevice[Any]) -> Stage[None]:
        """Train v, near w^t."""
        own, anchor = device.kept
        near = (Proximal(anchor=anchor.values, weight=self.params.attraction),) if self.params.attraction else ()
        yield WriteWeights(own.values)
        yield from device.fit((CrossEntropy(), *near))

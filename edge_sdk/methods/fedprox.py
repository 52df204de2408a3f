"""FedProx: FedAvg with a term that keeps each device near the weights that it was given.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv:1812.06127).

    train     CE(y, f(x)) + (mu / 2) |w - w^t|^2        equation 2; over all trainable scalars

The rest is FedAvg (averaging.py).  w^t: the weights at the round's start, in round 0 the device's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from edge_sdk.methods.contract.averaging import DISCLOSES, Averaging
from edge_sdk.methods.contract.base import OnDevice, Stage
from edge_sdk.methods.contract.description import Range, SlotAge, Start, Weighting
from edge_sdk.methods.contract.requests import ReadWeights
from edge_sdk.objectives import CrossEntropy, Proximal
from edge_sdk.protocol.knowledge import Weights


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedProx."""

    mu: Annotated[float, Range(0, 1000, paper="0.001 to 1")] = 0.01
    """mu: (mu / 2) |w - w^t|^2 is added to the loss; the paper tunes it in 0.001 ... 1.  0: FedAvg."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""
    cached: bool = False
    """Whether the result is the mean over the newest uploads of all devices ever seen: FedKF's technique T1."""
    max_slot_age: SlotAge = 0
    """With `cached`: rounds after which the upload of an absent device no longer counts; 0 keeps it."""


class FedProx(Averaging[Params]):
    """Differs from FedAvg in what a device minimises."""

    name = "fedprox"
    title = "FedProx: FedAvg, with weights held near those of the round's start"
    citation = "Li et al. 2020, MLSys, arXiv:1812.06127"
    terms = frozenset({"cross-entropy", "proximal"})
    discloses = DISCLOSES

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train on equation 2.  The anchor is read from the model, because in round 0 nothing was received."""
        if self.params.mu == 0:
            yield from device.fit((CrossEntropy(),))
            return
        anchor: Weights = yield ReadWeights()
        yield from device.fit((CrossEntropy(), Proximal(anchor=anchor.values, weight=self.params.mu)))

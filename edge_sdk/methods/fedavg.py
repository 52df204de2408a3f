"""FedAvg: devices of one architecture train, and average their weights.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017
(arXiv:1602.05629), Algorithm 1.

    receive   w <- w^t                     nothing came in round 0: the device's own weights
    train     CE(y, f(x))
    share     w and the number of samples n_k
    reduce    w^{t+1} = sum_k n_k w_k / sum_k n_k

The averaged model is measured as it arrives, before training.  Devices keep no state: the averaged weights overwrite
their own, and the optimiser restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.methods.contract.averaging import DISCLOSES, Averaging
from edge_sdk.methods.contract.description import SlotAge, Start, Weighting


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedAvg."""

    weighting: Weighting = "samples"
    """The mean over devices: by their `samples`, as in the paper, or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""
    cached: bool = False
    """Whether the result is the mean over the newest uploads of all devices ever seen: FedKF's technique T1."""
    max_slot_age: SlotAge = 0
    """With `cached`: rounds after which the upload of an absent device no longer counts; 0 keeps it."""


class FedAvg(Averaging[Params]):
    """Is Averaging (averaging.py) without changes, with all parameters."""

    name = "fedavg"
    title = "FedAvg: one architecture, its weights averaged"
    citation = "McMahan et al. 2017, AISTATS, arXiv:1602.05629"
    discloses = DISCLOSES

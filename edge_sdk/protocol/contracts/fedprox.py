"""FedProx: FedAvg with a term that keeps each device near the weights that it was given.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020 (arXiv:1812.06127).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.wires import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class FedProxParams:
    """Hyper-parameters of FedProx."""

    mu: float = 0.01
    """mu: (mu / 2) |w - w^t|^2 is added to the loss; the paper tunes it in 0.001 ... 1.  0: FedAvg."""
    weighting: str = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""
    cached: bool = False
    """Whether the result is the mean over the newest uploads of all devices ever seen: FedKF's technique T1."""
    max_slot_age: int = 0
    """With `cached`: rounds after which the upload of a device that stays away no longer counts; 0: never."""

    def __post_init__(self) -> None:
        ranges.real("mu", self.mu, 0, 1000, paper="0.001 to 1")
        sharing.check_mean(self.weighting, self.start)
        sharing.check_slots(self.max_slot_age)


FEDPROX: Contract[FedProxParams] = Contract(
    name="fedprox",
    title="FedProx: FedAvg, with weights held near those of the round's start",
    citation="Li et al. 2020, MLSys, arXiv:1812.06127",
    params=FedProxParams,
    exchanges=lambda _params: (sharing.ROUND,),
    closing=lambda _params: sharing.CLOSING,
    needs=frozenset({"predict", "logit-gradients", "weights"}),
    terms=frozenset({"cross-entropy", "proximal"}),
    shares_weights=True,
    caching=lambda params: sharing.slots(params.start, params.max_slot_age) if params.cached else None,
    discloses=sharing.DISCLOSES,
)

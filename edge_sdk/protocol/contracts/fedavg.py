"""FedAvg: devices of one architecture train, and average their weights.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017
(arXiv:1602.05629).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import sharing
from edge_sdk.protocol.wires import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAvgParams:
    """Hyper-parameters of FedAvg."""

    weighting: str = "samples"
    """The mean over devices: by their `samples`, as in the paper, or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""
    cached: bool = False
    """Whether the result is the mean over the newest uploads of all devices ever seen: FedKF's technique T1."""
    max_slot_age: int = 0
    """With `cached`: rounds after which the upload of a device that stays away no longer counts; 0: never."""

    def __post_init__(self) -> None:
        sharing.check_mean(self.weighting, self.start)
        sharing.check_slots(self.max_slot_age)


FEDAVG: Contract[FedAvgParams] = Contract(
    name="fedavg",
    title="FedAvg: one architecture, its weights averaged",
    citation="McMahan et al. 2017, AISTATS, arXiv:1602.05629",
    params=FedAvgParams,
    exchanges=lambda _params: (sharing.ROUND,),
    closing=lambda _params: sharing.CLOSING,
    needs=frozenset({"predict", "logit-gradients", "weights"}),
    terms=frozenset({"cross-entropy"}),
    shares_weights=True,
    caching=lambda params: sharing.slots(params.start, params.max_slot_age) if params.cached else None,
    discloses=sharing.DISCLOSES,
)

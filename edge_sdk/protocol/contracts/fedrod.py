"""FedRoD: FedAvg under a balanced loss, and on each device a personal last layer beside the shared one.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022
(arXiv:2107.00778).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.wires import Contract, Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class FedRoDParams:
    """Hyper-parameters of FedRoD."""

    gamma: float = 1.0
    """gamma: logits are raised by gamma log n of their class, n its samples on the device.  0: plain cross-entropy."""
    weighting: str = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.real("gamma", self.gamma, 0, 10, paper="1")
        sharing.check_mean(self.weighting, self.start)


FEDROD: Contract[FedRoDParams] = Contract(
    name="fedrod",
    title="FedRoD: FedAvg under a balanced loss, and a last layer of each device's own on top",
    citation="Chen and Chao 2022, ICLR, arXiv:2107.00778",
    params=FedRoDParams,
    exchanges=lambda _params: (sharing.ROUND,),
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients", "head-rows", "weights"}),
    terms=frozenset({"cross-entropy", "balanced-cross-entropy"}),
    shares_weights=True,
    discloses=sharing.DISCLOSES,
)

"""FedPer: devices of one architecture average all weights but those of their last layers.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019 (arXiv:1912.00818).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import sharing
from edge_sdk.protocol.wires import Contract, Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class FedPerParams:
    """Hyper-parameters of FedPer, with the last layer as the only personal one."""

    weighting: str = "samples"
    """The mean over devices: by their `samples`, as in the paper, or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's body is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        sharing.check_mean(self.weighting, self.start)


FEDPER: Contract[FedPerParams] = Contract(
    name="fedper",
    title="FedPer: one architecture, averaged but for its last layer",
    citation="Arivazhagan et al. 2019, arXiv:1912.00818",
    params=FedPerParams,
    exchanges=lambda _params: (sharing.BODY_ROUND,),
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients", "head-rows", "weights"}),
    terms=frozenset({"cross-entropy"}),
    shares_weights=True,
    discloses=sharing.DISCLOSES_BODY,
)

"""FedRep: FedPer, with head and body trained in turn.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized Federated Learning", ICML
2021 (arXiv:2102.07078).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.wires import Contract, Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class FedRepParams:
    """Hyper-parameters of FedRep."""

    head_steps: int = 10
    """Steps of the last layer alone, before the `local_steps` of the body; the paper takes ten epochs."""
    weighting: str = "uniform"
    """The mean over devices: `uniform`, as in Algorithm 1, or by their `samples`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's body is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.whole("head_steps", self.head_steps, 1, paper="10 epochs")
        sharing.check_mean(self.weighting, self.start)


FEDREP: Contract[FedRepParams] = Contract(
    name="fedrep",
    title="FedRep: averaged but for the last layer, which is trained first, and the body under it",
    citation="Collins et al. 2021, ICML, arXiv:2102.07078",
    params=FedRepParams,
    exchanges=lambda _params: (sharing.BODY_ROUND,),
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients", "head-rows", "weights"}),
    terms=frozenset({"cross-entropy"}),
    shares_weights=True,
    discloses=sharing.DISCLOSES_BODY,
)

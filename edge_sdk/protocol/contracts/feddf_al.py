"""FedDF-AL: equal architectures average their weights, and then all learn from each other as in FedAL.

Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning", IEEE JSAC 2024,
section V, after Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020.  The
paper has one paragraph on it; the order of its parts is our reading.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import fedal, sharing
from edge_sdk.protocol.contracts.fedal import ROUND_TRIP_CAUTIONS, FedALParams, round_trip_warnings
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedDFALParams(FedALParams):
    """Hyper-parameters of FedDF-AL: those of FedAL, and how weights are averaged."""

    tau: int = 15
    """tau: iterations of the transfer stage, each one round trip."""
    weighting: str = "samples"
    """The mean over devices of one architecture: by their `samples` or `uniform`."""
    start: str = "first"
    """An architecture's first mean: `first`, its lowest-numbered contributor's model; `equal`: all start alike."""

    def __post_init__(self) -> None:
        FedALParams.__post_init__(self)
        sharing.check_mean(self.weighting, self.start)


def _exchanges(params: FedDFALParams) -> tuple[Exchange, ...]:
    """Weights up; then those of FedAL, the first of which brings the mean down."""
    first, *rest = fedal.exchanges(params)
    mean = {"weights": Slot(Weights, personal=True, optional=True)}
    return (Exchange(up=sharing.ROUND.up), Exchange(down=mean, up=first.up), *rest)


FEDDF_AL: Contract[FedDFALParams] = Contract(
    name="feddf_al",
    title="FedDF-AL: equal architectures averaged, then FedAL between all",
    citation="Han, Shi and Huang 2024, IEEE JSAC; Lin et al. 2020, NeurIPS, arXiv:2006.07242",
    params=FedDFALParams,
    exchanges=_exchanges,
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients", "weights"}),
    terms=fedal.FEDAL.terms,
    needs_public_set=True,
    shares_weights=True,
    same_layout=False,
    lock_step=True,
    discloses=f"{sharing.DISCLOSES}; logits on the public samples",
    misfit=fedal.misfit,
    warnings=round_trip_warnings,
    cautions=ROUND_TRIP_CAUTIONS,
)

"""Ditto: FedAvg, and beside it on each device a model of its own that is held near the mean.

Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (arXiv:2012.04221).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.wires import Contract, Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class DittoParams:
    """Hyper-parameters of Ditto."""

    attraction: float = 1.0
    """lambda: (lambda / 2) |v - w^t|^2 is added to the loss of the device's own model v; the paper tunes it in
    0.05 ... 2.  0: v is trained alone."""
    weighting: str = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.real("attraction", self.attraction, 0, 1000, paper="0.05 to 2")
        sharing.check_mean(self.weighting, self.start)


DITTO: Contract[DittoParams] = Contract(
    name="ditto",
    title="Ditto: FedAvg, and a model of each device's own near it",
    citation="Li et al. 2021, ICML, arXiv:2012.04221",
    params=DittoParams,
    exchanges=lambda _params: (sharing.ROUND,),
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients", "weights"}),
    terms=frozenset({"cross-entropy", "proximal"}),
    shares_weights=True,
    discloses=sharing.DISCLOSES,
)

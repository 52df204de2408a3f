"""FedDF: models are averaged within each architecture, and then each mean learns from all of them, on the coordinator.

Lin, Kong, Stich and Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020
(arXiv:2006.07242).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedDFParams:
    """Hyper-parameters of FedDF."""

    steps: int = 200
    """Distillation steps of each architecture and round; the paper takes up to 10,000, ended early on labelled
    validation samples, of which a coordinator has none.  0: nothing is distilled."""
    distill_batch: int = 128
    """Public samples a step."""
    distill_rate: float = 1e-3
    """Of Adam; constant, where the paper's falls along a cosine."""
    temperature: float = 1.0
    """Of both softmaxes."""
    weighting: str = "samples"
    """The mean over devices of one architecture: by their `samples` or `uniform`."""
    start: str = "first"
    """An architecture's first mean: `first`, its lowest-numbered contributor's model; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.whole("steps", self.steps, 0, 10**6, paper="10000 at most")
        ranges.whole("distill_batch", self.distill_batch, 1, 65536, paper="128")
        ranges.real("distill_rate", self.distill_rate, 1e-8, 10, paper="0.001")
        ranges.real("temperature", self.temperature, 0.01, 100, paper="1")
        sharing.check_mean(self.weighting, self.start)


_DOWN = {"weights": Slot(Weights, personal=True, optional=True)}

FEDDF: Contract[FedDFParams] = Contract(
    name="feddf",
    title="FedDF: equal architectures averaged, then distilled from all, on the coordinator",
    citation="Lin et al. 2020, NeurIPS, arXiv:2006.07242",
    params=FedDFParams,
    exchanges=lambda _params: (Exchange(down=_DOWN, up=sharing.ROUND.up),),
    closing=lambda _params: Exchange(down=_DOWN),
    needs=frozenset({"predict", "logit-gradients", "weights"}),
    terms=frozenset({"cross-entropy"}),
    shares_weights=True,
    same_layout=False,
    runs_nets=True,
    discloses=sharing.DISCLOSES,
)

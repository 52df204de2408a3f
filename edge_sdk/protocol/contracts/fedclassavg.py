"""FedClassAvg: devices with any extractor average their last layers, stay near the mean, and sort their features.

Jang, Ha, Jung and Yoon, "FedClassAvg: Local Representation Learning for Personalized Federated Learning on
Heterogeneous Neural Networks", ICPP 2022 (arXiv:2210.14226).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.contracts.lg_fedavg import LG_FEDAVG
from edge_sdk.protocol.wires import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class FedClassAvgParams:
    """Hyper-parameters of FedClassAvg."""

    rho: float = 0.1
    """rho: (rho / 2) |C - C^t|^2 over the rows of the last layer.  0: no pull."""
    contrast: float = 1.0
    """Weight of the supervised contrast of features.  0 with rho 0: LG-FedAvg."""
    temperature: float = 0.07
    """tau of the contrast."""
    weighting: str = "samples"
    """The mean over devices: by their `samples` or `uniform`."""

    def __post_init__(self) -> None:
        ranges.real("rho", self.rho, 0, 1000, paper="0.1")
        ranges.real("contrast", self.contrast, 0, 1000, paper="1")
        ranges.real("temperature", self.temperature, 0.05, 100)
        ranges.choice("weighting", self.weighting, "samples", "uniform")


FEDCLASSAVG: Contract[FedClassAvgParams] = Contract(
    name="fedclassavg",
    title="FedClassAvg: the last layer averaged and held there, features of a class drawn together",
    citation="Jang et al. 2022, ICPP, arXiv:2210.14226",
    params=FedClassAvgParams,
    exchanges=lambda _params: LG_FEDAVG.exchanges(LG_FEDAVG.params()),
    closing=lambda _params: LG_FEDAVG.closing(LG_FEDAVG.params()),
    needs=LG_FEDAVG.needs | {"features"},
    terms=frozenset({"cross-entropy", "class-contrast", "head-proximal"}),
    same_width=True,
    discloses=LG_FEDAVG.discloses,
)

"""FedMD-LF: FedMD in several iterations a round, with less-forgetting; FedAL without its discriminator.

The ablation of Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning",
IEEE JSAC 2024, section V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.contracts.fedal import ROUND_TRIP_CAUTIONS, FedALParams, round_trip_warnings
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedMDLFParams:
    """Hyper-parameters of FedMD-LF: those of FedAL that are left without the discriminator."""

    adversarial: ClassVar[float] = 0.0
    """There is no discriminator."""
    tau: int = 5
    """tau: iterations of the transfer stage, each one round trip."""
    public_batch: int = 32
    """B: public samples per iteration."""
    temperature: float = 1.0
    """E: temperature of the KL terms."""
    less_forgetting: float = 1.0
    """Weight of both less-forgetting terms; 0 leaves FedMD with tau iterations."""
    target: str = "leave-one-out"
    """Whose mean a device learns from: the others' (`leave-one-out`), or `all`, itself included."""

    def __post_init__(self) -> None:
        ranges.whole("tau", self.tau, 1, 1000, paper="5 to 15")
        ranges.whole("public_batch", self.public_batch, 1, 65536, paper="32")
        ranges.real("temperature", self.temperature, 0.01, 100, paper="1")
        ranges.real("less_forgetting", self.less_forgetting, 0, 1000, paper="1")
        ranges.choice("target", self.target, "leave-one-out", "all")


TransferParams: TypeAlias = FedALParams | FedMDLFParams
"""Of the methods with a transfer stage: both halves of FedAL serve either."""


def _exchanges(params: FedMDLFParams) -> tuple[Exchange, ...]:
    logits = {"logits": Slot(PublicLogits, rows=params.public_batch)}
    mean = {"mean": Slot(PublicLogits, personal=True, optional=True, rows=params.public_batch)}
    between = [Exchange(down=mean, up=logits) for _ in range(params.tau - 1)]
    return (Exchange(up=logits), *between, Exchange(down=mean))


FEDMD_LF: Contract[FedMDLFParams] = Contract(
    name="fedmd_lf",
    title="FedMD-LF: mean logits of the others over several iterations, less forgetting",
    citation="Han, Shi and Huang 2024, IEEE JSAC, FedAL (its ablation)",
    params=FedMDLFParams,
    exchanges=_exchanges,
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients"}),
    teaches=frozenset({"predict"}),
    terms=frozenset({"cross-entropy", "distill", "less-forgetting"}),
    needs_public_set=True,
    lock_step=True,
    discloses="logits on the public samples, which can tell what the private samples are like",
    warnings=round_trip_warnings,
    cautions=ROUND_TRIP_CAUTIONS,
)

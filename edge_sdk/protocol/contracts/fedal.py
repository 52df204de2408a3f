"""FedAL: logits on public samples, a discriminator on the coordinator, and less-forgetting on the device.

Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning", IEEE JSAC 2024.
A round is a local stage and a transfer stage of tau iterations: 1 + tau exchanges, for what the last iteration
computes must come down, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.knowledge import LogitGradients, PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedALParams:
    """Hyper-parameters of FedAL; the defaults are the paper's (its section V), but for the clipping."""

    tau: int = 5
    """tau: iterations of the transfer stage, each one round trip."""
    public_batch: int = 32
    """B: public samples per iteration."""
    temperature: float = 1.0
    """E: temperature of the KL terms."""
    discriminator_temperature: float = 2.0
    """E_D: temperature of the discriminator's input."""
    discriminator_rate: float = 1e-4
    """eta_d; keep it well below the devices' rate, or the discriminator saturates and gives no signal."""
    discriminator_optimiser: str = "sgd"
    """The paper's Algorithm 1 is plain SGD."""
    adversarial: float = 1.0
    """Weight of U_n; 0 leaves FedMD-LF."""
    less_forgetting: float = 1.0
    """Weight of both less-forgetting terms; 0 with adversarial 0 leaves FedMD with tau iterations."""
    gradient_clip: float = 1.0
    """Largest norm of a sample's adversarial gradient; 0, as in the paper: no clipping."""
    target: str = "leave-one-out"
    """Equations 4-6 leave the device itself out; line 15 of Algorithm 1 (`all`) does not."""
    max_devices: int = 64
    """Outputs of the discriminator; slots are never used again within a job."""
    device: str = "cpu"
    """Where the coordinator trains the discriminator: cpu or cuda:N."""

    def __post_init__(self) -> None:
        ranges.whole("tau", self.tau, 1, 1000)
        ranges.whole("public_batch", self.public_batch, 1, 65536)
        ranges.real("temperature", self.temperature, 0.01, 100)
        ranges.real("discriminator_temperature", self.discriminator_temperature, 0.01, 100)
        ranges.real("discriminator_rate", self.discriminator_rate, 0, 10)
        ranges.choice("discriminator_optimiser", self.discriminator_optimiser, "sgd", "adam")
        ranges.real("adversarial", self.adversarial, 0, 1000)
        ranges.real("less_forgetting", self.less_forgetting, 0, 1000)
        ranges.real("gradient_clip", self.gradient_clip, 0, 1e6)
        ranges.choice("target", self.target, "leave-one-out", "all")
        ranges.whole("max_devices", self.max_devices, 1, 100_000)
        if not re.fullmatch(r"cpu|cuda:[0-9]{1,3}", self.device):
            raise ValueError(f"device: expected cpu or cuda:N, found {self.device!r}")


def exchanges(params: FedALParams) -> tuple[Exchange, ...]:
    """Exchange i uploads the logits of iteration i and brings down what iteration i - 1 computed."""
    rows = params.public_batch
    logits = {"logits": Slot(PublicLogits, rows=rows)}
    feedback = {
        "mean": Slot(PublicLogits, personal=True, optional=True, rows=rows),
        "adversarial": Slot(LogitGradients, personal=True, optional=True, rows=rows),
    }
    return (
        Exchange(up=logits),
        *(Exchange(down=feedback, up=logits) for _ in range(params.tau - 1)),
        Exchange(down=feedback),
    )


class _Iterated(Protocol):
    """Parameters of a method with a transfer stage."""

    @property
    def tau(self) -> int:
        """Iterations of it."""

    @property
    def less_forgetting(self) -> float:
        """Weight of the less-forgetting terms."""


def round_trip_warnings(params: _Iterated, spec: FederationSpec) -> tuple[str, ...]:
    """W4 and W5, for methods with a transfer stage of tau iterations."""
    found = []
    if params.tau == 1 and params.less_forgetting > 0:
        found.append("W4: at tau = 1 the less-forgetting terms have no effect; use tau >= 2")
    trips = params.tau * spec.rounds
    if trips > ROUND_TRIP_BUDGET:
        found.append(
            f"W5: {trips} blocking round trips (at 200 ms each {trips * 0.2 / 60:.0f} min of waiting); "
            "on slow links use fedmd, which needs one a round"
        )
    return tuple(found)


def misfit(params: FedALParams, devices: int) -> str:
    """What is wrong with so many devices; empty: nothing."""
    if devices > params.max_devices:
        return f"max_devices: {params.max_devices} slots for {devices} devices; each device needs one"
    return ""


ROUND_TRIP_BUDGET = 5000
"""Round trips above which a lock-step method is worth a warning: the paper's own longest runs are of that order."""
ROUND_TRIP_CAUTIONS = (
    "W4: tau = 1, at which the less-forgetting terms have no effect",
    f"W5: more than {ROUND_TRIP_BUDGET} blocking round trips in a run",
)

FEDAL: Contract[FedALParams] = Contract(
    name="fedal",
    title="FedAL: logits, an adversarial discriminator, less forgetting",
    citation="Han, Shi and Huang 2024, IEEE JSAC, FedAL",
    params=FedALParams,
    exchanges=exchanges,
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients"}),
    teaches=frozenset({"predict"}),
    terms=frozenset({"cross-entropy", "distill", "less-forgetting", "logit-gradient"}),
    needs_public_set=True,
    lock_step=True,
    discloses="logits on the public samples, which can tell what the private samples are like",
    misfit=misfit,
    warnings=round_trip_warnings,
    cautions=ROUND_TRIP_CAUTIONS,
)

"""FedMD-LF: FedMD in several iterations a round, with less-forgetting; FedAL without its discriminator.

The ablation of Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning",
IEEE JSAC 2024, section V.  Its rounds are those of FedAL (fedal.py), to which no adversarial gradient ever comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from edge_sdk.methods.fedal import Transfer
from edge_sdk.methods.params import Range


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedMD-LF: those of FedAL that do not concern the discriminator."""

    tau: Annotated[int, Range(1, 1000, paper="5 to 15")] = 5
    """tau: iterations of the transfer stage, each one round trip."""
    public_batch: Annotated[int, Range(1, 65536, paper="32")] = 32
    """B: public samples per iteration."""
    temperature: Annotated[float, Range(0.01, 100, paper="1")] = 1.0
    """E: temperature of the KL terms."""
    less_forgetting: Annotated[float, Range(0, 1000, paper="1")] = 1.0
    """Weight of both less-forgetting terms; 0 leaves FedMD with tau iterations."""
    target: Literal["leave-one-out", "all"] = "leave-one-out"
    """Whose mean a device learns from: the others' (`leave-one-out`), or `all`, itself included."""


class FedMDLF(Transfer[Params]):
    """Runs without a discriminator, so the coordinator needs no torch."""

    name = "fedmd_lf"
    title = "FedMD-LF: mean logits of the others over several iterations, less forgetting"
    citation = "Han, Shi and Huang 2024, IEEE JSAC, FedAL (its ablation)"
    terms = frozenset({"cross-entropy", "distill", "less-forgetting"})

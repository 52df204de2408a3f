"""FedMD: devices average their logits on public samples and learn from the mean.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019 (arXiv:1910.03581), in the form
that FedAL compares with: KL to the leave-one-out mean, one public mini-batch per round, no public labels.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedMDParams:
    """Hyper-parameters of FedMD."""

    public_batch: int = 32
    """Public samples scored in each round (|A| in FedMD, B in FedAL)."""
    temperature: float = 1.0
    """E, the temperature of the KL term."""
    target: str = "leave-one-out"
    """Whose mean a device learns from: the others' (`leave-one-out`), or `all`, itself included."""
    digest_steps: int = 1
    """Optimiser steps on each consensus."""

    def __post_init__(self) -> None:
        ranges.whole("public_batch", self.public_batch, 1, 65536)
        ranges.real("temperature", self.temperature, 0.01, 100)
        ranges.choice("target", self.target, "leave-one-out", "all")
        ranges.whole("digest_steps", self.digest_steps, 1, 1000)


def _mean(params: FedMDParams) -> dict[str, Slot]:
    """The mean goes to everybody, and once more, as `others`, to those who have no part in it.

    A device whose upload came too late cannot know that, and would take itself out of a mean that it is not in.
    """
    return {
        "mean": Slot(PublicLogits, optional=True, rows=params.public_batch),
        "others": Slot(PublicLogits, personal=True, optional=True, rows=params.public_batch),
    }


FEDMD: Contract[FedMDParams] = Contract(
    name="fedmd",
    title="FedMD: learn from the mean logits of the others",
    citation="Li and Wang 2019, arXiv:1910.03581",
    params=FedMDParams,
    exchanges=lambda params: (
        Exchange(down=_mean(params), up={"logits": Slot(PublicLogits, rows=params.public_batch)}),
    ),
    closing=lambda params: Exchange(down=_mean(params)),
    needs=frozenset({"predict", "logit-gradients"}),
    teaches=frozenset({"predict"}),
    terms=frozenset({"cross-entropy", "distill"}),
    needs_public_set=True,
    discloses="logits on the public samples, which can tell what the private samples are like",
)

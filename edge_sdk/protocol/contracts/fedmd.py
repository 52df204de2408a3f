"""FedMD: devices average their logits on public samples and learn from the mean.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019 (arXiv:1910.03581), in two forms.
That which FedAL compares with: KL to the leave-one-out mean on one public mini-batch a round.  And its own, `digest`:
regression on the mean logits of all, over many public samples a round, but without labels of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedMDParams:
    """Hyper-parameters of FedMD."""

    form: str = "fedal"
    """`fedal`, the form that FedAL compares with, or `digest`, the original one."""
    public_batch: int = 32
    """B: public samples in a mini-batch; in FedAL's form also those scored in each round."""
    align: int = 256
    """|A|: public samples scored in each round of the form `digest`; the paper takes 5000."""
    error: str = "absolute"
    """What `digest` makes small: the mean `absolute` error of logits, as the paper's code, or the `squared` one."""
    temperature: float = 1.0
    """E, the temperature of the KL term."""
    target: str = "by-form"
    """Whose mean a device learns from: the others' (`leave-one-out`), as in FedAL's form, or `all`, itself included,
    as in the original."""
    digest_steps: int = 0
    """Optimiser steps on each consensus; 0: one pass over what was scored, in mini-batches."""

    def __post_init__(self) -> None:
        ranges.whole("public_batch", self.public_batch, 1, 65536)
        ranges.real("temperature", self.temperature, 0.01, 100)
        ranges.choice("form", self.form, "fedal", "digest")
        ranges.whole("align", self.align, 1, 65536, paper="5000")
        ranges.choice("error", self.error, "absolute", "squared")
        ranges.choice("target", self.target, "by-form", "leave-one-out", "all")
        ranges.whole("digest_steps", self.digest_steps, 0, 1000)

    @property
    def scored(self) -> int:
        """Public samples that are scored in each round."""
        return self.align if self.form == "digest" else self.public_batch

    @property
    def leaves_out(self) -> bool:
        """Whether a device leaves itself out of the mean that it learns from."""
        return self.target == "leave-one-out" or (self.target == "by-form" and self.form == "fedal")

    @property
    def steps(self) -> int:
        """Optimiser steps on each consensus."""
        return self.digest_steps or math.ceil(self.scored / self.public_batch)


def _mean(params: FedMDParams) -> dict[str, Slot]:
    """The mean goes to everybody, and once more, as `others`, to those who have no part in it.

    A device whose upload came too late cannot know that, and would take itself out of a mean that it is not in.
    """
    return {
        "mean": Slot(PublicLogits, optional=True, rows=params.scored),
        "others": Slot(PublicLogits, personal=True, optional=True, rows=params.scored),
    }


FEDMD: Contract[FedMDParams] = Contract(
    name="fedmd",
    title="FedMD: learn from the mean logits on public samples",
    citation="Li and Wang 2019, arXiv:1910.03581",
    params=FedMDParams,
    exchanges=lambda params: (Exchange(down=_mean(params), up={"logits": Slot(PublicLogits, rows=params.scored)}),),
    closing=lambda params: Exchange(down=_mean(params)),
    needs=frozenset({"predict", "logit-gradients"}),
    teaches=frozenset({"predict"}),
    terms=frozenset({"cross-entropy", "distill"}),
    needs_public_set=True,
    variant=lambda params: {"terms": frozenset({"cross-entropy", "logit-match"})} if params.form == "digest" else {},
    discloses="logits on the public samples, which can tell what the private samples are like",
)

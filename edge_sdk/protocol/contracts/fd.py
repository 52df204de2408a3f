"""FD: devices average their mean predictions by class, and learn from those of the others.

Jeong et al., "Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
Non-IID Private Data", 2018 (arXiv:1811.11479).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FDParams:
    """Hyper-parameters of FD; the paper does not tell its gamma."""

    gamma: float = 0.1
    """gamma: weight of the cross-entropy to the others' mean prediction of the class.  0: local training."""
    weighting: str = "uniform"
    """The mean over holders: `uniform`, eq. 4, or by their `samples` of the class."""

    def __post_init__(self) -> None:
        ranges.real("gamma", self.gamma, 0, 1000)
        ranges.choice("weighting", self.weighting, "uniform", "samples")


FD: Contract[FDParams] = Contract(
    name="fd",
    title="FD: mean predictions by class, of the others, as soft labels",
    citation="Jeong et al. 2018, arXiv:1811.11479",
    params=FDParams,
    exchanges=lambda _params: (
        Exchange(
            down={"targets": Slot(ClassRows, personal=True, optional=True, probabilities=True)},
            up={"predictions": Slot(ClassRows, probabilities=True)},
        ),
    ),
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients"}),
    terms=frozenset({"cross-entropy", "class-target"}),
    holders_wanted=3,
    discloses="which classes the device holds, how its model confuses them, and with weighting by samples how many",
)

"""FedProto: devices average the mean features of their classes, and pull their own features towards the averages.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022 (arXiv:2105.00243).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedProtoParams:
    """Hyper-parameters of FedProto; the defaults are those of its authors, but for the weighting."""

    mse_weight: float = 1.0
    """lambda, times the mean over B d of the squared differences, as in the authors' code: 1 for MNIST and FEMNIST, 0.1
    for CIFAR-10.  For a lambda on the squared L2 norm give d times as much.  0: prototypes are only measured with."""
    weighting: str = "samples"
    """The mean over holders: by their `samples` of the class, which eq. 6 means, or `uniform`, as in the code."""

    def __post_init__(self) -> None:
        ranges.real("mse_weight", self.mse_weight, 0, 1e6)
        ranges.choice("weighting", self.weighting, "samples", "uniform")


_DOWN = {"prototypes": Slot(ClassRows, optional=True)}

FEDPROTO: Contract[FedProtoParams] = Contract(
    name="fedproto",
    title="FedProto: class prototypes, averaged, pull the features of all devices together",
    citation="Tan et al. 2022, AAAI, arXiv:2105.00243",
    params=FedProtoParams,
    exchanges=lambda _params: (Exchange(down=_DOWN, up={"prototypes": Slot(ClassRows)}),),
    closing=lambda _params: Exchange(down=_DOWN),
    needs=frozenset({"predict", "logit-gradients", "features"}),
    terms=frozenset({"cross-entropy", "prototype-pull"}),
    same_width=True,
    holders_wanted=3,
    discloses="which classes the device holds, the mean feature of each, and unless weighting is uniform its samples",
)

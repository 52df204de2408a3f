"""LG-FedAvg: devices with any extractor average the whole of their last layers.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2020
(arXiv:2001.01523), in the form that is compared with: the last layer alone, from scratch.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class LGFedAvgParams:
    """Hyper-parameters of LG-FedAvg."""

    weighting: str = "samples"
    """The mean over devices: by their `samples`, or `uniform`, as in the authors' code."""

    def __post_init__(self) -> None:
        ranges.choice("weighting", self.weighting, "samples", "uniform")


LG_FEDAVG: Contract[LGFedAvgParams] = Contract(
    name="lg_fedavg",
    title="LG-FedAvg: the last layer averaged, extractors of any architecture kept",
    citation="Liang et al. 2020, arXiv:2001.01523",
    params=LGFedAvgParams,
    exchanges=lambda _params: (
        Exchange(
            down={"header": Slot(ClassRows, optional=True, extra_columns=1)},
            up={"header": Slot(ClassRows, extra_columns=1)},
        ),
    ),
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients", "head-rows"}),
    terms=frozenset({"cross-entropy"}),
    same_width=True,
    discloses="all rows of the last layer, those of classes that the device does not hold included, and its samples",
)

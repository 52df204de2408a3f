"""q-FedAvg: devices with a higher loss count more, so that accuracies come closer together.

Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020 (arXiv:1905.10497), Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class QFFLParams:
    """Hyper-parameters of q-FedAvg."""

    q: float = 1.0
    """q: how much a higher loss counts; the paper takes 0.001 to 5, by data set.  0: the plain mean of weights."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.real("q", self.q, 0, 100, paper="0.001 to 5")
        sharing.check_mean("uniform", self.start)


def _warnings(_params: QFFLParams, spec: FederationSpec) -> tuple[str, ...]:
    if spec.train.optimiser == "sgd" and spec.train.momentum == 0:
        return ()
    return ('W15: h_k assumes steps of learning_rate times the gradient; use optimiser = "sgd" without momentum',)


QFFL: Contract[QFFLParams] = Contract(
    name="qffl",
    title="q-FedAvg: one architecture, its weights averaged, those of high loss above others",
    citation="Li et al. 2020, ICLR, arXiv:1905.10497",
    params=QFFLParams,
    exchanges=lambda _params: (Exchange(down=sharing.DOWN, up={"weights": Slot(Weights, extra_columns=1)}),),
    closing=lambda _params: sharing.CLOSING,
    needs=frozenset({"predict", "logit-gradients", "weights"}),
    terms=frozenset({"cross-entropy"}),
    shares_weights=True,
    discloses="all weights of the model, from which training samples can be reconstructed, and the mean loss on them",
    warnings=_warnings,
    cautions=("W15: an optimiser other than sgd without momentum",),
)

"""FedGKD: FedAvg, with the mean of the last averaged models as teacher on the device's own samples.

Yao et al., "FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge Distillation", IEEE Transactions on
Computers 2024 (arXiv:2107.00051).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedGKDParams:
    """Hyper-parameters of FedGKD; the defaults are the paper's."""

    gamma: float = 0.2
    """gamma: (gamma / 2) T^2 KL(teacher || student) is added to the loss.  0: FedAvg."""
    temperature: float = 1.0
    """T of both softmaxes."""
    buffer: int = 5
    """M: averaged models that the teacher is the mean of, the present one included; 1: it is the teacher itself."""
    weighting: str = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""
    cached: bool = False
    """Whether the result is the mean over the newest uploads of all devices ever seen: FedKF's technique T1."""
    max_slot_age: int = 0
    """With `cached`: rounds after which the upload of a device that stays away no longer counts; 0: never."""

    def __post_init__(self) -> None:
        ranges.real("gamma", self.gamma, 0, 1000, paper="0.2")
        ranges.real("temperature", self.temperature, 0.01, 100, paper="1")
        ranges.whole("buffer", self.buffer, 1, 100, paper="5")
        sharing.check_mean(self.weighting, self.start)
        sharing.check_slots(self.max_slot_age)


_DOWN = {**sharing.DOWN, "teacher": Slot(Weights, optional=True)}

FEDGKD: Contract[FedGKDParams] = Contract(
    name="fedgkd",
    title="FedGKD: FedAvg, held to what the last averaged models predict",
    citation="Yao et al. 2024, IEEE Trans. Computers, arXiv:2107.00051",
    params=FedGKDParams,
    exchanges=lambda _params: (Exchange(down=_DOWN, up=sharing.ROUND.up),),
    closing=lambda _params: sharing.CLOSING,
    needs=frozenset({"predict", "logit-gradients", "weights"}),
    terms=frozenset({"cross-entropy", "distill"}),
    shares_weights=True,
    caching=lambda params: sharing.slots(params.start, params.max_slot_age) if params.cached else None,
    discloses=sharing.DISCLOSES,
)

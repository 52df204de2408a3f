"""FedBABU: bodies are trained under one random last layer that nobody changes; each device tunes its own at the end.

Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR 2022
(arXiv:2106.06042).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.wires import Contract, Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class FedBABUParams:
    """Hyper-parameters of FedBABU."""

    tune_steps: int = 20
    """Steps of tuning before a device measures or uses its model; the paper takes one to five epochs.  0: none."""
    tune: str = "head"
    """What is tuned: the `head`, or `all` of the model."""
    tune_rate: float = 1.0
    """Times the learning rate of [train], in tuning."""
    weighting: str = "samples"
    """The mean over devices: by their `samples`, as in the paper, or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's body is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.whole("tune_steps", self.tune_steps, 0, paper="1 to 5 epochs")
        ranges.real("tune_rate", self.tune_rate, 1e-6, 1e3)
        ranges.choice("tune", self.tune, "head", "all")
        sharing.check_mean(self.weighting, self.start)


FEDBABU: Contract[FedBABUParams] = Contract(
    name="fedbabu",
    title="FedBABU: bodies are averaged under a fixed random last layer, which each device tunes in the end",
    citation="Oh et al. 2022, ICLR, arXiv:2106.06042",
    params=FedBABUParams,
    exchanges=lambda _params: (sharing.BODY_ROUND,),
    closing=lambda _params: Exchange(down=sharing.BODY_DOWN),
    needs=frozenset({"predict", "logit-gradients", "head-rows", "weights"}),
    terms=frozenset({"cross-entropy"}),
    shares_weights=True,
    discloses=sharing.DISCLOSES_BODY,
)

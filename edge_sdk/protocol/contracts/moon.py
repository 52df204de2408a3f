"""MOON: FedAvg, with features drawn towards those of the mean and away from those of the device's former model.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021 (arXiv:2103.16257).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.wires import Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class MoonParams:
    """Hyper-parameters of MOON."""

    mu: float = 1.0
    """mu, of the contrast; the paper tunes it in 0.1 ... 10 and takes 5, 1 and 1.  0: FedAvg."""
    temperature: float = 0.5
    """tau, which divides the cosines."""
    weighting: str = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.real("mu", self.mu, 0, 1000, paper="0.1 to 10")
        ranges.real("temperature", self.temperature, 0.05, 100, paper="0.5")
        sharing.check_mean(self.weighting, self.start)


MOON: Contract[MoonParams] = Contract(
    name="moon",
    title="MOON: FedAvg, with features that follow the mean and not the device's former model",
    citation="Li et al. 2021, CVPR, arXiv:2103.16257",
    params=MoonParams,
    exchanges=lambda _params: (sharing.ROUND,),
    closing=lambda _params: sharing.CLOSING,
    needs=frozenset({"predict", "logit-gradients", "features", "weights"}),
    terms=frozenset({"cross-entropy", "model-contrast"}),
    shares_weights=True,
    discloses=sharing.DISCLOSES,
)

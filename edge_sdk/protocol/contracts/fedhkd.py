"""FedHKD: weights are averaged, and with them class-mean features and class-mean soft predictions: hyper-knowledge.

Chen, Wang and Vikalo, "The Best of Both Worlds: Accurate Global and Personalized Models through Federated Learning with
Data-Free Hyper-Knowledge Distillation", ICLR 2023 (arXiv:2301.08968).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.knowledge import HyperKnowledge
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedHKDParams:
    """Hyper-parameters of FedHKD; the defaults are the paper's, but for the threshold."""

    soft_weight: float = 0.05
    """lambda, of the head's predictions on the mean features of all."""
    feature_weight: float = 0.05
    """gamma, of the distance between features and the mean feature of their class; 0: the paper's FedHKD*."""
    temperature: float = 0.5
    """T, of every softmax but that of the cross-entropy; below 1 it sharpens."""
    min_count: int = 5
    """Samples of a class from which a device shares it."""
    nu: float = 0.0
    """The paper's threshold, a share of the device's samples: a class below it is not shared.  The paper takes 0.25,
    which lets hardly any class pass; 0: min_count alone decides."""
    carry_rounds: int = 0
    """For how many rounds the hyper-knowledge of a class outlives its last holder; 0: not at all, as in the paper."""
    weighting: str = "samples"
    """The mean of weights over devices: by their `samples` or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.real("soft_weight", self.soft_weight, 0, 1000, paper="0.05")
        ranges.real("feature_weight", self.feature_weight, 0, 1000, paper="0.05, or 0 for FedHKD*")
        ranges.real("temperature", self.temperature, 0.01, 100, paper="0.5")
        ranges.whole("min_count", self.min_count, 1)
        ranges.real("nu", self.nu, 0, 1, paper="0.25")
        ranges.whole("carry_rounds", self.carry_rounds, 0, paper="0")
        sharing.check_mean(self.weighting, self.start)


_DOWN = {**sharing.DOWN, "hyper": Slot(HyperKnowledge, optional=True)}
_UP = {**sharing.ROUND.up, "hyper": Slot(HyperKnowledge, optional=True)}


def _warnings(params: FedHKDParams, spec: FederationSpec) -> tuple[str, ...]:
    if params.nu * spec.classes <= 1:
        return ()
    most = int(1 / params.nu)
    text = (
        f"method.nu = {params.nu:g}: at most {most} of {spec.classes} classes of a device can pass it, and where data "
        "is spread evenly none; devices with nothing to share make FedHKD FedAvg; use min_count instead (W1)"
    )
    return (text,)


FEDHKD: Contract[FedHKDParams] = Contract(
    name="fedhkd",
    title="FedHKD: weights, with the mean features and mean predictions of each class",
    citation="Chen et al. 2023, ICLR, arXiv:2301.08968",
    params=FedHKDParams,
    exchanges=lambda _params: (Exchange(down=_DOWN, up=_UP),),
    closing=lambda _params: Exchange(down=_DOWN),
    needs=frozenset({"predict", "logit-gradients", "features", "head-rows", "weights"}),
    terms=frozenset({"cross-entropy", "prototype-distance", "head-match"}),
    same_width=True,
    holders_wanted=3,
    shares_weights=True,
    discloses=f"{sharing.DISCLOSES}; which classes the device holds, their samples, mean features and mean predictions",
    warnings=_warnings,
    cautions=("W1: a threshold nu that most devices cannot pass",),
)

"""FedHKD: weights are averaged, and with them class-mean features and class-mean soft predictions: hyper-knowledge.

Chen, Wang and Vikalo, "The Best of Both Worlds: Accurate Global and Personalized Models through Federated Learning with
Data-Free Hyper-Knowledge Distillation", ICLR 2023 (arXiv:2301.08968).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edge_sdk.protocol.contracts import gaussian, ranges, sharing
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge
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
    share_weights: bool = True
    """False: hyper-knowledge alone travels, and each device keeps its own model, of any architecture."""
    noise_features: float = 0.0
    """z_h: noise on the sum of a class's features, as a multiple of `clip`.  0: none.  With noise a device tells of
    every class, sums instead of means, and the coordinator leaves out those below `min_count` on all devices."""
    noise_soft: float = 0.0
    """z_q: noise on the sum of a class's predictions."""
    noise_counts: float = 0.0
    """z_n: noise on the number of a class's samples."""
    clip: float = 1.0
    """C: with noise, the largest L2 norm of a sample's feature; longer ones are shortened."""
    delta: float = 1e-5
    """At which the epsilon of the noise is told."""
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
        for key in ("noise_features", "noise_soft", "noise_counts"):
            ranges.real(key, getattr(self, key), 0, 1000)
            if bool(getattr(self, key)) != bool(self.noise_features):
                raise ValueError(f"{key}: expected as the other two noises, all above 0 or all 0, found the one and 0")
        ranges.real("clip", self.clip, 1e-3, 1e3)
        ranges.real("delta", self.delta, 1e-12, 0.1)
        if self.nu and self.noise_features:
            raise ValueError("nu: expected 0 where there is noise, for which classes pass it tells of the data")
        sharing.check_mean(self.weighting, self.start)

    @property
    def mu(self) -> float:
        """Of the noise, in one round: mu^2 = 1/z_h^2 + 1/z_q^2 + 1/z_n^2; a record adds at most C, 1 and 1 to sums."""
        return math.hypot(1 / self.noise_features, 1 / self.noise_soft, 1 / self.noise_counts)


def _down(params: FedHKDParams) -> Mapping[str, Slot]:
    weights = sharing.DOWN if params.share_weights else {}
    return {**weights, "hyper": Slot(HyperKnowledge, optional=True)}


def _up(params: FedHKDParams) -> Mapping[str, Slot]:
    weights = sharing.ROUND.up if params.share_weights else {}
    if params.noise_features:
        return {**weights, "sums": Slot(ClassRows, extra_columns=1, class_columns=True)}
    return {**weights, "hyper": Slot(HyperKnowledge, optional=True)}


def _closing(params: FedHKDParams) -> Exchange:
    return Exchange(down=_down(params)) if params.share_weights else Exchange()


def _warnings(params: FedHKDParams, spec: FederationSpec) -> tuple[str, ...]:
    return (*_threshold(params, spec), *_promise(params, spec))


def _promise(params: FedHKDParams, spec: FederationSpec) -> tuple[str, ...]:
    """What the noise promises, and what it does not (W2)."""
    if not params.noise_features:
        return ()
    one, every = ((mu, gaussian.epsilon(params.delta, mu)) for mu in (params.mu, params.mu * math.sqrt(spec.rounds)))
    weights = "the weights leave without noise" if params.share_weights else "so do figures that the device measures"
    text = (
        "W2: the noise protects the hyper-knowledge tensor only, given the models that made it: "
        f"mu = {one[0]:.3g}, epsilon = {one[1]:.3g} at delta = {params.delta:g} for one round, "
        f"mu = {every[0]:.3g}, epsilon = {every[1]:.3g} for all {spec.rounds}; a round as a whole has no epsilon, for "
        f"models are trained on the same data without noise, and {weights}"
    )
    return (text,)


def _threshold(params: FedHKDParams, spec: FederationSpec) -> tuple[str, ...]:
    if params.nu * spec.classes <= 1:
        return ()
    most = int(1 / params.nu)
    text = (
        f"method.nu = {params.nu:g}: at most {most} of {spec.classes} classes of a device can pass it, and where data "
        "is spread evenly none; devices with nothing to share make FedHKD FedAvg; use min_count instead (W1)"
    )
    return (text,)


def _population(params: FedHKDParams, class_counts: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
    """W1, of the devices as they are."""
    mute = sum(max(counts, default=0) < params.nu * sum(counts) for counts in class_counts)
    if 2 * mute <= len(class_counts):
        return ()
    text = (
        f"W1: the threshold nu = {params.nu:g} leaves {mute} of {len(class_counts)} devices with nothing to share, and "
        "so FedHKD is FedAvg; use min_count instead"
    )
    return (text,)


_NEEDS = frozenset({"predict", "logit-gradients", "features", "head-rows"})
_OF_CLASSES = "which classes the device holds, their samples, mean features and mean predictions"
_OF_SUMS = "noised sums of every class: of samples, features and predictions"


def _variant(params: FedHKDParams) -> Mapping[str, Any]:
    """Without weights nobody needs to allow them; with noise it is not told who holds a class."""
    told = _OF_SUMS if params.noise_features else _OF_CLASSES
    weights = {} if params.share_weights else {"needs": _NEEDS, "shares_weights": False}
    held = {"holders_wanted": 0} if params.noise_features else {}
    discloses = f"{sharing.DISCLOSES}; {told}" if params.share_weights else told
    return {**weights, **held, "discloses": discloses}


FEDHKD: Contract[FedHKDParams] = Contract(
    name="fedhkd",
    title="FedHKD: weights, with the mean features and mean predictions of each class",
    citation="Chen et al. 2023, ICLR, arXiv:2301.08968",
    params=FedHKDParams,
    exchanges=lambda params: (Exchange(down=_down(params), up=_up(params)),),
    closing=_closing,
    needs=_NEEDS | {"weights"},
    terms=frozenset({"cross-entropy", "prototype-distance", "head-match"}),
    same_width=True,
    holders_wanted=3,
    shares_weights=True,
    discloses=f"{sharing.DISCLOSES}; {_OF_CLASSES}",
    warnings=_warnings,
    population=_population,
    variant=_variant,
    cautions=("W1: a threshold nu that most devices cannot pass", "W2: noise, for what it does not protect"),
)

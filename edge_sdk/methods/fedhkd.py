"""FedHKD: weights are averaged, and with them class-mean features and class-mean soft predictions: hyper-knowledge.

Chen, Wang and Vikalo, "The Best of Both Worlds: Accurate Global and Personalized Models through Federated Learning with
Data-Free Hyper-Knowledge Distillation", ICLR 2023 (arXiv:2301.08968), Algorithm 1.

    train     CE(y, f(x)) + lambda (1/K) sum_j |softmax(G(H^j) / T) - Q^j| + gamma |R(x) - H^y|       equation 11
    share     w, and of each class with enough samples the mean feature and the mean of softmax(G(R(x)) / T)
    reduce    w as in FedAvg; H^j and Q^j, the means over the holders of j, by their samples of it    equation 9

H^j, Q^j are constants on the device.  They do not exist in the first round, nor for nets with different starts.  With
noise, sums of shortened features over every class are shared instead; without weights each device keeps its own model.
A class without uploads is dropped, unless `carry_rounds` keeps it.  fedhkd_noise.py has the noise's guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.averaging import DISCLOSES, DOWN, UP, Averaging
from edge_sdk.methods.contract.base import Down, Exchange, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.methods.contract.requests import BoundedShare, HyperMeans, Report
from edge_sdk.methods.parts.fedhkd_noise import gaussian, mean_of_sums, promise, published_promise, with_published_noise
from edge_sdk.objectives import (
    BoundedDistance,
    CrossEntropy,
    HeadDivergence,
    HeadMatch,
    Objective,
    PrototypeDistance,
    PrototypePull,
)
from edge_sdk.privacy.noise import epsilon
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, Packed, wire
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import PAPERS, Combining, MixedSum

_TOLD_CLASSES = "which classes the device holds, their samples, mean features and mean predictions"
_TOLD_SUMS = "noised sums of every class: of samples, features and predictions"
MOST_BOUNDED = 0.5
"""The share of bounded samples above which there is a warning."""
_ARRAYS = ("classes", "features", "soft", "counts")


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedHKD; the defaults are the paper's, but for the threshold."""

    soft_weight: Annotated[float, Range(0, 1000, paper="0.05")] = 0.05
    """lambda, the weight of the term on the head's predictions for the mean features."""
    feature_weight: Annotated[float, Range(0, 1000, paper="0.05, or 0 for FedHKD*")] = 0.05
    """gamma, the weight of the distance between features and their class's mean feature; 0 is the paper's FedHKD*."""
    temperature: Annotated[float, Range(0.01, 100, paper="0.5")] = 0.5
    """T, the temperature of every softmax except that of the cross-entropy; values below 1 sharpen."""
    min_count: Annotated[int, Range(1)] = 5
    """The minimum number of samples of a class for a device to share it."""
    nu: Annotated[float, Range(0, 1, paper="0.25")] = 0.0
    """The paper's threshold, a share of the device's samples: a class below it is not shared.  The paper takes 0.25,
    which lets hardly any class pass; with 0 only min_count decides."""
    carry_rounds: Annotated[int, Range(0, paper="0")] = 0
    """The number of rounds that a class's hyper-knowledge is kept without a holder; 0 drops it, as in the paper."""
    share_weights: bool = True
    """Whether weights travel.  If false, only hyper-knowledge travels, and each device keeps a model of any
    architecture."""
    noise_features: Annotated[float, Range(0, 1000)] = 0.0
    """z_h: noise on the sum of a class's features, as a multiple of `clip`.  0 disables it.  With noise a device sends
    sums instead of means, for every class, and the coordinator leaves out classes with fewer than `min_count`
    samples on all devices."""
    noise_soft: Annotated[float, Range(0, 1000)] = 0.0
    """z_q: noise on the sum of a class's predictions."""
    noise_counts: Annotated[float, Range(0, 1000)] = 0.0
    """z_n: noise on the number of a class's samples."""
    clip: Annotated[float, Range(1e-3, 1e3)] = 1.0
    """C: with noise, the largest L2 norm of a sample's feature; longer ones are shortened, in the sums, in the
    predictions and in the loss alike."""
    noise: Literal["sums", "published"] = "sums"
    """`sums`: the three noises above, where they are not 0.  `published`: the paper's, N(0, (2 zeta sigma / n)^2) on
    each number of a mean feature, of the classes that pass; predictions, counts and weights leave without noise."""
    sigma: Annotated[float, Range(0.01, 1000, paper="7")] = 7.0
    """sigma of published noise."""
    zeta: Annotated[float, Range(1e-3, 1e3, paper="3")] = 3.0
    """zeta of published noise: the largest magnitude of a number in a feature; larger ones are shortened."""
    epsilon: Annotated[float, Range(0, 1e6)] = 0.0
    """The largest epsilon of the noised sums over all rounds, at `delta`: a run with less noise is refused.  0 sets no
    limit."""
    delta: Annotated[float, Range(1e-12, 0.1)] = 1e-5
    """The delta at which the epsilon of the noise is reported."""
    forms: Literal["paper", "code"] = "paper"
    """The two terms as in the `paper`, or as in its authors' `code`: a mean KL and a mean squared error."""
    weighting: Weighting = "samples"
    """The mean of weights over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, and hyper-knowledge of unrelated
    nets is left out.  With `equal` all start from equal weights, and it counts."""

    def __post_init__(self) -> None:
        for key in ("noise_features", "noise_soft", "noise_counts"):
            if bool(getattr(self, key)) != bool(self.noise_features):
                raise ValueError(f"{key}: expected as the other two noises, all above 0 or all 0, found the one and 0")
        if self.nu and self.noise_features:
            raise ValueError("nu: expected 0 with noise, because the classes that pass reveal information on the data")
        if self.noise_features and self.noise == "published":
            raise ValueError(f"noise_features: expected 0 where noise is published, found {self.noise_features}")
        if self.epsilon and self.noise == "published":
            why = "mean predictions and counts leave without noise, so no epsilon exists"
            raise ValueError(f"epsilon: expected 0 where noise is published ({why}), found {self.epsilon:g}")
        if self.epsilon and not self.noise_features:
            raise ValueError(f"epsilon: expected 0 without noise, found {self.epsilon:g}")
        if self.bound[0] < math.inf and self.forms == "code":
            raise ValueError("forms: expected paper where there is noise, found 'code'")

    @property
    def bound(self) -> tuple[float, bool]:
        """The bound on features on all sides: the maximum, and whether it applies to each number."""
        if self.noise == "published":
            return self.zeta, True
        return (self.clip if self.noise_features else math.inf), False

    @property
    def mu(self) -> float:
        """Return the mu of one round: mu^2 = 1/z_h^2 + 1/z_q^2 + 1/z_n^2; a record adds at most C, 1 and 1 to sums."""
        return math.hypot(1 / self.noise_features, 1 / self.noise_soft, 1 / self.noise_counts)


@wire("fedhkd-coordinator-state")
@dataclass(frozen=True, slots=True)
class State:
    """The weights w^t, the hyper-knowledge, and for each of its classes the rounds since it was last shared."""

    weights: Weights | None = None
    hyper: HyperKnowledge | None = None
    ages: Annotated[tuple[int, ...], Packed(32768)] = ()
    rounds: Count = 0
    """The number of rounds.  After the last one, hyper-knowledge alone is not needed."""


class FedHKD(Averaging[Params]):
    """FedAvg's round with another loss and hyper-knowledge beside the weights, or hyper-knowledge alone."""

    name = "fedhkd"
    title = "FedHKD: weights, with the mean features and mean predictions of each class"
    citation = "Chen et al. 2023, ICLR, arXiv:2301.08968"
    needs = frozenset({"predict", "logit-gradients", "features", "head-rows", "weights"})
    terms = frozenset({"cross-entropy", "prototype-distance", "head-match"})
    same_width = True
    holders_wanted = 3
    cautions = ("W1: a threshold nu that most devices cannot pass", "W2: noise, for what it does not protect")
    reduction = MixedSum

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        noised, shares = bool(self.params.noise_features), self.params.share_weights
        sums = {"sums": Slot(ClassRows, extra_columns=1, class_columns=True)}
        hyper = {"hyper": Slot(HyperKnowledge, optional=True)}
        down = {**(DOWN if shares else {}), **hyper}
        self.exchanges = (Exchange(down=down, up={**(UP if shares else {}), **(sums if noised else hyper)}),)
        self.closing = Exchange(down=down) if shares else Exchange()
        told = _TOLD_SUMS if noised else _TOLD_CLASSES
        if self.params.noise == "published":
            told = f"{_TOLD_CLASSES}; the mean features with noise"
        self.terms = frozenset({"cross-entropy", *(term.name for term in term_kinds(self.params))})
        self.discloses = f"{DISCLOSES}; {told}" if shares else told
        self.robust = frozenset() if noised else frozenset({"rows"})
        if noised:  # an upload does not reveal which classes a device holds
            self.holders_wanted = 0
        if not shares:  # weights need no permission, and no model is shared
            self.needs, self.shares_weights, self.global_model = self.needs - {"weights"}, False, False

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """Return warnings W1 and W2."""
        params, found = self.params, threshold_warning(self.params, spec.classes)
        if params.noise == "published":
            return (*found, published_promise(params.sigma, spec.feature_dim, params.delta, spec.rounds))
        if not params.noise_features:
            return found
        text = promise(params.mu, params.delta, spec.rounds, shares_weights=params.share_weights)
        return (*found, text)

    def population(self, class_counts: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
        """Return warning W1, given the class counts of the devices."""
        mute = sum(not passes(max(counts, default=0), sum(counts), self.params.nu) for counts in class_counts)
        if 2 * mute <= len(class_counts):
            return ()
        text = (
            f"W1: the threshold nu = {self.params.nu:g} leaves {mute} of {len(class_counts)} devices with nothing to "
            "share, and so FedHKD is FedAvg; use min_count instead"
        )
        return (text,)

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train with the received hyper-knowledge."""
        yield from device.fit(loss(self.params, device.received(HyperKnowledge, "hyper")))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send hyper-knowledge or sums with noise, and the weights."""
        noised = self.params.noise_features
        known = yield from (self.noised_sums(device) if noised else self.hyper_knowledge(device))
        return {**(yield from super().share(device)), **known} if self.params.share_weights else known

    def hyper_knowledge(self, device: OnDevice[Any]) -> Stage[Up]:
        """Return the hyper-knowledge of the classes that pass the threshold; nothing if none does."""
        params = self.params
        means: HyperKnowledge = yield HyperMeans(params.temperature, *params.bound)
        above = np.array([passes(int(count), device.job.samples, params.nu) for count in means.counts], bool)  # (m,)
        shared = (means.counts >= params.min_count) & above
        if params.noise == "published":
            yield from self.report_bounded(device)
            means = with_published_noise(means, 2 * params.zeta * params.sigma, device.job.secret)
        return {"hyper": rows_where(means, shared)} if shared.any() else {}

    def report_bounded(self, device: OnDevice[Any]) -> Stage[None]:
        """Report the share of the samples whose feature is bounded."""
        if device.job.instruments:
            share: float = yield BoundedShare(*self.params.bound)
            yield Report({"bounded_share": share})

    def without_effect(self, spec: FederationSpec, newest: Mapping[str, float]) -> tuple[str, ...]:
        """Warn of a bound that most features exceed, so that only their directions are compared."""
        share, key = newest.get("bounded_share", 0.0), "zeta" if self.params.noise == "published" else "clip"
        if share <= MOST_BOUNDED:
            return ()
        text = f"{share:.0%} of the samples have features beyond method.{key} = {self.params.bound[0]:g}; raise it"
        return (text,)

    def noised_sums(self, device: OnDevice[Any]) -> Stage[Up]:
        """Return the sums of features, predictions and samples for every class, each with noise."""
        params = self.params
        means: HyperKnowledge = yield HyperMeans(params.temperature, *params.bound, of_all=True)
        yield from self.report_bounded(device)
        counts = means.counts[:, None].astype(np.float64)  # (m, 1)
        d, k = means.features.shape[1], device.job.spec.classes
        sums = np.zeros((k, d + k + 1))
        sums[means.classes] = np.hstack([means.features * counts, means.soft * counts, counts])
        scales = (params.noise_features * params.clip, params.noise_soft, params.noise_counts)
        noised = sums + np.repeat(scales, (d, k, 1)) * gaussian(device.job.secret, sums)
        classes = np.arange(k, dtype=np.int32)
        return {"sums": ClassRows(classes=classes, rows=noised.astype(np.float32), counts=np.ones_like(classes))}

    def begin(self, spec: FederationSpec) -> State:
        """Start without weights and without hyper-knowledge.  Raises UsageError for too little noise."""
        params = self.params
        if params.epsilon:
            found = epsilon(params.delta, params.mu * math.sqrt(spec.rounds))
            if found > params.epsilon:
                raise UsageError(
                    f"method.epsilon: {params.epsilon:g} asked for, and over {spec.rounds} rounds the noise gives "
                    f"{found:.3g} at delta = {params.delta:g}; raise noise_features, noise_soft and noise_counts"
                )
        return State(rounds=spec.rounds)

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the weights and the hyper-knowledge that exist; without weights send nothing at the end."""
        if state.weights is None and at.round == state.rounds:
            return {}
        return {"weights": state.weights, "hyper": state.hyper}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: MixedSum) -> State:
        """Compute the mean weights and the mean hyper-knowledge, which nets that began differently do not have."""
        weights = self.mean(uploads.weights, state.weights) if self.params.share_weights else None
        if self.of_unrelated_nets(state.weights):
            return State(weights, rounds=state.rounds)
        if self.params.noise_features:
            now = mean_of_sums(uploads.rest, spec, self.params.noise_counts, self.params.min_count)
        else:
            now = mean_hyper(list(uploads.rest.payloads(HyperKnowledge, "hyper").values()), self.combining)
        hyper, ages = carried(state, now, self.params.carry_rounds)
        return State(weights, hyper, ages, state.rounds)


def loss(params: Params, hyper: HyperKnowledge | None) -> Objective:
    """Return the three terms of equation 11, if there is hyper-knowledge; a term of weight 0 is left out."""
    if hyper is None:
        return (CrossEntropy(),)
    features, soft = np.asarray(hyper.features, np.float32), np.asarray(hyper.soft, np.float32)
    head_kind, near_kind = term_kinds(params)
    head = head_kind(features=features, soft=soft, temperature=params.temperature, weight=params.soft_weight)
    near = near_kind(classes=hyper.classes.astype(np.int64), rows=features, weight=params.feature_weight)
    if isinstance(near, BoundedDistance):
        near = replace(near, most=params.bound[0], cube=params.bound[1])
    return (CrossEntropy(), *(term for term in (head, near) if term.weight))


def term_kinds(params: Params) -> tuple[type[HeadMatch], type[PrototypePull]]:
    """Return the kinds of the two terms of equation 11 that hyper-knowledge is in."""
    if params.forms == "code":
        return HeadDivergence, PrototypePull
    return HeadMatch, BoundedDistance if params.bound[0] < math.inf else PrototypeDistance


def passes(count: int, samples: int, nu: float) -> bool:
    """Return whether a class is at least the share nu of a device's samples; nu is the decimal number as written."""
    return count >= Fraction(repr(nu)) * samples  # in floating point 0.1 times 30 is above 3


def threshold_warning(params: Params, classes: int) -> tuple[str, ...]:
    """Return warning W1 for the threshold alone."""
    if params.nu * classes <= 1:
        return ()
    text = (
        f"method.nu = {params.nu:g}: at most {int(1 / params.nu)} of {classes} classes of a device can pass it, and "
        "where data is spread evenly none; devices with nothing to share make FedHKD FedAvg; use min_count instead (W1)"
    )
    return (text,)


def mean_hyper(ups: Sequence[HyperKnowledge], combining: Combining = PAPERS) -> HyperKnowledge | None:
    """Equation 9: per class the mean over its holders, by their samples of it; features and predictions alike."""
    if not ups:
        return None
    features, soft = (
        combining.rows([ClassRows(classes=up.classes, rows=getattr(up, part), counts=up.counts) for up in ups])
        for part in ("features", "soft")
    )
    if features is None or soft is None:
        return None
    return HyperKnowledge(classes=features.classes, features=features.rows, soft=soft.rows, counts=features.counts)


def carried(before: State, now: HyperKnowledge | None, rounds: int) -> tuple[HyperKnowledge | None, tuple[int, ...]]:
    """Return this round's hyper-knowledge with the classes kept from earlier rounds, and the age of each class."""
    parts = [] if now is None else [(now, np.zeros(len(now.classes), np.int64))]
    if before.hyper is not None:
        ages = np.array(before.ages, np.int64) + 1  # (m,)
        kept = ages <= rounds
        if now is not None:
            kept &= ~np.isin(before.hyper.classes, now.classes)
        if kept.any():
            parts.append((rows_where(before.hyper, kept), ages[kept]))
    if not parts:
        return None, ()
    order = np.argsort(np.concatenate([hyper.classes for hyper, _ in parts]))
    every = HyperKnowledge(
        **{name: np.concatenate([getattr(hyper, name) for hyper, _ in parts])[order] for name in _ARRAYS}
    )
    return every, tuple(np.concatenate([ages for _, ages in parts])[order].tolist())


def rows_where(hyper: HyperKnowledge, which: NDArray[np.bool_]) -> HyperKnowledge:
    """Return the hyper-knowledge of some of its classes."""
    return HyperKnowledge(**{name: getattr(hyper, name)[which] for name in _ARRAYS})

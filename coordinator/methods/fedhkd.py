"""FedHKD (coordinator half): the mean of weights, and per class the mean of hyper-knowledge over its holders, eq. 9.

Chen et al. 2023, ICLR.  Hyper-knowledge is made anew in each round: a class that nobody shares is gone, unless
`carry_rounds` keeps it for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, cast

import numpy as np
from numpy.typing import NDArray

from coordinator.class_rows import MOST, mean_over_holders
from coordinator.methods.base import At, Contribution
from coordinator.methods.fedavg import next_weights
from coordinator.mixed_sum import InMixedSum, MixedSum
from edge_sdk.errors import EmptyRound
from edge_sdk.protocol.contracts.fedhkd import FEDHKD, FedHKDParams
from edge_sdk.protocol.knowledge import ClassRows, HyperKnowledge, Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import Count, Packed, wire


@wire("fedhkd-coordinator-state")
@dataclass(frozen=True, slots=True)
class FedHKDCoordinatorState:
    """w^t, and the hyper-knowledge with the rounds since each of its classes was last shared."""

    weights: Weights | None = None
    hyper: HyperKnowledge | None = None
    ages: Annotated[tuple[int, ...], Packed(32768)] = ()
    rounds: Count = 0
    """After these hyper-knowledge alone is of no use."""


class FedHKDCoordinator(InMixedSum):
    """Averages weights over devices, hyper-knowledge over the holders of each class by their samples of it."""

    contract = FEDHKD

    def init(self, spec: FederationSpec) -> FedHKDCoordinatorState:
        """Neither weights nor hyper-knowledge."""
        return FedHKDCoordinatorState(rounds=spec.rounds)

    def common(self, state: FedHKDCoordinatorState, at: At) -> Mapping[str, Payload]:
        """Both, as far as they are there; without weights nothing at the end."""
        if state.weights is None and at.round == state.rounds:
            return {}
        both = {"weights": state.weights, "hyper": state.hyper}
        return {role: payload for role, payload in both.items() if payload is not None}

    def personal(self, state: FedHKDCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: FedHKDCoordinatorState, at: At, aggregate: MixedSum
    ) -> FedHKDCoordinatorState:
        """Divide."""
        params: FedHKDParams = self.contract.read(spec.params)
        if not len(aggregate.rest):
            raise EmptyRound(f"round {at.round}: nothing arrived; wait for devices, or lower the quorum")
        weights = None
        if params.share_weights:
            weights = next_weights(at, aggregate.weights, params.start, state.weights)
        if params.noise_features:
            now = mean_of_sums(aggregate.rest, params, spec)
        else:
            now = mean_hyper([cast("HyperKnowledge", up.knowledge["hyper"]) for up in aggregate.rest if up.knowledge])
        hyper, ages = carried(state, now, params.carry_rounds)
        return FedHKDCoordinatorState(weights, hyper, ages, state.rounds)


def mean_hyper(ups: Sequence[HyperKnowledge]) -> HyperKnowledge | None:
    """Equation 9: per class the mean over its holders, by their samples of it; features and predictions alike."""
    if not ups:
        return None
    features, soft = (
        mean_over_holders([ClassRows(classes=up.classes, rows=getattr(up, part), counts=up.counts) for up in ups])
        for part in ("features", "soft")
    )
    return HyperKnowledge(classes=features.classes, features=features.rows, soft=soft.rows, counts=features.counts)


def mean_of_sums(ups: Iterable[Contribution], params: FedHKDParams, spec: FederationSpec) -> HyperKnowledge | None:
    """Noised sums, added up and divided by their noised counts; a class of fewer than `min_count` is absent.

    Predictions are brought back to the simplex.  A count beyond what its sender declared, and six deviations of noise,
    is cut there: counts are claims.
    """
    k, slack = spec.classes, _DEVIATIONS * params.noise_counts
    total = np.zeros((k, spec.feature_dim + k + 1))
    for up in ups:  # in number order
        sums = cast("ClassRows", up.knowledge["sums"])
        rows = sums.rows.astype(np.float64)
        rows[:, -1] = rows[:, -1].clip(-slack, up.samples + slack)
        total[sums.classes] += rows
    counts = total[:, -1]  # (k,)
    kept = np.flatnonzero(counts >= params.min_count)
    if not len(kept):
        return None
    means = total[kept, :-1] / counts[kept, None]  # (m, d + k)
    return HyperKnowledge(
        classes=kept.astype(np.int32),
        features=means[:, :-k].astype(np.float32),
        soft=on_simplex(means[:, -k:]).astype(np.float32),
        counts=np.clip(np.rint(counts[kept]), 1, MOST).astype(np.int32),
    )


def on_simplex(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest points of the probability simplex to rows (m, k): Duchi et al. 2008, ICML, figure 1."""
    falling = -np.sort(-rows, axis=1)  # (m, k)
    excess = (np.cumsum(falling, axis=1) - 1) / np.arange(1, rows.shape[1] + 1)  # (m, k)
    last = (falling > excess).sum(axis=1, keepdims=True) - 1  # (m, 1): entries that stay above 0, less 1
    nearest: NDArray[np.float64] = np.maximum(rows - np.take_along_axis(excess, last, axis=1), 0)
    return nearest


def carried(
    before: FedHKDCoordinatorState, now: HyperKnowledge | None, rounds: int
) -> tuple[HyperKnowledge | None, tuple[int, ...]]:
    """The hyper-knowledge of this round, with what may still be kept of the one before, and the age of each class."""
    parts = [] if now is None else [(now, np.zeros(len(now.classes), np.int64))]
    if before.hyper is not None:
        ages = np.array(before.ages, np.int64) + 1  # (m,)
        kept = ages <= rounds
        if now is not None:
            kept &= ~np.isin(before.hyper.classes, now.classes)
        if kept.any():
            parts.append((_chosen(before.hyper, kept), ages[kept]))
    if not parts:
        return None, ()
    order = np.argsort(np.concatenate([hyper.classes for hyper, _ in parts]))
    every = HyperKnowledge(
        **{name: np.concatenate([getattr(hyper, name) for hyper, _ in parts])[order] for name in _ARRAYS}
    )
    return every, tuple(np.concatenate([ages for _, ages in parts])[order].tolist())


_DEVIATIONS = 6.0
"""Of noise on a count: more than one honest count in 10^9 is not cut."""
_ARRAYS = ("classes", "features", "soft", "counts")


def _chosen(hyper: HyperKnowledge, kept: NDArray[np.bool_]) -> HyperKnowledge:
    return HyperKnowledge(**{name: getattr(hyper, name)[kept] for name in _ARRAYS})


METHOD = FedHKDCoordinator()

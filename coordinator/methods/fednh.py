"""FedNH (coordinator half): the plain mean of bodies, and prototypes that follow the devices' class means.

Dai et al. 2023, AAAI, equation 4 and line 9 of Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coordinator.class_rows import mean_over_holders
from coordinator.methods.base import At
from coordinator.methods.fedavg import next_weights
from coordinator.mixed_sum import InMixedSum, MixedSum
from coordinator.prototypes import first_prototypes
from edge_sdk.errors import EmptyRound, UsageError
from edge_sdk.protocol.contracts.fednh import FEDNH
from edge_sdk.protocol.knowledge import ClassRows, Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.schema import wire

_STREAM = 0x70726F746F
"""Keeps the draw of prototypes apart from those of devices, whose seeds end in their number."""
LEAST = 1e-9
"""A sum of directions that is shorter cancelled out, and has none."""

Doubles = NDArray[np.float64]


@wire("fednh-coordinator-state")
@dataclass(frozen=True, slots=True)
class FedNHCoordinatorState:
    """theta^t, none before the first round or where bodies stay on their devices; W^t of all classes, unit rows."""

    weights: Weights | None
    prototypes: ClassRows


class FedNHCoordinator(InMixedSum):
    """Averages bodies, moves prototypes."""

    contract = FEDNH

    def init(self, spec: FederationSpec) -> FedNHCoordinatorState:
        """No body yet, and prototypes that are spread as far as can be.  Raises UsageError where they cannot."""
        if not spec.feature_dim:
            raise UsageError("federation.feature_dim: missing; fednh spreads its prototypes in so many dimensions")
        how = self.contract.read(spec.params).initial
        rows = first_prototypes(spec.classes, spec.feature_dim, how, np.random.default_rng([spec.seed, _STREAM]))
        return FedNHCoordinatorState(None, _every_class(rows))

    def common(self, state: FedNHCoordinatorState, at: At) -> Mapping[str, Payload]:
        """The prototypes, and the body from the second round on."""
        return {"prototypes": state.prototypes, **({} if state.weights is None else {"weights": state.weights})}

    def personal(self, state: FedNHCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: FedNHCoordinatorState, at: At, aggregate: MixedSum
    ) -> FedNHCoordinatorState:
        """Divide, and move."""
        params = self.contract.read(spec.params)
        ups = [cast("ClassRows", up.knowledge["means"]) for up in aggregate.rest]  # in number order
        if not ups:
            raise EmptyRound(f"round {at.round}: no class means arrived; wait for devices, or lower the quorum")
        weights = next_weights(at, aggregate.weights, params.start, state.weights) if params.share_body else None
        classes, targets = (by_counts if params.update == "counts" else as_printed)(ups)
        rows = state.prototypes.rows.astype(np.float64)  # (k, d)
        rows[classes] = moved(rows[classes], targets, params.rho)
        return FedNHCoordinatorState(weights, _every_class(rows))


def as_printed(ups: Sequence[ClassRows]) -> tuple[NDArray[np.int32], Doubles]:
    """Equation 4 with alpha = 1 / |S|: classes (m,), and the sum of their means by the number of all uploads (m, d)."""
    ones = [replace(up, counts=np.ones_like(up.counts)) for up in ups]
    mean = mean_over_holders(ones)  # counts are holders
    return mean.classes, mean.rows * (mean.counts / len(ups))[:, None]


def by_counts(ups: Sequence[ClassRows]) -> tuple[NDArray[np.int32], Doubles]:
    """The authors' code: classes (m,), and the directions of their holders' directions by samples (m, d)."""
    directed = [replace(up, rows=directions(up.rows.astype(np.float64)).astype(np.float32)) for up in ups]
    mean = mean_over_holders(directed)
    return mean.classes, directions(mean.rows.astype(np.float64))


def moved(before: Doubles, targets: Doubles, rho: float) -> Doubles:
    """The direction of rho W + (1 - rho) target, for each row (m, d); W itself where that has none."""
    after = directions(rho * before + (1 - rho) * targets)
    there = (targets != 0).any(axis=1) & (after != 0).any(axis=1)  # (m,)
    return np.where(there[:, None], after, before)


def directions(rows: Doubles) -> Doubles:
    """Each row (m, d) by its length; zeros where that is next to nothing."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Doubles = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > LEAST)
    return unit


def _every_class(rows: Doubles) -> ClassRows:
    classes = np.arange(len(rows), dtype=np.int32)
    return ClassRows(classes=classes, rows=rows.astype(np.float32), counts=np.ones(len(rows), np.int32))


METHOD = FedNHCoordinator()

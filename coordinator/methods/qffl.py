"""q-FedAvg (coordinator half): Li et al. 2020, ICLR, arXiv:1905.10497, Algorithm 2.

    delta w_k = (w^t - w_k) / eta
    w^{t+1}   = w^t - sum_k F_k^q delta w_k / sum_k (q F_k^(q-1) |delta w_k|^2 + F_k^q / eta)

Both sums are taken here, in f8: h_k of a large model would not fit the range of what a device may send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregate import Bag, InBag, mean_in_order
from coordinator.methods.base import At
from coordinator.methods.fedavg import FedAvgCoordinatorState
from edge_sdk.errors import EmptyRound, RunFailed
from edge_sdk.protocol.contracts.qffl import QFFL
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec

LEAST_LOSS = 1e-10
"""Added to F: a power of zero loss below 1 has no finite slope."""

Floats = NDArray[np.float32]


class QFFLCoordinator(InBag):
    """Weighs by loss; keeps all uploads of a round, for their weights are known only when it knows w^t."""

    contract = QFFL

    def init(self, spec: FederationSpec) -> FedAvgCoordinatorState:
        """No weights yet: devices begin with their own."""
        return FedAvgCoordinatorState(rounds=spec.rounds)

    def common(self, state: FedAvgCoordinatorState, at: At) -> Mapping[str, Payload]:
        """The weights, from the second round on."""
        return {} if state.weights is None else {"weights": state.weights}

    def personal(self, state: FedAvgCoordinatorState, at: At, number: int) -> Mapping[str, Payload]:
        """Nothing."""
        return {}

    def finish(
        self, spec: FederationSpec, state: FedAvgCoordinatorState, at: At, aggregate: Bag
    ) -> FedAvgCoordinatorState:
        """One step from w^t; in the first round, see to a common start."""
        ups = [cast("Weights", up.knowledge["weights"]) for up in aggregate]  # in number order
        if not ups:
            raise EmptyRound(f"round {at.round}: no weights arrived; wait for devices, or lower the quorum")
        params, rows = self.contract.read(spec.params), [up.values for up in ups]
        if state.weights is None:
            values = rows[0][:-1] if params.start == "first" else mean_in_order(row[:-1] for row in rows)
        else:
            values = stepped(state.weights.values, rows, params.q, spec.train.learning_rate)
        return replace(state, weights=Weights(values=values, layout=ups[0].layout))


def stepped(before: Floats, rows: Sequence[Floats], q: float, rate: float) -> Floats:
    """w^{t+1} (p,) from w^t (p,) and the devices' weights with their losses behind them (p + 1,).

    Raises RunFailed where the steps that devices took cannot be told, because the learning rate is 0.
    """
    if rate == 0:
        raise RunFailed("qffl divides by train.learning_rate, which is 0: give it one")
    total, scale = np.zeros(before.shape), 0.0
    for row in rows:
        loss = max(float(row[-1]), 0.0) + LEAST_LOSS
        slope = (before.astype(np.float64) - row[:-1]) / rate  # (p,)
        total += loss**q * slope
        scale += q * loss ** (q - 1) * float(slope @ slope) + loss**q / rate
    return (before - total / scale).astype(np.float32)


METHOD = QFFLCoordinator()

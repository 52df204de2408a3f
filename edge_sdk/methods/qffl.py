"""q-FedAvg: devices with a higher loss count more, so that accuracies come closer together.

Li et al., "Fair Resource Allocation in Federated Learning", ICLR 2020 (arXiv:1905.10497), Algorithm 2.

    receive   w <- w^t; F(w^t), the mean loss on all own samples, in inference mode
    train     CE(y, f(x))
    share     w, and F(w^t) as a number beside it, exact in every encoding
    reduce    delta w_k = (w^t - w_k) / eta
              w^{t+1}   = w^t - sum_k F_k^q delta w_k / sum_k (q F_k^(q-1) |delta w_k|^2 + F_k^q / eta)

Both sums are computed on the coordinator in f8, because h_k of a large model would exceed the range of legal uploads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import RunFailed
from edge_sdk.methods.contract.averaging import DOWN, UP, Averaging, AveragingState
from edge_sdk.methods.contract.base import Exchange, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.description import Range, Start
from edge_sdk.methods.contract.requests import MeanLoss
from edge_sdk.objectives import optim_of
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import Scalars, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Bag, mean_in_order

LEAST_LOSS = 1e-10
"""Added to F: a power below 1 of a loss of zero has no finite slope."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of q-FedAvg."""

    q: Annotated[float, Range(0, 100, paper="0.001 to 5")] = 1e-4
    """q: how much a higher loss counts.  The paper takes 0.001 to 5, by data set; FedKF, comparing with it, ends at
    0.0001.  0 gives the plain mean of weights."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""


class QFFL(Averaging[Params]):
    """Keeps all uploads of a round, because their weights depend on w^t, which the coordinator needs first."""

    name = "qffl"
    title = "q-FedAvg: one architecture, its weights averaged, those of high loss above others"
    citation = "Li et al. 2020, ICLR, arXiv:1905.10497"
    exchanges = (Exchange(down=DOWN, up={**UP, "loss": Slot(Scalars, numbers=1)}),)
    discloses = "all weights of the model, from which training samples can be reconstructed, and the mean loss on them"
    cautions = ("W15: an optimiser other than sgd without momentum",)
    reduction = Bag
    weighting = "uniform"

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """Return warning W15."""
        if spec.train.optimiser == "sgd" and spec.train.momentum == 0:
            return ()
        return ('W15: h_k assumes steps of learning_rate times the gradient; use optimiser = "sgd" without momentum',)

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Take over the mean, and measure its loss on this device."""
        yield from super().receive(device)
        if not device.job.closing:
            device.kept = yield MeanLoss()

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the weights and the loss."""
        weights = yield from super().share(device)
        return {**weights, "loss": Scalars(values=np.array([device.kept], np.float32))}

    def reduce(self, spec: FederationSpec, state: AveragingState, at: ExchangeId, uploads: Bag) -> AveragingState:
        """Take one step from w^t; in the first round give all devices a common start."""
        ups = list(uploads.payloads(Weights, "weights").values())
        rows = [up.values for up in ups]
        if state.weights is not None:
            losses = [float(each.values[0]) for each in uploads.payloads(Scalars, "loss").values()]
            rate = optim_of(spec, at.round).learning_rate
            values = stepped(state.weights.values, rows, losses, self.params.q, rate)
        else:
            values = rows[0] if self.params.start == "first" else mean_in_order(rows)
        return replace(state, weights=Weights(values=values, layout=ups[0].layout))


def stepped(before: Floats, rows: Sequence[Floats], losses: Sequence[float], q: float, rate: float) -> Floats:
    """Return w^{t+1} (p,) from w^t (p,), and the weights (p,) and the loss at w^t of each device.

    Raises RunFailed if the learning rate is 0, because the devices' steps then cannot be derived.
    """
    if rate == 0:
        raise RunFailed("qffl divides by train.learning_rate, which is 0: give it one")
    total, scale = np.zeros(before.shape), 0.0
    for row, measured in zip(rows, losses, strict=True):
        loss = max(measured, 0.0) + LEAST_LOSS
        slope = (before.astype(np.float64) - row) / rate  # (p,)
        total += loss**q * slope
        scale += q * loss ** (q - 1) * float(slope @ slope) + loss**q / rate
    return (before - total / scale).astype(np.float32)

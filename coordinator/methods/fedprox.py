"""FedProx (coordinator half): the mean of weights, as in FedAvg; Li et al. 2020, MLSys, Algorithm 2."""

from __future__ import annotations

from coordinator.methods.fedavg import FedAvgCoordinator
from edge_sdk.protocol.contracts.fedprox import FEDPROX

METHOD = FedAvgCoordinator(FEDPROX)

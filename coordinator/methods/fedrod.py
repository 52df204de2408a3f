"""FedRoD (coordinator half): the mean of weights, as in FedAvg; Chen and Chao 2022, ICLR, Algorithm 1."""

from __future__ import annotations

from coordinator.methods.fedavg import FedAvgCoordinator
from edge_sdk.protocol.contracts.fedrod import FEDROD

METHOD = FedAvgCoordinator(FEDROD)

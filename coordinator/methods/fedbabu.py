"""FedBABU (coordinator half): the mean of bodies, as FedAvg's of whole models; Oh et al. 2022, Algorithm 1."""

from __future__ import annotations

from coordinator.methods.fedavg import FedAvgCoordinator
from edge_sdk.protocol.contracts.fedbabu import FEDBABU

METHOD = FedAvgCoordinator(FEDBABU)

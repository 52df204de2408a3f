"""MOON (coordinator half): the mean of weights, as in FedAvg; Li et al. 2021, CVPR, Algorithm 1."""

from __future__ import annotations

from coordinator.methods.fedavg import FedAvgCoordinator
from edge_sdk.protocol.contracts.moon import MOON

METHOD = FedAvgCoordinator(MOON)

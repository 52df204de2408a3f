"""Ditto (coordinator half): the mean of weights, as in FedAvg; Li et al. 2021, ICML, Algorithm 1."""

from __future__ import annotations

from coordinator.methods.fedavg import FedAvgCoordinator
from edge_sdk.protocol.contracts.ditto import DITTO

METHOD = FedAvgCoordinator(DITTO)

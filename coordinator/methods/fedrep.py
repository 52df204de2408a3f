"""FedRep (coordinator half): the mean of bodies, as FedAvg's of whole models; Collins et al. 2021, Algorithm 1."""

from __future__ import annotations

from coordinator.methods.fedavg import FedAvgCoordinator
from edge_sdk.protocol.contracts.fedrep import FEDREP

METHOD = FedAvgCoordinator(FEDREP)

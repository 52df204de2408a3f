"""FedPer (coordinator half): the mean of bodies, as FedAvg's of whole models; Arivazhagan et al. 2019, Algorithm 2."""

from __future__ import annotations

from coordinator.methods.fedavg import FedAvgCoordinator
from edge_sdk.protocol.contracts.fedper import FEDPER

METHOD = FedAvgCoordinator(FEDPER)

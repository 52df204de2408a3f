"""FedClassAvg (coordinator half): the mean of last layers, as in LG-FedAvg; Jang et al. 2022, ICPP, Algorithm 1."""

from __future__ import annotations

from coordinator.methods.lg_fedavg import LGFedAvgCoordinator
from edge_sdk.protocol.contracts.fedclassavg import FEDCLASSAVG

METHOD = LGFedAvgCoordinator(FEDCLASSAVG)

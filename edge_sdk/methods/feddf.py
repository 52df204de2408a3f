"""FedDF (client half): plain training of what came down, Lin et al. 2020, NeurIPS, Algorithm 1.

Nothing of it shows on the device: it is FedAvg's, whose weights may be those of its architecture alone.
"""

from __future__ import annotations

from edge_sdk.methods.fedavg import FedAvgClient, cross_entropy
from edge_sdk.protocol.contracts.feddf import FEDDF

METHOD = FedAvgClient(FEDDF, cross_entropy)

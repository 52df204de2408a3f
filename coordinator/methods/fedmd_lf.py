"""FedMD-LF (coordinator half): FedAL's (Han, Shi and Huang, IEEE JSAC 2024) without discriminator and torch."""

from __future__ import annotations

from coordinator.methods.fedal import FedALCoordinator
from edge_sdk.protocol.contracts.fedmd_lf import FEDMD_LF

METHOD = FedALCoordinator(FEDMD_LF)

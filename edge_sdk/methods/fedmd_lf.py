"""FedMD-LF (client half): FedAL's (Han, Shi and Huang, IEEE JSAC 2024), to which no adversarial gradient ever comes."""

from __future__ import annotations

from edge_sdk.methods.fedal import FedALClient
from edge_sdk.protocol.contracts.fedmd_lf import FEDMD_LF

METHOD = FedALClient(FEDMD_LF)

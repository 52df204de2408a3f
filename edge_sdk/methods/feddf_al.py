"""FedDF-AL (client half): FedAL's (Han, Shi and Huang, IEEE JSAC 2024), after an exchange of weights."""

from __future__ import annotations

from edge_sdk.methods.fedal import FedALClient
from edge_sdk.protocol.contracts.feddf_al import FEDDF_AL

METHOD = FedALClient(FEDDF_AL, before=1)

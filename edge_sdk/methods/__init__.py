"""The methods: one paper, one file, both halves; and what they are made of.

Pure numpy but for the torch parts beside, as torch_NAME.py.  May import `protocol`, `objectives`, `reductions`,
`errors` and `data`; torch parts also `models`.
"""

from __future__ import annotations

from edge_sdk.methods.averaging import Averaging
from edge_sdk.methods.base import Caching, Exchange, Method, OnDevice, Slot, Stage, Up
from edge_sdk.methods.params import Range, Start, Weighting
from edge_sdk.protocol.exchange_id import ExchangeId

__all__ = [
    "Averaging",
    "Caching",
    "Exchange",
    "ExchangeId",
    "Method",
    "OnDevice",
    "Range",
    "Slot",
    "Stage",
    "Start",
    "Up",
    "Weighting",
]

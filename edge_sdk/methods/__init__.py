"""The methods.  Each method has one file, with its device part and its coordinator part, and names one paper.

The files are pure numpy, except the parts that need torch (torch_NAME.py).  May import `protocol`, `objectives`,
`reductions`, `errors` and `data`; torch parts also `models`.
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

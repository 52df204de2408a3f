"""The methods.  Each method has one file, with its device part and its coordinator part, and names one paper.

NAME.py implements the paper NAME.  `contract` holds what all methods share (the class Method, its
parameters and requests, rounds common to several papers), `parts` further files of single papers.
All is pure numpy, except torch_NAME.py.
May import `protocol`, `objectives`, `reductions`, `errors` and `data`; torch parts also `models`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.lazy import loaded_when_used

if TYPE_CHECKING:
    from edge_sdk.methods.contract.averaging import Averaging
    from edge_sdk.methods.contract.base import Caching, Exchange, Method, OnDevice, Slot, Stage, Up
    from edge_sdk.methods.contract.description import Range, Start, Weighting
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

_HOMES = {
    "Averaging": "edge_sdk.methods.contract.averaging",
    "Caching": "edge_sdk.methods.contract.base",
    "Exchange": "edge_sdk.methods.contract.base",
    "Method": "edge_sdk.methods.contract.base",
    "OnDevice": "edge_sdk.methods.contract.base",
    "Slot": "edge_sdk.methods.contract.base",
    "Stage": "edge_sdk.methods.contract.base",
    "Up": "edge_sdk.methods.contract.base",
    "Range": "edge_sdk.methods.contract.description",
    "Start": "edge_sdk.methods.contract.description",
    "Weighting": "edge_sdk.methods.contract.description",
    "ExchangeId": "edge_sdk.protocol.exchange_id",
}
if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = loaded_when_used(__name__, _HOMES)

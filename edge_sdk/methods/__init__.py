"""The methods.  Each method has one file, with its device part and its coordinator part, and names one paper.

A paper's file is NAME.py, with private parts beside it: NAME_noise.py, torch_NAME.py.  Methods share `base` (the class
Method), `params` (annotations of parameters), `requests` and `job` (a method's requests to a device, and its view of an
exchange), `averaging` and `transfer` (rounds common to several papers), `registry` and `vocabulary` (the installed
methods, and what they use), and `brought_code` (errors of foreign methods).  All is pure numpy, except torch_NAME.py.
May import `protocol`, `objectives`, `reductions`, `errors` and `data`; torch parts also `models`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.lazy import loaded_when_used

if TYPE_CHECKING:
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

_HOMES = {
    "Averaging": "edge_sdk.methods.averaging",
    "Caching": "edge_sdk.methods.base",
    "Exchange": "edge_sdk.methods.base",
    "Method": "edge_sdk.methods.base",
    "OnDevice": "edge_sdk.methods.base",
    "Slot": "edge_sdk.methods.base",
    "Stage": "edge_sdk.methods.base",
    "Up": "edge_sdk.methods.base",
    "Range": "edge_sdk.methods.params",
    "Start": "edge_sdk.methods.params",
    "Weighting": "edge_sdk.methods.params",
    "ExchangeId": "edge_sdk.protocol.exchange_id",
}
if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = loaded_when_used(__name__, _HOMES)

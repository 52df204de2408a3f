"""The methods.  Each method has one file, with its device part and its coordinator part, and names one paper.

A paper's file is NAME.py, and what it needs alone stands beside it: NAME_noise.py, torch_NAME.py. What methods share:
`base` (the class Method), `params` (annotations of parameters), `requests` and `job` (what a method asks a device, and
is told of an exchange), `averaging` and `transfer` (rounds that several papers have), `registry` and `vocabulary` (the
installed methods, and what they use), `brought_code` (what those of others raise). All is pure numpy, except
torch_NAME.py. May import `protocol`, `objectives`, `reductions`, `errors` and `data`; torch parts also `models`.
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

"""The annotations of a method's parameters: a dataclass whose fields define the keys and values of a [method] table.

The table is read by `edge_sdk.protocol.toml_table`, like all tables.
"""

from __future__ import annotations

import functools
import typing
from typing import Annotated, Any, Literal, TypeAlias

from edge_sdk.protocol.frames.leaves import Range, Text

__all__ = ["ProxyFamily", "Range", "SlotAge", "Start", "Weighting"]

Weighting: TypeAlias = Literal["samples", "uniform"]
"""How devices are weighted in a mean: by their samples, or all equally."""
Start: TypeAlias = Literal["first", "equal"]
"""In round 0 the federation has no weights yet.  `first`: all devices continue from the model of the contributor with
the lowest number; `equal`: all devices start from equal weights (one file, one seed), so that round 0 is averaged.  A
federation whose devices start equal (`federation.start`) has `equal` as the default of every method's `start`."""


ProxyFamily: TypeAlias = Annotated[str, Text(200, r"[\w.:-]+", "a model family or MODULE:FACTORY")]
"""The family of the proxy in a simulated fleet, or MODULE:FACTORY (docs/reference/models.md)."""
SlotAge: TypeAlias = Annotated[int, Range(0, paper="0: slots never expire")]
"""Rounds after which the upload of an absent device no longer counts; 0 keeps it."""


def has_start(params: type[Any]) -> bool:
    """Return whether a method has the parameter `start` in this common meaning."""
    return bool(_annotations(typing.cast("Any", params)).get("start") == Start)


@functools.cache
def _annotations(params: type) -> dict[str, Any]:
    """Return the annotations of a dataclass, cached: each lookup compiles them again."""
    return typing.get_type_hints(params, include_extras=True)

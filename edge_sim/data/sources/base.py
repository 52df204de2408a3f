"""The data set that a source returns: raw and complete, with the source's own division into training and test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from edge_sdk.data import Samples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceData:
    """Raw samples with labels; nothing is scaled, resized for a model, or left out yet."""

    name: str
    train: Samples
    test: Samples
    scale: float
    """Factor that brings raw values to about [0, 1]."""
    class_names: tuple[str, ...] = ()
    """The names of the classes in their order; empty without names."""
    users: NDArray[Any] | None = None
    """User who recorded each training sample, (n,), or None if unknown."""
    remark: str = ""
    """A line about the layout of the samples, or empty."""

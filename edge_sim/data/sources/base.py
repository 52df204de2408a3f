"""A data set as a source gives it: raw, whole, with its own division into training and test."""

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
    """Brings raw values to about [0, 1]."""
    users: NDArray[Any] | None = None
    """(n,) who recorded each training sample, where the source tells."""

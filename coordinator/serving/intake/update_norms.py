"""The sizes of the updates of an exchange, to name those far larger than the others (warning W17).

A size is the norm of the update, unless the method has another measure (`Method.size_of`).

Whether a device that is named is held out, too, the settings say: upload_screen.py.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping

import numpy as np

from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.records import getter

OUTLIER = 10.0
"""An update is an outlier if its norm is more than this many times the median."""
LEAST_UPDATES = 3
"""Among fewer updates, none is an outlier."""


class UpdateNorms:
    """The norms of the open exchange by device."""

    def __init__(self) -> None:
        self._norms: dict[str, float] = {}

    def add(
        self, device: str, knowledge: Mapping[str, Payload], sent: Mapping[str, Payload], size: float | None = None
    ) -> None:
        """Note the size of an update; sent: what every device was sent in the exchange, by role.

        size: as the method measures it; None: its norm.
        """
        self._norms[device] = update_norm(knowledge, sent) if size is None else size

    def outliers(self, left_out: Collection[str]) -> dict[str, float]:
        """Return the outliers as `outliers` does."""
        return outliers(self._norms, left_out)

    def clear(self) -> None:
        """End the exchange."""
        self._norms = {}


def update_norm(knowledge: Mapping[str, Payload], sent: Mapping[str, Payload]) -> float:
    """The Euclidean norm of all numbers of an upload; weights count as their change from those that were sent."""
    total = 0.0
    for role, payload in knowledge.items():
        before = sent.get(role)
        for value in getter(type(payload))(payload):
            if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
                continue
            if isinstance(payload, Weights) and isinstance(before, Weights) and before.values.shape == value.shape:
                change = value - before.values  # (p,)
                total += float(np.vdot(change, change))
            else:
                total += float(np.vdot(value, value))
    return math.sqrt(total)


def outliers(norms: Mapping[str, float], left_out: Collection[str] = ()) -> dict[str, float]:
    """The devices whose norm is more than OUTLIER times the median, with the ratio to the median.

    left_out: devices whose update does not count, and whose norm does not enter the median.
    """
    rest = [norm for device, norm in norms.items() if device not in left_out]
    median = statistics.median(rest) if rest and len(norms) >= LEAST_UPDATES else 0.0
    return {device: norm / median for device, norm in sorted(norms.items()) if norm > OUTLIER * median > 0}

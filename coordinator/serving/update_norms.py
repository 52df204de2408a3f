"""The norms of the updates of an exchange, to name those far larger than the others (warning W17).

No update is dropped for its size alone: a device with rare data may have to move further than the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from edge_sdk.protocol.knowledge import Payload, Weights

OUTLIER = 10.0
"""An update is an outlier if its norm is more than this many times the median."""
LEAST_UPDATES = 3
"""Among fewer updates, none is an outlier."""


class UpdateNorms:
    """The norms of the open exchange by device; uploads from before a restart are not included."""

    def __init__(self) -> None:
        self._sent: Mapping[str, Payload] = {}
        self._norms: dict[str, float] = {}

    def begin(self, sent: Mapping[str, Payload]) -> None:
        """Start an exchange; sent: what every device was sent in it, by role."""
        self._sent = sent

    def add(self, device: str, knowledge: Mapping[str, Payload]) -> None:
        """Note the norm of an update."""
        self._norms[device] = update_norm(knowledge, self._sent)

    def close(self) -> dict[str, float]:
        """End the exchange, and return its outliers as `outliers` does."""
        norms, self._norms, self._sent = self._norms, {}, {}
        return outliers(norms)


def update_norm(knowledge: Mapping[str, Payload], sent: Mapping[str, Payload]) -> float:
    """The Euclidean norm of all numbers of an upload; weights count as their change from those that were sent."""
    total = 0.0
    for role, payload in knowledge.items():
        before = sent.get(role)
        for each in fields(payload):
            value = getattr(payload, each.name)
            if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
                continue
            if isinstance(payload, Weights) and isinstance(before, Weights) and before.values.shape == value.shape:
                value = value - before.values  # (p,)
            total += float(np.vdot(value, value))
    return math.sqrt(total)


def outliers(norms: Mapping[str, float]) -> dict[str, float]:
    """The devices whose norm is more than OUTLIER times the median, with the ratio to the median."""
    median = statistics.median(norms.values()) if len(norms) >= LEAST_UPDATES else 0.0
    return {device: norm / median for device, norm in sorted(norms.items()) if norm > OUTLIER * median > 0}

"""How large the updates of an exchange are, so that one far beyond the others is named (warning W17).

Nothing is dropped for its size alone: a device with rare data may well have to move further than the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from edge_sdk.protocol.knowledge import Payload, Weights

OUTLIER = 10.0
"""z: an update is named whose norm is more than so many times the median."""
LEAST_UPDATES = 3
"""Of fewer, none can be called far from the others."""


class UpdateNorms:
    """Of the exchange that is open, by device; uploads from before a restart are not among them."""

    def __init__(self) -> None:
        self._sent: Mapping[str, Payload] = {}
        self._norms: dict[str, float] = {}

    def begin(self, sent: Mapping[str, Payload]) -> None:
        """What everybody was given in this exchange, by role."""
        self._sent = sent

    def add(self, device: str, knowledge: Mapping[str, Payload]) -> None:
        """One more update."""
        self._norms[device] = update_norm(knowledge, self._sent)

    def close(self) -> dict[str, float]:
        """The outliers of the exchange, as `outliers` finds them; the next one begins with none."""
        norms, self._norms, self._sent = self._norms, {}, {}
        return outliers(norms)


def update_norm(knowledge: Mapping[str, Payload], sent: Mapping[str, Payload]) -> float:
    """The Euclidean norm of all numbers that a device uploaded; of weights, of their change from those it was sent."""
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
    """Of the devices whose norm is more than OUTLIER times the median: how many times it is."""
    median = statistics.median(norms.values()) if len(norms) >= LEAST_UPDATES else 0.0
    return {device: norm / median for device, norm in sorted(norms.items()) if norm > OUTLIER * median > 0}

"""How much an old upload counts: less, by the number of versions that have come since the one it was made from.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022 (arXiv:2106.06639), section 5:
s(tau) = 1 / sqrt(1 + tau).

    weights     x + mean_i s(tau_i) (w_i - x_i)     x: the newest version; x_i: the version that device i began with
    all others  the counts of an upload times s(tau), in whole units of 1/1024, so that sums stay exact

An upload made from the newest version stays as it is, so a buffer of such uploads gives the bits of a round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edge_sdk.protocol.knowledge import ClassRows, Payload, PublicLogits, Weights

UNITS = 1024
"""The weight of an upload that is made from the newest version; a power of two, so that it changes no bit of a mean."""
COUNTED = (ClassRows, PublicLogits)
"""Kinds of knowledge whose counts can be made smaller."""


def staleness_weight(tau: int) -> float:
    """Return s(tau) = 1 / sqrt(1 + tau)."""
    return 1.0 / math.sqrt(1.0 + tau)


def staleness_units(tau: int) -> int:
    """Return s(tau) in units of 1/1024, at least one: 1024, 724, 591, 512 ..."""
    return max(1, round(UNITS * staleness_weight(tau)))


def moved_weights(weights: Weights, began: Weights, newest: Weights, tau: int) -> Weights:
    """Return the newest weights moved by s(tau) times what a device's training changed: x + s(tau) (w_i - x_i).

    All values (p,), computed in f8 and returned as f4.
    """
    change = weights.values.astype(np.float64) - began.values
    values = (newest.values + staleness_weight(tau) * change).astype(np.float32)
    return replace(weights, values=values)


def lighter(payload: Payload, tau: int) -> Payload:
    """Return knowledge with its counts in units of 1/1024, times s(tau)."""
    units = staleness_units(tau)
    if isinstance(payload, ClassRows):
        counts: Any = payload.counts.astype(np.int64) * units  # in memory only, because i4 is too narrow
        return replace(payload, counts=counts)
    if isinstance(payload, PublicLogits):
        return replace(payload, contributors=units)  # of one device, for any upload
    return payload


def aged(
    knowledge: Mapping[str, Payload], tau: int, began: Mapping[str, Payload], newest: Mapping[str, Payload]
) -> dict[str, Payload]:
    """Return the knowledge of an upload as it counts; began, newest: what both versions send to devices, by role."""
    found: dict[str, Payload] = {}
    for role, payload in knowledge.items():
        before, now = began.get(role), newest.get(role)
        if not isinstance(payload, Weights):
            found[role] = lighter(payload, tau)
        elif tau and isinstance(before, Weights) and isinstance(now, Weights):
            found[role] = moved_weights(payload, before, now, tau)
        else:
            found[role] = payload
    return found

"""The section [robust], the bounds on what one upload can weigh and say, and how much an old upload counts.

Counts are claims: a device that claims a billion samples would decide a mean by samples alone.  So they are capped
before they become weights.  An upload with values beyond a bound is left out.

An old upload counts less, by the number of versions tau that have come since the one it was made from (Nguyen et al.,
"Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022, arXiv:2106.06639, section 5):
s(tau) = 1 / sqrt(1 + tau).

    weights     x + mean_i s(tau_i) (w_i - x_i)     x: the newest version; x_i: the version that device i began with
    all others  the counts of an upload times s(tau), in whole units of 1/1024, so that sums stay exact

An upload made from the newest version stays as it is, so a buffer of such uploads gives the bits of a round.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.protocol.frames.records import field_names, getter
from edge_sdk.protocol.frames.schema import Count, Integer, Real, Text
from edge_sdk.protocol.frames.value_range import all_within, min_max
from edge_sdk.protocol.knowledge import ByClass, ClassRows, LogitGradients, Payload, PublicLogits, Weights
from edge_sdk.protocol.low_rank import LowRank

Roles: TypeAlias = Mapping[str, Payload]
"""Knowledge by role."""
Bound = Annotated[float, Real(1e-3, 1e6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RobustTable:
    """The section [robust]: limits on the influence of one device."""

    count_factor: Annotated[float, Real(0.0, 1e9)] = 7.0
    """The maximum credible number of a device's samples, as a multiple of the median over the devices that have joined
    (of an even number, the lower one in the middle).  A device that claims more weighs as the median; 0 disables this
    bound.  Default: 7 in a deployment, 0 in a simulation, where a method shall be what its paper says."""
    most_samples: Count = 0
    """The same as a number, if you know the capacity of your devices: a device that claims more weighs as this many; 0
    disables this bound."""
    hold_out_rounds: Annotated[int, Integer(0, 10**9)] = 5
    """Rounds for which a device is held out after an update far larger than the others' (W17), which is left out, too;
    0: the update counts, and is only named.  Default: 5 in a deployment, 0 in a simulation, where a method shall be
    what its paper says."""
    largest_logit: Bound = 1e4
    """The largest magnitude of a logit or of a gradient at logits; an upload beyond it is left out."""
    largest_row: Bound = 1e5
    """The largest magnitude of a number in class rows, features and sums by class."""
    largest_weight: Bound = 1e4
    """The largest magnitude of a model's weight."""
    rows: Annotated[str, Text(16, "mean|geometric-median")] = "mean"
    """How class rows of several devices become one, in methods that can: the paper's `mean`, or `geometric-median`."""
    logits: Annotated[str, Text(16, "mean|geometric-median|root-gate")] = "mean"
    """The same of logits on public samples; `root-gate` takes the mean of the devices that are right on samples
    whose labels you know (`labels`)."""
    labels: tuple[Annotated[int, Integer(-1, 65534)], ...] = ()
    """The labels of the public samples, from the first on, -1 where you do not know one; for `root-gate`."""
    min_group: Annotated[int, Integer(1, 10**6)] = 1
    """The fewest devices that must hold a class before its row is sent to others; 1: as in the papers."""


PAPER = RobustTable()
"""The settings of a federation that has no section [robust]."""


class CountCap(NamedTuple):
    """The maximum weight of a device in a round."""

    most: int = 0
    """The maximum credible number of a device's samples, or 0 for any."""
    otherwise: int = 0
    """The weight of a device that claims more."""

    def of(self, declared: int) -> int | None:
        """Return the maximum weight of a device that declared this many samples, or None for the count that it sends.

        A device that declared none weighs as one sample.
        """
        if not declared:
            return 1
        return self.otherwise if 0 < self.most < declared else None


def count_cap(table: RobustTable, declared: Collection[int]) -> CountCap:
    """Return the cap on counts.

    declared: each device's declaration when it joined, or 0 without one.  The median is the lower one of two, so that
    one of two devices cannot raise it.
    """
    known, bound = [samples for samples in declared if samples > 0], table.most_samples
    if not (table.count_factor and known):
        return CountCap(bound, bound)
    median = sorted(known)[(len(known) - 1) // 2]
    most = max(median, int(table.count_factor * median))
    return CountCap(most, median) if not bound or most < bound else CountCap(bound, bound)


def capped(knowledge: Roles, most: int) -> Roles:
    """Return knowledge whose counts are at most `most` together in each payload; a class keeps a count of at least 1.

    Counts of several classes are cut in proportion, and rounded down.
    """
    found = {role: _capped(payload, most) for role, payload in knowledge.items()}
    return found if any(found[role] is not knowledge[role] for role in knowledge) else knowledge


def _capped(payload: Payload, most: int) -> Payload:
    for each in fields(payload):
        value = getattr(payload, each.name)
        if each.name == "count" and isinstance(value, int) and value > most:
            return replace(payload, **{each.name: most})
        if each.name == "counts" and isinstance(value, np.ndarray) and int(value.sum(dtype=np.int64)) > most:
            return replace(payload, **{each.name: _shared_out(value, most)})
    return payload


def _shared_out(counts: NDArray[np.int32], most: int) -> NDArray[np.int32]:
    """Return counts (m,) in the same proportion that are `most` together at most, or 1 each."""
    exact = counts.astype(np.int64)
    cut: NDArray[np.int32] = np.maximum(exact * most // exact.sum(), 1).astype(np.int32)
    return cut


def beyond(knowledge: Roles, table: RobustTable) -> str:
    """Describe the first payload with a number beyond its bound, or return empty if all are within."""
    for role, payload in knowledge.items():
        key = _bound_of(type(payload))
        if not key:
            continue
        most = getattr(table, key)
        for value in getter(type(payload))(payload):
            if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not all_within(value, most):
                largest = max(map(abs, min_max(value)))
                return f"{role}: numbers of up to {largest:.3g}, and robust.{key} is {most:g}"
    return ""


@cache
def _bound_of(kind: type[Payload]) -> str:
    """Return the key of the bound on the numbers of a kind of payload, or empty if only the protocol bounds it."""
    if issubclass(kind, (PublicLogits, LogitGradients)):
        return "largest_logit"
    if issubclass(kind, (Weights, LowRank)):
        return "largest_weight"
    return "largest_row" if issubclass(kind, ByClass) or hasattr(kind, "batch") or "batch" in field_names(kind) else ""


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

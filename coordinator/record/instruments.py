"""Instruments: what a method did in a round, such as each loss term's share of the gradient, as plain values."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from coordinator.record.round_result import RoundResult

COORDINATOR = ""
"""The source of an instrument that the coordinator measured; others are device ids."""
LEAST_SHARE = 0.01
"""The share of the gradient below which a loss term counts as without effect (W19)."""

ByName: TypeAlias = dict[str, dict[str, float]]
"""Name -> source -> value."""


class InstrumentPoint(NamedTuple):
    """One instrument in one round: the mean, least and most over its sources."""

    round: int
    instrument: str
    sources: int
    """The number of devices, or 0 if the coordinator measured it."""
    mean: float
    low: float
    high: float


def instrument_points(history: Sequence[RoundResult]) -> list[InstrumentPoint]:
    """Return a point for each round and instrument, by round, then by name."""
    found = []
    for entry in history:
        for name, by_source in sorted(entry.instruments.items()):
            values = list(by_source.values())
            devices = sum(source != COORDINATOR for source in by_source)
            found.append(
                InstrumentPoint(entry.round, name, devices, statistics.fmean(values), min(values), max(values))
            )
    return found


def newest(instruments: Mapping[int, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Return the mean over its sources of each instrument in the newest round that has it; instruments: by round."""
    found: dict[str, float] = {}
    for number in sorted(instruments):
        found |= {name: statistics.fmean(values.values()) for name, values in sorted(instruments[number].items())}
    return found


def idle_terms(newest_shares: Mapping[str, float]) -> Collection[str]:
    """Return the names of loss terms whose share of the gradient is below LEAST_SHARE."""
    return [name for name, share in newest_shares.items() if name.startswith("share.") and share < LEAST_SHARE]

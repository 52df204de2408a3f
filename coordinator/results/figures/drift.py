"""The line of a report on devices whose samples have changed since they joined."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.record.round_result import RoundResult
from coordinator.record.units import printable
from edge_sdk.reductions.shift import FEATURES, LABELS

MOST_NAMED = 10
"""The most devices that the line names."""
_WAYS = (("drift.labels", LABELS, "shares of the classes"), ("drift.features", FEATURES, "inputs"))


def drift_line(history: Sequence[RoundResult]) -> str:
    """Return which devices' samples have shifted, by the newest figures that each of them sent; empty if none have."""
    parts = []
    for name, least, words in _WAYS:
        newest: dict[str, float] = {}
        for entry in history:
            newest.update(entry.instruments.get(name, {}))
        who = sorted((device for device, value in newest.items() if value >= least), key=lambda one: -newest[one])
        named = ", ".join(printable(each) for each in who[:MOST_NAMED])
        more = f" and {len(who) - MOST_NAMED} more" if len(who) > MOST_NAMED else ""
        parts += [f"{words} of {len(who)} of {len(newest)} devices have shifted ({named}{more})"] if who else []
    return f"drift since they joined: {'; '.join(parts)}" if parts else ""

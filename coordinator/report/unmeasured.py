"""Which devices a mean accuracy leaves out, or takes from an earlier round: words for whoever reads the mean."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.report.result import Result

MOST_NAMED = 10


def remarks(result: Result) -> tuple[str, ...]:
    """A sentence each; nothing where all were measured last, or none at all.

    A run's accuracy is that of each device's newest evaluation.
    """
    expected = [device for device in result.devices if device.learns]
    never = [device.id for device in expected if device.accuracy is None]
    if len(never) == len(expected):
        return ()
    found = {entry.round: result.learned(entry.accuracy) for entry in result.history}
    last = max((number for number, measured in found.items() if measured), default=0)
    early = [d.id for d in expected if d.accuracy is not None and last and d.id not in found[last]]
    many = len(expected)
    cases = (
        (never, "never told an accuracy and count in no mean"),
        (early, f"were not measured after round {last} and count with an earlier accuracy"),
    )
    return tuple(f"{len(who)} of {many} devices {what}: {_named(who)}" for who, what in cases if who)


def _named(devices: Sequence[str]) -> str:
    more = len(devices) - MOST_NAMED
    return ", ".join(devices[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")

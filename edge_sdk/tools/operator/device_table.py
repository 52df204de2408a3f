"""The table of `edge-sdk devices`: one row for each device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from edge_sdk.protocol.messages import DeviceEntry
from edge_sdk.terminal import columns

UNKNOWN = "-"
_DAY_S = 20 * 3600.0
"""A time longer ago is shown with its date."""

FIGURES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy", "{:.1%}".format),
    "temperature_c": ("temp", "{:.0f} \N{DEGREE SIGN}C".format),
    "not_served": ("not served", "{:.0f}".format),
}
"""The figures that have a column, which is left out where no device has one: heading, and how to write a value."""


def device_table(entries: Sequence[DeviceEntry], now_s: float, room: int | None = None) -> str:
    """Return the devices as text; now_s: the time, in seconds since 1970; room: the width in characters, None: any."""
    figures = [name for name in FIGURES if any(name in entry.figures for entry in entries)]
    head = ("device", "state", "here since", "last heard", "round", *(FIGURES[name][0] for name in figures))
    rows = [(*head, "board", "model", "edge-sdk", "why")]
    for entry in entries:
        shown = [FIGURES[name][1](entry.figures[name]) if name in entry.figures else UNKNOWN for name in figures]
        rows.append(
            (
                entry.device,
                entry.state,
                UNKNOWN if entry.here_s is None else _moment(now_s - entry.here_s, entry.here_s),
                UNKNOWN if entry.seen_s is None else f"{_duration(entry.seen_s)} ago",
                str(entry.round or UNKNOWN),
                *shown,
                entry.board or UNKNOWN,
                " ".join(filter(None, (entry.model, f"({entry.runtime})" if entry.runtime else ""))) or UNKNOWN,
                entry.sdk or UNKNOWN,
                entry.why,
            )
        )
    return columns(rows, room)


def _moment(at_s: float, ago_s: float) -> str:
    return time.strftime("%H:%M:%S" if ago_s < _DAY_S else "%Y-%m-%d %H:%M", time.localtime(at_s))


def _duration(seconds: float) -> str:
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"

"""Who was waited for: the picture and its CSV."""

from __future__ import annotations

from pathlib import Path

from coordinator.report.canvas import DOT, ORANGE, SOFT, bar_labels, picture, short
from coordinator.report.comparison_canvas import write_points
from coordinator.report.lines import seconds_axis
from coordinator.report.result import Result
from coordinator.report.units import printable

WAIT_COLUMNS = ("device", "board", "link", "waited_s", "rounds")
SHOWN = 20
"""Bars: the devices that were waited for longest."""
LONGEST_KIND = 48
"""Characters that name a bar: the device, its link, which most often is why, and its board."""
_ROW_IN = 0.28


def who_was_waited_for(result: Result, path: Path) -> None:
    """Seconds in which exchanges were open for the sake of a device, and in how many rounds nobody took longer."""
    longest = [entry.waited_for for entry in result.history]
    rows = [
        {
            "device": device.id,
            "board": device.board,
            "link": device.link,
            "waited_s": device.waited_s,
            "rounds": longest.count(device.id),
        }
        for device in sorted(result.devices, key=lambda device: (-device.waited_s, device.number))
    ]
    write_points(path, WAIT_COLUMNS, rows)
    shown = [device for device in sorted(result.devices, key=lambda d: (-d.waited_s, d.number)) if device.waited_s > 0]
    shown = shown[:SHOWN]
    words = (result.federation, result.method, f"of {len(result.devices)} devices the {len(shown)} waited for longest")
    tall_in = 1.5 + _ROW_IN * max(len(shown), 2)
    with picture(path, 7.2, tall_in, "Who was waited for", printable(DOT.join(words))) as figure:
        axes = figure.add_subplot()
        if not shown:
            axes.set_axis_off()
            axes.text(0.5, 0.5, "no round waited for anybody", ha="center", color=SOFT, transform=axes.transAxes)
            return
        waits_s: list[float | None] = [device.waited_s for device in shown]
        axes.barh(range(len(shown)), [device.waited_s for device in shown], height=0.62, color=ORANGE)
        names = (DOT.join(map(short, filter(None, (device.id, device.link, device.board)))) for device in shown)
        axes.set_yticks(range(len(shown)), [short(name, LONGEST_KIND) for name in names], fontsize=8)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, 1.2 * max(device.waited_s for device in shown))
        as_ticked = seconds_axis(axes, "waited for, over the whole run")
        axes.grid(visible=False, axis="y")
        bar_labels(axes, waits_s, 0, as_ticked)

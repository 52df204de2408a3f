"""A run as a table in the terminal: rich where it is installed, aligned plain text otherwise."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from coordinator.report.result import DeviceResult, Result, summary
from coordinator.report.units import human_bytes, human_joules, human_seconds, percent, printable

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["COLUMNS", "footer", "human_bytes", "render", "rows", "show"]

COLUMNS = (
    "device",
    "board",
    "model",
    "runtime",
    "classes",
    "samples",
    "alone",
    "federated",
    "gain",
    "sent",
    "received",
)
NUMBERS = frozenset({"samples", "alone", "federated", "gain", "sent", "received"})
"""Columns that align to the right."""
LEAST_NEEDED = ("runtime", "board", "samples", "received", "sent", "classes", "model")
"""Columns in the order in which a narrow terminal does without them."""
UNKNOWN = "-"
MOST_CLASSES = 10
"""Class numbers that are written out; more are counted."""
WORTH_TELLING_S = 1.0
"""Waits below this are nobody's concern."""
_PLAIN_WIDTH = 400
"""For output that is not a terminal: wide enough that no cell is ever folded."""


def rows(result: Result) -> list[tuple[str, ...]]:
    """One row per device in number order, then the row of means, all as text."""
    devices = sorted(result.devices, key=lambda device: device.number)
    return [*map(_row, devices), _mean_row(result)]


def footer(result: Result) -> list[str]:
    """What stands below the table: the verdict, then whatever a reader must know."""
    lines = [_verdict(result), *_local(result), *_own_task(result), *_costs(result), *_encodings(result)]
    if not result.completed:
        reason = printable(result.reason) or "no reason was given"
        lines.append(f"ended early after {result.rounds_done} of {result.rounds} rounds: {reason}")
    lines += [_refusal(refusal) for refusal in result.refused_devices]
    lines += [
        f"refused frames from {printable(sender)}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        for sender, kinds in sorted(result.refused_frames.items())
    ]
    lines += [f"warning: {printable(warning)}" for warning in result.warnings]
    return lines + [f"note on {', '.join(ids)}: {note}" for note, ids in _notes(result.devices).items()]


def _costs(result: Result) -> list[str]:
    """Joules, where somebody metered them, and the device that held the others up longest, where one did."""
    used_j = sum(device.energy_j for device in result.devices)
    parts = [f"{human_joules(used_j)} drawn by all devices"] if used_j else []
    slowest = max(result.devices, key=lambda device: device.waited_s, default=None)
    if slowest is not None and slowest.waited_s > WORTH_TELLING_S:
        kind = "".join(f", {printable(word)}" for word in (slowest.board, slowest.link) if word)
        parts.append(f"waited longest for {printable(slowest.id)}{kind}: {human_seconds(slowest.waited_s)}")
    return ["; ".join(parts)] if parts else []


def _encodings(result: Result) -> list[str]:
    """Nothing where all is f32."""
    chosen = [f"{kind} in {name}" for kind, name in sorted(result.encoding.items()) if name != "f32"]
    return [f"encoding: {', '.join(chosen)}"] if chosen else []


def render(result: Result) -> str:
    """The table and what stands below it as aligned plain text."""
    body = rows(result)
    widths = _widths(body)
    rule = "  ".join("-" * width for width in widths)
    lines = [_align(COLUMNS, widths), rule, *(_align(row, widths) for row in body[:-1]), rule, _align(body[-1], widths)]
    return "\n".join([*lines, "", *footer(result)]) + "\n"


def show(result: Result, stream: TextIO) -> None:
    """Write the table and what stands below it to `stream`."""
    if importlib.util.find_spec("rich") is None:
        stream.write(render(result))
        return
    _show_rich(result, stream)


def _show_rich(result: Result, stream: TextIO) -> None:
    from rich.console import Console  # noqa: PLC0415  # an optional package: only where a table is drawn
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=stream, width=None if stream.isatty() else _PLAIN_WIDTH)
    body = rows(result)
    hidden = _left_out(body, console.width)
    console.print(_rich_table(body, hidden))
    if hidden:
        console.print(f"too narrow for {', '.join(hidden)}: widen the terminal, or see devices.csv", style="dim")
    verdict, *rest = footer(result)
    console.print(Text(verdict, style="bold"))
    for line in rest:
        console.print(Text(line))


def _rich_table(body: Sequence[Sequence[str]], hidden: Sequence[str]) -> Table:
    from rich import box  # noqa: PLC0415  # an optional package: only where a table is drawn
    from rich.table import Table as NewTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = NewTable(box=box.SIMPLE_HEAD, show_footer=True, collapse_padding=True, pad_edge=False)
    shown = [(place, name) for place, name in enumerate(COLUMNS) if name not in hidden]
    *devices, means = body
    for place, name in shown:
        table.add_column(name, footer=means[place], justify="right" if name in NUMBERS else "left", no_wrap=True)
    for row in devices:
        table.add_row(*(Text(row[place], style=_style(name, row[place])) for place, name in shown))
    return table


def _left_out(body: Sequence[Sequence[str]], room: int) -> tuple[str, ...]:
    """The columns that a terminal with so much room must do without; cells stand two characters apart."""
    widths = dict(zip(COLUMNS, _widths(body), strict=True))
    for count in range(len(LEAST_NEEDED)):
        shown = [width for name, width in widths.items() if name not in LEAST_NEEDED[:count]]
        if sum(shown) + 2 * len(shown) <= room:
            return LEAST_NEEDED[:count]
    return LEAST_NEEDED


def _widths(body: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(COLUMNS, *body, strict=True)]


def _style(column: str, cell: str) -> str:
    if column != "gain" or cell == UNKNOWN:
        return ""
    return "red" if cell.startswith("-") else "green"


def _align(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if name in NUMBERS else cell.ljust(width)
        for name, cell, width in zip(COLUMNS, cells, widths, strict=True)
    )
    return "  ".join(padded).rstrip()


def _row(device: DeviceResult) -> tuple[str, ...]:
    return (
        printable(device.id),
        printable(device.board) or UNKNOWN,
        printable(device.model) or UNKNOWN,
        _runtime(device),
        _classes(device),
        str(device.samples),
        _percent(device.standalone_accuracy),
        _percent(device.accuracy),
        _gain(device.standalone_accuracy, device.accuracy),
        human_bytes(device.bytes_up),
        human_bytes(device.bytes_down),
    )


def _runtime(device: DeviceResult) -> str:
    if not device.joined:
        return "never joined"
    return (printable(device.runtime) or UNKNOWN) + ("" if device.learns else " (teaches)")


def _mean_row(result: Result) -> tuple[str, ...]:
    accuracy = summary(result)["accuracy"]
    alone, federated = accuracy.get("standalone_mean"), accuracy.get("mean")
    samples, sent, received = (
        statistics.fmean(values) if values else 0.0
        for values in (
            [device.samples for device in result.devices],
            [device.bytes_up for device in result.devices],
            [device.bytes_down for device in result.devices],
        )
    )
    figures = (f"{samples:.0f}", _percent(alone), _percent(federated), _gain(alone, federated))
    return ("mean", "", "", "", "", *figures, human_bytes(sent), human_bytes(received))


def _classes(device: DeviceResult) -> str:
    if not device.class_counts:
        return "withheld"
    if len(device.classes) > MOST_CLASSES:
        return f"{len(device.classes)} of {len(device.class_counts)}"
    return " ".join(map(str, device.classes)) or "none"


def _percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else percent(fraction)


def _gain(alone: float | None, federated: float | None) -> str:
    return UNKNOWN if alone is None or federated is None else f"{100 * (federated - alone):+.1f}"


def _verdict(result: Result) -> str:
    whole = summary(result)
    alone, federated = whole["accuracy"].get("standalone_mean"), whole["accuracy"].get("mean")
    if federated is None:
        accuracy = "no device was evaluated"
    elif alone is None:
        accuracy = f"mean accuracy {percent(federated)}"
    else:
        accuracy = f"mean accuracy {percent(alone)} alone -> {percent(federated)} federated"
        accuracy += f" ({_gain(alone, federated)} points)"
    sent, received = (human_bytes(whole["bytes"][f"{way}_total"]) for way in ("up", "down"))
    parts = [accuracy, f"{sent} sent, {received} received", *_times(whole["time"])]
    refused = [f"{count} {verdict}" for verdict, count in whole["updates"].items() if verdict != "accepted" and count]
    return "; ".join(parts + ([f"uploads not taken: {', '.join(refused)}"] if refused else []))


def _local(result: Result) -> list[str]:
    """Accuracy on the classes that a device holds: what methods for each device's own task are judged by."""
    federated, alone = (result.metrics.get(f"{run}local_accuracy_mean") for run in ("", "standalone_"))
    if federated is None:
        return []
    before = "" if alone is None else f"{percent(alone)} alone -> "
    after = "" if alone is None else f" federated ({_gain(alone, federated)} points)"
    return [f"on their own classes: {before}{percent(federated)}{after}"]


def _own_task(result: Result) -> list[str]:
    """FedKF's figures, and FedNH's where devices disclose their class counts."""
    found = summary(result)["own_task"]
    if not found:
        return []
    words = [f"AMP {percent(found['amp'])}", f"FM {found['fm']:.4f}", f"WLP {percent(found['wlp'])}"]
    gm = summary(result)["accuracy"].get("gm")
    words += [f"GM {percent(gm)}"] if gm is not None else []
    personal = (("PM(V)", "pm_v_mean"), ("PM(L)", "pm_l_mean"))
    words += [f"{name} {percent(result.metrics[key])}" for name, key in personal if key in result.metrics]
    return [f"own tasks: {', '.join(words)}"]


def _times(time: dict[str, float]) -> list[str]:
    virtual = [f"{human_seconds(time['virtual_s'])} on the boards' clock"] if time.get("virtual_s") else []
    wall = [human_seconds(time["wall_s"]) + (" here" if virtual else "")] if "wall_s" in time else []
    return [", ".join(wall + virtual)] if wall or virtual else []


def _refusal(refusal: Mapping[str, str]) -> str:
    why = ": ".join(refusal[key] for key in ("reason", "message") if refusal.get(key))
    line = f"device {refusal.get('device', '?')} was not let in" + (f" ({why})" if why else "")
    return printable(f"{line}; {refusal['remedy']}" if refusal.get("remedy") else line)


def _notes(devices: Iterable[DeviceResult]) -> dict[str, list[str]]:
    """Device ids by note: what many share is said once."""
    found: dict[str, list[str]] = {}
    for device in devices:
        if device.note:
            found.setdefault(printable(device.note), []).append(printable(device.id))
    return found

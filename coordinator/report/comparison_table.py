"""A comparison as a table in the terminal: rich where it is installed, aligned plain text otherwise."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import TextIO

from coordinator.report import unmeasured
from coordinator.report.comparison import FIGURES, Comparison, Line, Spread
from coordinator.report.units import human_bytes, human_seconds, printable

UNKNOWN = "-"
COSTS = ("up_per_device_round", "down_per_device_round", "wall_s", "virtual_s")


def columns(comparison: Comparison) -> tuple[str, ...]:
    """The headings."""
    base = comparison.baseline
    return (
        "method",
        "mean accuracy",
        f"mean - {base}",
        "worst devices",
        f"worst - {base}",
        "up / device-round",
        "down / device-round",
        "wall",
        "on the boards",
    )


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """One row for each line, all as text; accuracies in percent, differences in points."""
    return [_row(comparison, line) for line in comparison.lines]


def footer(comparison: Comparison) -> list[str]:
    """What stands below the table."""
    seeds = comparison.seeds
    count = f"seeds {', '.join(map(str, seeds))}; \N{PLUS-MINUS SIGN} is the standard deviation over them"
    sure = " [95 % interval]" if len(seeds) > 1 else ""
    pairs = f"differences{sure} are paired with {comparison.baseline} seed by seed, in points of accuracy"
    lines = [
        count if len(seeds) > 1 else f"seed {seeds[0]} alone: give --seeds 0,1,2 for deviations",
        f"{pairs}; worst devices: the lowest tenth, one at least; accuracies: the newest of each device",
    ]
    for line in comparison.lines:
        for trial in line.trials:
            if not trial.result.completed:
                why = printable(trial.result.reason) or "no reason was given"
                lines.append(f"{line.method}, seed {trial.seed}: ended early and counts in no accuracy: {why}")
            else:
                said = map(printable, unmeasured.remarks(trial.result))
                lines += [f"{line.method}, seed {trial.seed}: {words}" for words in said]
    return lines


def render(comparison: Comparison) -> str:
    """Aligned plain text."""
    body = [columns(comparison), *rows(comparison)]
    widths = [max(map(len, cells)) for cells in zip(*body, strict=True)]
    text = [_align(row, widths) for row in body]
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*text, "", *footer(comparison)]) + "\n"


def show(comparison: Comparison, stream: TextIO) -> None:
    """Write the table and what stands below it to `stream`."""
    if importlib.util.find_spec("rich") is None or not stream.isatty():
        stream.write(render(comparison))
        return
    _show_rich(comparison, stream)


def _show_rich(comparison: Comparison, stream: TextIO) -> None:
    from rich import box  # noqa: PLC0415  # an optional package: only where a table is drawn
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console(file=stream)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(columns(comparison)):
        table.add_column(name, justify="right" if place else "left")
    for row in rows(comparison):
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for line in footer(comparison):
        console.print(Text(line))


def _align(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.rjust(width) if place else cell.ljust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((first, *rest)).rstrip()


def _row(comparison: Comparison, line: Line) -> tuple[str, ...]:
    is_base = line.method == comparison.baseline
    costs = [line.over_seeds(FIGURES[key]) for key in COSTS]
    kinds: tuple[Callable[[float], str], ...] = (human_bytes, human_bytes, human_seconds, human_seconds)
    accuracies = []
    for figure in ("mean", "worst"):
        difference = None if is_base else comparison.difference(line, figure)
        accuracies += [_spread(line.accuracy(figure)), _difference(difference)]
    return (
        line.method,
        *accuracies,
        *(UNKNOWN if cost is None else say(cost.mean) for cost, say in zip(costs, kinds, strict=True)),
    )


def _difference(spread: Spread | None) -> str:
    """In points, with its interval: +1.2 [+0.3, +2.1]."""
    if spread is None:
        return UNKNOWN
    mean = f"{100 * spread.mean:+.1f}"
    if spread.interval is None:
        return mean
    low, high = spread.interval
    return f"{mean} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _spread(spread: Spread | None) -> str:
    """A share as percent, with its deviation: 93.9 +- 0.4."""
    if spread is None:
        return UNKNOWN
    mean = f"{100 * spread.mean:.1f}"
    return mean if spread.sd is None else f"{mean} \N{PLUS-MINUS SIGN} {100 * spread.sd:.1f}"

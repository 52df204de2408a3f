"""What was found, for people and as JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from typing import TextIO

from edge_sdk.tools.doctor.finding import CheckResult, Level

REPORT_VERSION = 1
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def healthy(examined: Sequence[CheckResult]) -> bool:
    """Whether nothing failed."""
    return all(each.finding.level is not Level.FAIL for each in examined)


def as_json(examined: Sequence[CheckResult]) -> str:
    """For scripts: version, ok, and the checks with name, level, found, remedy."""
    checks = [
        {
            "name": each.name,
            "level": each.finding.level.value,
            "found": each.finding.found,
            "remedy": each.finding.remedy,
        }
        for each in examined
    ]
    return json.dumps({"version": REPORT_VERSION, "ok": healthy(examined), "checks": checks}, indent=2)


def render(examined: Sequence[CheckResult]) -> str:
    """Plain text: a line for each check, and below a fault what to do."""
    return "\n".join([*(_line(each) for each in examined), "", verdict(examined)]) + "\n"


def _line(each: CheckResult) -> str:
    line = f"{each.finding.level.value:<5} {each.name:<20} {each.finding.found}"
    return f"{line}\n{'':<27}-> {each.finding.remedy}" if each.finding.remedy else line


def verdict(examined: Sequence[CheckResult]) -> str:
    """The last line."""
    counts = {level: sum(each.finding.level is level for each in examined) for level in Level}
    if counts[Level.FAIL]:
        return f"{counts[Level.FAIL]} of {len(examined)} checks failed: mend these first"
    if counts[Level.WARN]:
        return f"works; {counts[Level.WARN]} of {len(examined)} checks could be better"
    return f"all {len(examined)} checks are fine"


def show(examined: Sequence[CheckResult], stream: TextIO) -> None:
    """Write the report, in colour where rich is installed and somebody looks."""
    if importlib.util.find_spec("rich") is None or not stream.isatty():
        stream.write(render(examined))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for each in examined:
        level = each.finding.level
        console.print(Text.assemble((f"{level.value:<5} ", _COLOURS[level]), f"{each.name:<20} ", each.finding.found))
        if each.finding.remedy:
            console.print(Text(f"{'':<27}-> {each.finding.remedy}", style="dim"))
    console.print(Text(f"\n{verdict(examined)}", style="bold"))

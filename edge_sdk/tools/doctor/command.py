"""`edge-sdk doctor`, carried out."""

from __future__ import annotations

import argparse
import importlib.util
import json
import secrets
import sys
from collections.abc import Sequence
from typing import TextIO

from edge_sdk.tools.doctor.checks import run_all_checks
from edge_sdk.tools.doctor.finding import CheckResult, CheckTarget, Level
from edge_sdk.transport.mqtt.tls import TlsFiles


def command(args: argparse.Namespace) -> int:
    """Examine and report; the exit code is 1 if a check failed."""
    name = f"doctor-{secrets.token_hex(6)}"
    results = run_all_checks(
        CheckTarget(state=args.state, broker=args.broker, tls=TlsFiles(args.ca, args.cert, args.key), name=name)
    )
    if args.json:
        sys.stdout.write(as_json(results) + "\n")
    else:
        show(results, sys.stdout)
    return 0 if healthy(results) else 1


# -- The report of all checks, for people and as JSON -----------------------------------------------------------------

REPORT_VERSION = 1
_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}


def healthy(results: Sequence[CheckResult]) -> bool:
    """Whether no check failed."""
    return all(each.finding.level is not Level.FAIL for each in results)


def as_json(results: Sequence[CheckResult]) -> str:
    """Return the report as JSON with `version`, `ok` and `checks`: name, level, found and remedy of each."""
    checks = [
        {
            "name": each.name,
            "level": each.finding.level.value,
            "found": each.finding.found,
            "remedy": each.finding.remedy,
        }
        for each in results
    ]
    return json.dumps({"version": REPORT_VERSION, "ok": healthy(results), "checks": checks}, indent=2)


def render(results: Sequence[CheckResult]) -> str:
    """Return the report as plain text: a line for each check, and below a fault what to do."""
    return "\n".join([*(_line(each) for each in results), "", verdict(results)]) + "\n"


def _line(each: CheckResult) -> str:
    line = f"{each.finding.level.value:<5} {each.name:<20} {each.finding.found}"
    return f"{line}\n{'':<27}-> {each.finding.remedy}" if each.finding.remedy else line


def verdict(results: Sequence[CheckResult]) -> str:
    """Return the last line of the report."""
    counts = {level: sum(each.finding.level is level for each in results) for level in Level}
    if counts[Level.FAIL]:
        return f"{counts[Level.FAIL]} of {len(results)} checks failed: repair these first"
    if counts[Level.WARN]:
        return f"works; {counts[Level.WARN]} of {len(results)} checks could be better"
    return f"all {len(results)} checks are fine"


def show(results: Sequence[CheckResult], stream: TextIO) -> None:
    """Write the report, in colour if rich is installed and the stream is a terminal."""
    if importlib.util.find_spec("rich") is None or not stream.isatty():
        stream.write(render(results))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    for each in results:
        level = each.finding.level
        console.print(Text.assemble((f"{level.value:<5} ", _COLOURS[level]), f"{each.name:<20} ", each.finding.found))
        if each.finding.remedy:
            console.print(Text(f"{'':<27}-> {each.finding.remedy}", style="dim"))
    console.print(Text(f"\n{verdict(results)}", style="bold"))

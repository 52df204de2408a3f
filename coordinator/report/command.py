"""The command `edge-sdk report`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.report.compare_files import comparison_summary, is_comparison, read_comparison
from coordinator.report.compare_table import compare_table
from coordinator.report.plots import draw_comparison, draw_run
from coordinator.report.progress_file import is_running, read_running, running_text
from coordinator.report.run_files import read_run
from coordinator.report.run_table import run_table
from coordinator.report.summary import summary
from coordinator.report.tables import Table, show_table


def command(args: argparse.Namespace) -> int:
    """Show every folder: it holds a comparison, a run in progress, or a finished run."""
    found = [_shown(folder, args) for folder in args.folders]
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


def _shown(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    if is_comparison(folder):
        return _compared(folder, args)
    return _running(folder, args) if is_running(folder) else _finished(folder, args)


def _compared(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    comparison = read_comparison(folder)
    if not args.json:
        _show(compare_table(comparison))
        _say_drawn(draw_comparison(comparison, folder / "plots"))
    return comparison_summary(comparison)


def _running(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    found = read_running(folder)
    if not args.json:
        sys.stdout.write(running_text(folder, found) + "\n")
    return {"state": "running", **found}


def _finished(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    result = read_run(folder)
    if not args.json:
        _show(run_table(result))
        _say_drawn(draw_run(result, folder / "plots"))
    return summary(result)


def _show(table: Table) -> None:
    show_table(table, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()  # the pictures take a moment


def _say_drawn(paths: Sequence[Path]) -> None:
    sys.stdout.write("".join(f"drawn: {path}\n" for path in paths))

"""`edge-sdk report`, carried out."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from coordinator.report import comparison_table, table
from coordinator.report.comparison import comparison_summary
from coordinator.report.comparison_files import is_comparison, read_comparison
from coordinator.report.comparison_plots import draw_comparison
from coordinator.report.files import read_run
from coordinator.report.plots import draw_all
from coordinator.report.result import summary
from coordinator.report.running import is_running, read_running, render_running


def command(args: argparse.Namespace) -> int:
    """Show every folder: a comparison, a run that goes on, or one that is over."""
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
        sys.stdout.write(comparison_table.render(comparison) + "\n")
        for path in draw_comparison(comparison, folder / "plots"):
            sys.stdout.write(f"drawn: {path}\n")
    return comparison_summary(comparison)


def _running(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    found = read_running(folder)
    if not args.json:
        sys.stdout.write(render_running(folder, found) + "\n")
    return {"state": "running", **found}


def _finished(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    result = read_run(folder)
    if not args.json:
        sys.stdout.write(table.render(result) + "\n")
        for path in draw_all(result, folder / "plots"):
            sys.stdout.write(f"drawn: {path}\n")
    return summary(result)

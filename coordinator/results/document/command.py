"""The command `edge-sdk report`: tables in the terminal, pictures in the folder, and one HTML file."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.results.comparison.compare_files import (
    comparison_summary,
    is_comparison,
    is_sweep,
    read_comparison,
    read_sweep,
)
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.document.values import (
    DocumentSection,
    SortableTable,
    chosen_settings,
    comparison_section,
    condition_section,
    overview,
    run_section,
)
from coordinator.results.figures.result import Result
from coordinator.results.plots.drawing import Drawings, draw_pictures
from coordinator.results.plots.plots import comparison_drawings, run_drawings
from coordinator.results.report.progress_file import is_interrupted, is_running, read_running, running_text
from coordinator.results.report.run_files import read_run
from coordinator.results.report.run_table import MOST_ROWS, run_table
from coordinator.results.report.summary import summary
from coordinator.results.report.tables import Table, show_table
from coordinator.results.report.text_files import read_text, reading
from edge_sdk.errors import MissingExtra

NAME = "report.html"
SETTINGS = "federation.toml"


class Found:
    """The content of a command's folders, read one after the other."""

    def __init__(self, *, silent: bool, draws: bool = True) -> None:
        """silent: nothing but the values is wanted.  draws: whether pictures are wanted."""
        self._silent, self._draws = silent, draws
        self.plain: list[dict[str, Any]] = []
        """The contents of the summaries."""
        self.sections: list[tuple[DocumentSection, Drawings]] = []
        """The content of the document; running runs are left out."""
        self._results: list[tuple[str, str, Result]] = []

    def add(self, folder: Path) -> None:
        """Read a folder, and show its table and draw its pictures.  Raises UsageError, StoreError."""
        anchor = f"part-{len(self.plain) + 1}"
        if is_sweep(folder):
            self._add_sweep(folder, anchor)
        elif is_comparison(folder):
            comparison = read_comparison(folder)
            self.plain.append(comparison_summary(comparison))
            one = folder / comparison.lines[-1].trials[0].folder
            section = comparison_section(comparison, folder.name, _settings(one), anchor)
            self._show(compare_table(comparison), folder, comparison_drawings(comparison))
            self.sections.append((section, comparison_drawings(comparison)))
        elif is_running(folder):
            found = read_running(folder)
            self.plain.append({"state": "interrupted" if is_interrupted(folder) else "running", **found})
            if not self._silent:
                sys.stdout.write(running_text(folder, found) + "\n")
        else:
            result = read_run(folder)
            self.plain.append(summary(result))
            self._show(run_table(result, MOST_ROWS), folder, run_drawings(result))
            self.sections.append((run_section(result, folder.name, _settings(folder), anchor), run_drawings(result)))
            self._results.append((anchor, str(folder), result))

    def _add_sweep(self, folder: Path, anchor: str) -> None:
        """Read a sweep, and show its tables; its pictures are those that `sweep` drew."""
        whole, conditions = read_sweep(folder)
        self.plain.append(whole)
        for number, condition in enumerate(conditions, 1):
            one = folder / condition.comparison.lines[-1].trials[0].folder
            section = condition_section(condition, folder.name, _settings(one), f"{anchor}-{number}")
            if not self._silent:
                table = compare_table(condition.comparison, everything="trials.csv")
                chosen = (f"{who}: {what}" for who, what in chosen_settings(condition))
                sys.stdout.write(f"{section.title}\n\n")
                show_table(replace(table, notes=(*table.notes, *chosen)), sys.stdout)
                sys.stdout.write("\n")
            self.sections.append((section, comparison_drawings(condition.comparison)))

    @property
    def overview(self) -> SortableTable | None:
        """A table of the runs, where there are several."""
        return overview(self._results) if len(self._results) > 1 else None

    def _show(self, table: Table, folder: Path, drawings: Drawings) -> None:
        if self._silent:
            return
        show_table(table, sys.stdout)
        sys.stdout.write("\n")
        if not self._draws:
            return
        sys.stdout.flush()  # the pictures take a moment
        try:
            paths = draw_pictures(drawings, folder / "plots")
        except MissingExtra as missing:
            sys.stderr.write(f"no plots: {missing}\n")
        else:
            sys.stdout.write("".join(f"drawn: {path}\n" for path in paths))


def command(args: argparse.Namespace) -> int:
    """Show every folder: it holds a comparison, a run in progress, or a finished run; then write the document."""
    found = Found(silent=args.json, draws=not args.no_plots)
    for folder in args.folders:
        found.add(folder)
    if args.json:
        sys.stdout.write(json.dumps(found.plain, indent=2) + "\n")
        if args.html is None:
            return 0
    if found.sections:
        path = args.html or place_for(args.folders)
        _write(found, path, silent=args.json, draws=not args.no_plots)
    return 0


def place_for(folders: Sequence[Path]) -> Path:
    """Where the document goes: into the only folder, or into the one that all of them lie in."""
    if len(folders) == 1:
        return folders[0] / NAME
    return Path(os.path.commonpath([folder.resolve() for folder in folders])) / NAME


def _write(found: Found, path: Path, *, silent: bool, draws: bool) -> None:
    try:
        from coordinator.results.document.jinja2_document import write_document  # jinja2 is optional
    except ImportError:
        missing = MissingExtra("jinja2", "coordinator", "writing the report as HTML")
        sys.stderr.write(f"no {path.name}: {missing}\n")
        return
    write_document(found.sections, path, found.overview, draws=draws)
    if not silent:
        sys.stdout.write(f"report: {path}\n")


def _settings(folder: Path) -> str:
    """The resolved TOML of a run, or empty without one in its folder.  Raises UsageError if it cannot be read."""
    path = folder / SETTINGS
    with reading(path, "restore a copy, or remove it"):
        return read_text(path) if path.exists() else ""

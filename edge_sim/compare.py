"""The same federation under several methods, and the files that come of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from coordinator.report import comparison_latex, text_files
from coordinator.report.comparison import (
    METHOD_COLUMNS,
    RUN_COLUMNS,
    Comparison,
    Line,
    Trial,
    comparison_summary,
    method_rows,
    run_rows,
)
from edge_sdk.errors import StoreError
from edge_sim.config import Config
from edge_sim.planned_runs import PlannedRun, check_methods, check_seeds, plan, run_missing
from edge_sim.runner import WatcherFor


def compare(
    config: Config,
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    watcher: WatcherFor = lambda _label: None,
) -> Comparison:
    """Run what is not there yet, and compare.

    Raises UsageError for methods, seeds or a folder that do not fit, and whatever a run raises.
    """
    names = check_methods(methods)
    planned = plan(config, names, check_seeds(seeds))
    run_missing(planned, out, watcher)
    comparison = Comparison(lines=lines(planned, out), baseline=names[0])
    write_comparison(comparison, out)
    return comparison


def lines(planned: Iterable[PlannedRun], out: Path) -> tuple[Line, ...]:
    """What came of runs, by method."""
    trials: dict[str, list[Trial]] = {}
    for each in planned:
        trials.setdefault(each.method, []).append(each.trial(out))
    return tuple(Line(method, tuple(found)) for method, found in trials.items())


def write_comparison(comparison: Comparison, out: Path) -> None:
    """compare.json, methods.csv, runs.csv and table.tex.  Raises StoreError where they cannot be written."""
    whole = comparison_summary(comparison)
    files = {
        "methods.csv": text_files.csv_text(METHOD_COLUMNS, method_rows(whole)),
        "runs.csv": text_files.csv_text(RUN_COLUMNS, run_rows(whole)),
        "table.tex": comparison_latex.table(comparison),
        "compare.json": json.dumps(whole, indent=2, allow_nan=False) + "\n",
    }
    write_files(files, out)


def write_files(files: Mapping[str, str], out: Path) -> None:
    """Each replaced at once, in this order.  Raises StoreError where they cannot be written."""
    try:
        for name, text in files.items():
            text_files.replace(out / name, text)
    except OSError as error:
        raise StoreError(f"{out}: cannot write the comparison ({error.strerror}); free or change the place") from error

"""The files of a comparison, written and read back: compare.json, methods.csv, runs.csv; and `edge-sdk table`."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from coordinator.results.comparison.compare import ACCURACIES, COSTS, Comparison, MethodRuns, Trial
from coordinator.results.comparison.paper_table import USUAL, paper_table
from coordinator.results.figures.intervals import Spread
from coordinator.results.figures.metrics import TARGETS, Point
from coordinator.results.report import text_files
from coordinator.results.report.run_files import read_run
from coordinator.results.report.tables import Table, latex_text, plain_text
from coordinator.results.report.text_files import as_text
from edge_sdk.at_rest.files import unwritable
from edge_sdk.at_rest.foreign import check_fields
from edge_sdk.errors import StoreError, UsageError

COMPARISON_VERSION = 1
COMPARISON, SWEEP = "compare.json", "sweep.json"


def comparison_summary(comparison: Comparison) -> dict[str, Any]:
    """The contents of compare.json, version 1.  An unknown figure is absent, never null."""
    example = comparison.example
    return {
        "version": COMPARISON_VERSION,
        "federation": example.federation,
        "devices": len(example.devices),
        "rounds": example.rounds,
        "seeds": list(comparison.seeds),
        "baseline": comparison.baseline,
        "metric": comparison.metric,
        "completed": comparison.completed,
        "data": dict(example.data),
        "versions": dict(example.versions),
        "methods": [_line(comparison, line) for line in comparison.lines],
    }


def _line(comparison: Comparison, line: MethodRuns) -> dict[str, Any]:
    return {
        "method": line.method,
        "accuracy": plain_spreads({key: line.accuracy(key) for key in ACCURACIES}),
        "difference": plain_spreads({key: comparison.difference(line, key) for key in ACCURACIES}),
        "cost": plain_spreads({key: line.cost(key) for key in COSTS}),
        "to_target": {target: found for target in map("{:g}".format, TARGETS) if (found := _reached(line, target))},
        "runs": [run_figures(trial) for trial in line.trials],
    }


def _reached(line: MethodRuns, target: str) -> dict[str, dict[str, float]]:
    return plain_spreads({key: line.to_target(target, key) for key in Point._fields if key != "accuracy"})


def plain_spreads(spreads: Mapping[str, Spread | None]) -> dict[str, dict[str, float]]:
    """Spreads as plain values for JSON; unknown ones are absent."""
    return {key: _spread(spread) for key, spread in spreads.items() if spread is not None}


def _spread(spread: Spread) -> dict[str, float]:
    found = {"mean": spread.mean, "count": spread.count}
    if spread.sd is not None and spread.interval is not None:
        low, high = spread.interval
        found |= {"sd": spread.sd, "ci95_low": low, "ci95_high": high}
    return found


def run_figures(trial: Trial) -> dict[str, Any]:
    """A row of runs.csv without its method; unknown figures are absent."""
    figures = {_column(key): trial.accuracy(key) for key in ACCURACIES}
    figures |= {key: trial.cost(key) for key in COSTS}
    return {
        "seed": trial.seed,
        "folder": trial.folder,
        "completed": trial.result.completed,
        "reason": trial.result.reason,
        **{key: value for key, value in figures.items() if value is not None},
    }


def _column(key: str) -> str:
    """The column of a figure; `mean` and `worst` are accuracies, the other names say what they are."""
    return f"{key}_accuracy" if key in {"mean", "worst"} else key


_MEAN_VALUES = {"": "mean", "_sd": "sd"}
_DIFFERENCE_VALUES = {"": "mean", "_low": "ci95_low", "_high": "ci95_high"}
_CELLS: Mapping[str, tuple[str, str, str]] = {
    **{f"{_column(key)}{of}": ("accuracy", key, name) for key in ACCURACIES for of, name in _MEAN_VALUES.items()},
    **{
        f"{key}_difference{of}": ("difference", key, name)
        for key in ACCURACIES
        for of, name in _DIFFERENCE_VALUES.items()
    },
    **{f"{key}{of}": ("cost", key, name) for key in COSTS for of, name in _MEAN_VALUES.items()},
}
"""The place of each column of methods.csv in a method's entry, as keys: part, figure, value."""
METHOD_COLUMNS = ("method", *_CELLS)
RUN_COLUMNS = ("method", "seed", "folder", "completed", "reason", *map(_column, ACCURACIES), *COSTS)


def method_rows(whole: Mapping[str, Any]) -> list[dict[str, object]]:
    """The rows of methods.csv: means over seeds, deviations (_sd), intervals of differences (_low, _high).

    whole: a comparison's summary.
    """
    return [
        {"method": entry["method"]}
        | {column: entry[part].get(key, {}).get(name) for column, (part, key, name) in _CELLS.items()}
        for entry in whole["methods"]
    ]


def run_rows(whole: Mapping[str, Any]) -> list[dict[str, object]]:
    """The rows of runs.csv, one per run; whole: a comparison's summary."""
    return [{"method": entry["method"], **run} for entry in whole["methods"] for run in entry["runs"]]


def write_comparison(comparison: Comparison, out: Path) -> None:
    """Write compare.json, methods.csv, runs.csv and table.tex.  Raises StoreError where they cannot be written."""
    whole = comparison_summary(comparison)
    files = {
        "methods.csv": text_files.csv_text(METHOD_COLUMNS, method_rows(whole)),
        "runs.csv": text_files.csv_text(RUN_COLUMNS, run_rows(whole)),
        "table.tex": latex_text(paper_table(comparison, latex=True)),
        COMPARISON: json.dumps(whole, indent=2, allow_nan=False) + "\n",
    }
    write_files(files, out)


def write_files(files: Mapping[str, str], out: Path) -> None:
    """Replace each file at once, in this order.  Raises StoreError where they cannot be written."""
    try:
        for name, text in files.items():
            text_files.replace_file(out / name, text)
    except OSError as error:
        raise StoreError(f"{out}: cannot write the comparison ({error.strerror}); free or change the place") from error


def is_comparison(folder: Path) -> bool:
    """Whether this is the folder of a comparison.  Raises UsageError for that of a sweep, which `report` shows."""
    if is_sweep(folder):
        raise UsageError(
            f"{folder}: holds a sweep; edge-sdk report shows it, and its pictures lie in {folder / 'plots'}"
        )
    return (folder / COMPARISON).exists()


def is_sweep(folder: Path) -> bool:
    """Whether this is the folder of a sweep."""
    return (folder / SWEEP).exists()


def read_comparison(folder: Path) -> Comparison:
    """Read a comparison and its runs back from its folder.  Raises UsageError if one of the files cannot be read."""
    path = folder / COMPARISON
    with _readable(path, "compare"):
        return _comparison_in(text_files.read_json(path), folder, path)


class SweptSetting(NamedTuple):
    """A setting that a method tried in a sweep, and its runs."""

    line: MethodRuns
    setting: Mapping[str, Any]
    chosen: bool
    validation: float | None
    """The mean validation accuracy over the seeds, or None if a run ended early."""


class SweptCondition(NamedTuple):
    """The runs under one condition of a sweep."""

    values: Mapping[str, Any]
    comparison: Comparison
    """The comparison of the settings that were chosen."""
    tried: tuple[SweptSetting, ...]


def read_sweep(folder: Path) -> tuple[dict[str, Any], tuple[SweptCondition, ...]]:
    """Read sweep.json and all runs of a sweep back from its folder.  Raises UsageError if one cannot be read."""
    path = folder / SWEEP
    with _readable(path, "sweep"):
        whole = text_files.read_json(path)
        _check_version(whole["version"], path, "sweep")
        return whole, tuple(
            SweptCondition(
                each["condition"],
                _comparison_in(each["comparison"], folder, path),
                tuple(
                    SweptSetting(
                        _runs_in(entry["method"], entry["runs"], folder),
                        entry["setting"],
                        entry["chosen"],
                        entry.get("validation_accuracy", {}).get("mean"),
                    )
                    for entry in each["trials"]
                ),
            )
            for each in whole["conditions"]
        )


def _readable(path: Path, command: str) -> AbstractContextManager[None]:
    """Turn the error of an unreadable file into a UsageError; command: writes such a file."""
    return text_files.reading(path, f"restore a copy, or run edge-sdk {command} again")


def _comparison_in(whole: Mapping[str, Any], folder: Path, path: Path) -> Comparison:
    """The comparison with this summary; folder: where its runs lie."""
    _check_version(whole["version"], path, "compare")
    metric = str(whole.get("metric", "mean"))  # older ones do not have it
    return Comparison(
        lines=tuple(_runs_in(each["method"], each["runs"], folder) for each in whole["methods"]),
        baseline=str(whole["baseline"]),
        metric=metric if metric in ACCURACIES else "mean",
    )


def _runs_in(method: str, runs: Iterable[Mapping[str, Any]], folder: Path) -> MethodRuns:
    places = [(run["seed"], run["folder"]) for run in runs]
    check_fields({"method": method, "runs": places}, {"method": str, "runs": tuple[tuple[int | str, ...], ...]})
    if not places:
        raise ValueError(f"the list of runs of {method!r} does not fit")
    return MethodRuns(method, tuple(Trial(seed, read_run(folder / name), name) for seed, name in places))


def _check_version(version: object, path: Path, command: str) -> None:
    if version != COMPARISON_VERSION:
        raise UsageError(f"{path}: version {version!r}, this edge-sdk reads {COMPARISON_VERSION}; run {command} again")


def command(args: argparse.Namespace) -> int:
    """Write the table to the terminal, or into a file."""
    if not is_comparison(args.folder):
        raise UsageError(f"{args.folder}: holds no comparison; edge-sdk compare makes one")
    comparison: Comparison = read_comparison(args.folder)
    columns = (*(args.columns or (USUAL if not args.at else ("mean",))), *args.at)
    table = paper_table(
        comparison,
        columns,
        latex=args.format == "latex",
        caption=args.caption,
        marked=args.format in ("latex", "markdown"),
    )
    text = {"latex": latex_text, "markdown": markdown_text, "csv": _csv_text, "text": plain_text}[args.format](table)
    if args.out is None:
        sys.stdout.write(text)
        return 0
    try:
        text_files.replace_file(args.out, text)
    except OSError as error:
        raise unwritable(error, f"{args.out}: cannot be written ({error.strerror}); give --out another file") from None
    sys.stderr.write(f"table: {args.out}\n")
    return 0


def markdown_text(table: Table) -> str:
    """The table as Markdown, with the caption and notes below it."""
    heads = [column.name for column in table.columns]
    rules = ["---:" if column.right else "---" for column in table.columns]
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (heads, rules, *table.rows)]
    below = "".join(f"\n{line}\n" for line in (table.caption, *table.notes))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n{below}"


def _csv_text(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows((as_text(name), *cells) for name, *cells in table.rows)  # the other cells are figures
    return text.getvalue()

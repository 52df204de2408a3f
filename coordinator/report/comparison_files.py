"""A comparison read back from the folder that `edge-sdk compare` wrote, with the runs that lie in it."""

from __future__ import annotations

import json
from pathlib import Path

from coordinator.report.comparison import COMPARISON_VERSION, Comparison, Line, Trial
from coordinator.report.files import read_run
from edge_sdk.errors import UsageError

COMPARISON, SWEEP = "compare.json", "sweep.json"


def is_comparison(folder: Path) -> bool:
    """Whether this is the folder of a comparison.  Raises UsageError for that of a sweep, which only `sweep` shows."""
    if (folder / SWEEP).exists():
        raise UsageError(
            f"{folder}: holds a sweep; give the same edge-sdk sweep command again: it shows its tables, and runs "
            "nothing that is there"
        )
    return (folder / COMPARISON).exists()


def read_comparison(folder: Path) -> Comparison:
    """The comparison whose compare.json this is.  Raises UsageError where it, or one of its runs, does not read."""
    path = folder / COMPARISON
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
        version = whole["version"]
        runs = {each["method"]: [(run["seed"], run["folder"]) for run in each["runs"]] for each in whole["methods"]}
        baseline = str(whole["baseline"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: does not read ({type(error).__name__}); run edge-sdk compare again") from None
    if version != COMPARISON_VERSION:
        raise UsageError(f"{path}: version {version!r}, this edge-sdk reads {COMPARISON_VERSION}; run compare again")
    return Comparison(
        lines=tuple(
            Line(method, tuple(Trial(seed, read_run(folder / name), name) for seed, name in found))
            for method, found in runs.items()
        ),
        baseline=baseline,
    )

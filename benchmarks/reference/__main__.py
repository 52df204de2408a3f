"""Our methods held against the figures of the field's own library: docs/results/reference.md.

    python -m benchmarks.reference --list                       # the runs, and which are done
    nice -n 19 python -m benchmarks.reference                   # those that are missing, then the page
    python -m benchmarks.reference --only FedKD --seeds 0
    python -m benchmarks.reference --page                       # the page from the runs that stand

A finished run is an entry of docs/results/reference.json, and is not made again unless its settings change.  The
reference's figures and partition are in the folder that EDGE_REFERENCE names, Fashion-MNIST in that of EDGE_DATA.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.reference.ours import FED_AS_THERE, LINES, SEEDS, Run, read_reference
from benchmarks.reference.page import page, runs
from benchmarks.reference.theirs import TWINS
from benchmarks.reference.theirs_fedproto import PROTOTYPE_TWINS
from edge_sdk.cli import OneLineParser
from edge_sdk.errors import EdgeError

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def main(argv: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    """Make the missing runs, and write the page; the exit code."""
    parser = OneLineParser(
        prog="python -m benchmarks.reference", description="Hold our methods against HtFLlib's figures."
    )
    parser.add_argument("--list", action="store_true", help="list the runs")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    parser.add_argument("--only", metavar="NAME", help="the runs of one of their algorithms")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, choices=SEEDS)
    args = parser.parse_args(argv)
    kept: dict[str, Any] = {}
    file = results / "reference.json"
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
    every = [
        *runs(),
        *(Run(line, seed, as_fed=True) for line in LINES for seed in FED_AS_THERE.get(line.theirs, ())),
        *TWINS,
        *PROTOTYPE_TWINS,
    ]
    wanted = [run for run in every if args.only in (None, run.theirs) and run.seed in args.seeds]
    missing = [run for run in wanted if kept.get(run.name, {}).get("settings") != run.digest]
    try:
        if args.list:
            for run in wanted:
                print(f"{'missing' if run in missing else 'done':8}{run.name}")
            return 0
        if missing and not args.page:
            torch.set_num_threads(1)
            reference = read_reference()
            for run in missing:
                kept[run.name] = run.measured(reference)
                file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
                print(
                    f"{run.name}: {kept[run.name]['ours']:.3f} in {kept[run.name]['cpu_s']:.0f} CPU seconds", flush=True
                )
        (results / "reference.md").write_text(page(kept), encoding="utf-8")
    except EdgeError as error:
        sys.stderr.write(f"reference: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command `edge-sdk compare`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from coordinator.report.compare_files import comparison_summary
from coordinator.report.compare_table import compare_table
from coordinator.report.plots import draw_comparison
from coordinator.report.progress import Progress
from coordinator.report.tables import show_table
from edge_sdk.errors import MissingExtra
from edge_sim.config import settings
from edge_sim.studies.compare import compare


def command(args: argparse.Namespace) -> int:
    """Run the missing runs, and show the comparison."""
    config = settings.load_config(args.file, args.overrides)
    out = args.out or Path("runs") / f"{config.federation.name}-compare"
    try:
        seeds = args.seeds or (config.federation.seed,)
        comparison = compare(
            config, args.methods, seeds, out, lambda label: Progress(label, brief=True), metric=args.metric
        )
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; finished runs are kept in {out}: the same command goes on from them\n")
        raise
    if args.json:
        sys.stdout.write(json.dumps(comparison_summary(comparison), indent=2) + "\n")
    else:
        show_table(compare_table(comparison), sys.stdout)
        sys.stdout.write(f"\nfigures: {out / 'compare.json'}\n")
        say_drawn(lambda: draw_comparison(comparison, out / "plots"))
    return 0 if comparison.completed else 1


def say_drawn(draw: Callable[[], Sequence[Path]]) -> None:
    """Draw the pictures and print their folder; without matplotlib, print that there are no pictures."""
    try:
        pictures = draw()
    except MissingExtra as missing:
        sys.stderr.write(f"no plots: {missing}\n")
    else:
        sys.stdout.write("".join(f"picture: {path}\n" for path in pictures))

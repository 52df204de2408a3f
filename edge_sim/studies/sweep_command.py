"""The command `edge-sdk sweep`."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path

from coordinator.results.plots.plots import draw_comparison
from edge_sdk.terminal import room_of
from edge_sim.config import settings
from edge_sim.studies.axes import check_overrides, read_axes
from edge_sim.studies.compare_command import KEPT, say, say_drawn
from edge_sim.studies.gain_plots import draw_gains
from edge_sim.studies.planned_runs import label
from edge_sim.studies.search import search_of
from edge_sim.studies.sweep import Sweep, sweep, sweep_summary
from edge_sim.studies.sweep_table import sweep_text


def command(args: argparse.Namespace) -> int:
    """Run the missing runs of the grid, and show the choice of each method."""
    config = settings.load_config(args.file, args.overrides)
    out = args.out or Path("runs") / f"{config.federation.name}-sweep"
    methods, seeds = args.methods or (config.federation.method,), args.seeds or (config.federation.seed,)
    axes, search = read_axes(args.over), search_of(args.trials, prune=args.prune)
    check_overrides(config, args.overrides, axes, methods=args.methods, seeds=args.seeds)
    try:
        found = sweep(config, axes, methods, seeds, out, search=search, jobs=args.jobs, say=say)
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; {KEPT.format(out=out)}\n")
        raise
    if args.json:
        sys.stdout.write(json.dumps(sweep_summary(found), indent=2) + "\n")
    else:
        sys.stdout.write(f"{sweep_text(found, room_of(sys.stdout))}\nfigures: {out / 'sweep.json'}\n")
        if not args.no_plots:
            say_drawn(lambda: _pictures(found, out / "plots"))
    return 0 if found.completed else 1


def _pictures(found: Sweep, folder: Path) -> list[Path]:
    """Draw the gains along the axes and the comparison under each condition."""
    under = (draw_comparison(each.comparison, folder / label(each.values)) for each in found.conditions)
    return [*draw_gains(found, folder), *itertools.chain.from_iterable(under)]

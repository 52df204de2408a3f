"""The command `edge-sdk sweep`, and the text of a sweep for the terminal."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path

from coordinator.record.units import percent, printable
from coordinator.results.comparison.compare import setting_text
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.plots.plots import draw_comparison
from coordinator.results.report.tables import plain_text
from edge_sdk.terminal import indented, room_of
from edge_sim.config import settings
from edge_sim.studies.axes import check_overrides, read_axes
from edge_sim.studies.compare_command import KEPT, say, say_drawn
from edge_sim.studies.gain_plots import draw_gains
from edge_sim.studies.planned_runs import label
from edge_sim.studies.search import search_of
from edge_sim.studies.sweep import Candidate, Condition, Sweep, sweep, sweep_summary


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


def sweep_text(found: Sweep, room: int | None = None) -> str:
    """Return the table of each condition as aligned text, followed by the methods' chosen settings.

    room: the width of the tables in characters, or None for any.
    """
    return "\n".join(_condition(condition, room) for condition in found.conditions)


def _condition(condition: Condition, room: int | None) -> str:
    heading = f"{printable(setting_text(condition.values))}:\n\n" if condition.values else ""
    choices = [_choice(condition, candidate) for candidate in condition.chosen.values() if candidate.setting]
    lines = "".join(f"{indented(each, room)}\n" for each in choices)
    chosen = f"chosen on the validation part:\n{lines}" if choices else ""
    table = compare_table(condition.comparison, everything="trials.csv")
    return f"{heading}{plain_text(table, room)}{chosen}"


def _choice(condition: Condition, candidate: Candidate) -> str:
    method = candidate.line.method
    tried = [other for other in condition.candidates if other.line.method == method]
    pruned = sum(other.pruned for other in tried)
    early = f", {pruned} of them ended early" if pruned else ""
    found = candidate.validation
    validated = "never measured" if found is None else percent(found.mean)
    setting = printable(setting_text(candidate.setting))
    return f"{method}: {setting} (validation {validated}, best of {len(tried)}{early})"

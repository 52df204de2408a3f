"""The sub-command sweep."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from edge_sdk.cli import Command
from edge_sim.compare_commands import add_grid_options, drawn


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml")
    parser.add_argument(
        "--over",
        action="append",
        default=[],
        required=True,
        metavar="KEY=V1,V2",
        help="a key and its values, the base value first; may be given several times.  Of train.* and method.NAME.* "
        "every method chooses the best on the validation part; any other key is a condition with a table of its own",
    )
    add_grid_options(parser, needs_methods=False, name="sweep")
    parser.add_argument("--json", action="store_true", help="print sweep.json instead of the tables")


def _sweep(args: argparse.Namespace) -> int:
    from coordinator.report.comparison_plots import draw_comparison  # noqa: PLC0415  # nothing heavy before the arguments
    from coordinator.report.progress import Progress  # noqa: PLC0415
    from edge_sim import config as configs  # noqa: PLC0415
    from edge_sim.gain_plots import draw_gains  # noqa: PLC0415
    from edge_sim.planned_runs import label  # noqa: PLC0415
    from edge_sim.sweep import sweep, sweep_summary  # noqa: PLC0415
    from edge_sim.sweep_table import sweep_text  # noqa: PLC0415

    config = configs.load(args.file, args.overrides)
    out = args.out or Path("runs") / f"{config.federation.name}-sweep"
    methods, seeds = args.methods or (config.federation.method,), args.seeds or (config.federation.seed,)
    try:
        found = sweep(config, args.over, methods, seeds, out, watcher=lambda part: Progress(part, brief=True))
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; finished runs are kept in {out}: the same command goes on from them\n")
        raise
    if args.json:
        sys.stdout.write(json.dumps(sweep_summary(found), indent=2) + "\n")
    else:
        sys.stdout.write(f"{sweep_text(found)}\nfigures: {out / 'sweep.json'}\n")
        drawn(
            lambda: [
                *draw_gains(found, out / "plots"),
                *(
                    path
                    for condition in found.conditions
                    for path in draw_comparison(condition.comparison, out / "plots" / label(condition.values))
                ),
            ]
        )
    return 0 if found.completed else 1


SWEEP = Command(
    name="sweep",
    help="run a grid of settings, let every method choose on the validation part, and compare",
    example="edge-sdk sweep federation.toml --over train.learning_rate=0.01,0.05 --methods fedal,fedmd --seeds 0,1,2",
    arguments=_arguments,
    run=_sweep,
)

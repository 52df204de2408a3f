"""The command `edge-sdk bench`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from coordinator.results.report.tables import show_table
from edge_sdk.errors import UsageError
from edge_sim.bench.bench import chosen_methods, chosen_tasks, open_bench, read_bench, run_bench
from edge_sim.bench.page import write_tables
from edge_sim.bench.tables import verdict_table, verdicts
from edge_sim.studies.compare_command import KEPT, say


def command(args: argparse.Namespace) -> int:
    """Run what is missing, and write the tables of all that is finished."""
    scale = "smoke" if args.smoke else args.scale
    out = args.out or Path("runs") / f"bench-{scale}"
    tasks, methods = chosen_tasks(args.tasks), chosen_methods(args.methods)
    bench = read_bench(out) if args.show else open_bench(out, scale, args.boards, args.seeds)
    if not args.show:
        data = args.data or Path(os.environ.get("EDGE_DATA", "data"))
        try:
            run_bench(bench, tasks, methods, data, jobs=args.jobs, say=say)
        except KeyboardInterrupt:
            sys.stderr.write(f"\ninterrupted; {KEPT.format(out=out)}\n")
            raise
        if all(task.name in bench.missing for task in tasks):
            raise UsageError(
                "bench: the data of none of these tasks are there; see the lines above, or --tasks vibration"
            )
    written = write_tables(bench, args.page)
    show_table(verdict_table(verdicts(bench)), sys.stdout)
    sys.stdout.writelines(f"written: {path}\n" for path in written)
    return 0

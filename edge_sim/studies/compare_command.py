"""The command `edge-sdk compare`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from coordinator.config import to_toml
from coordinator.record.observer import RunObserver
from coordinator.results.comparison.compare import Comparison
from coordinator.results.comparison.compare_files import comparison_summary
from coordinator.results.comparison.compare_table import compare_table
from coordinator.results.figures.result import Result
from coordinator.results.plots.plots import draw_comparison
from coordinator.results.report.run_files import write_run
from coordinator.results.report.tables import show_table
from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.protocol.topics import is_id
from edge_sdk.transport.memory.hub import Faults
from edge_sdk.transport.mqtt.tls import TlsFiles
from edge_sdk.transport.mqtt.url import parse_broker_url
from edge_sim.commands import LAB, WAIT_S
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.lab.desk import LabDesk
from edge_sim.studies.axes import check_overrides
from edge_sim.studies.planned_runs import compare
from edge_sim.studies.study_runs import RunOne

MOST_WAIT_S = 86_400.0
KEPT = "everything is kept in {out}: repeat the command to continue"
"""The line after an interrupted study."""


def command(args: argparse.Namespace) -> int:
    """Run the missing runs and show the comparison."""
    _check_lab_options(args)
    config = settings.load_config(args.file, args.overrides)
    check_overrides(config, args.overrides, methods=args.methods, seeds=args.seeds)
    out = args.out or Path("runs") / f"{config.federation.name}-{'lab' if args.on_devices else 'compare'}"
    try:
        comparison = _on_boards(args, config, out) if args.on_devices else _compared(args, config, out)
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; {KEPT.format(out=out)}\n")
        raise
    if args.json:
        sys.stdout.write(json.dumps(comparison_summary(comparison), indent=2) + "\n")
    else:
        show_table(compare_table(comparison), sys.stdout)
        sys.stdout.write(f"\nfigures: {out / 'compare.json'}\n")
        if not args.no_plots:
            say_drawn(lambda: draw_comparison(comparison, out / "plots"))
    return 0 if comparison.completed else 1


def _compared(args: argparse.Namespace, config: Config, out: Path, run_one: RunOne | None = None) -> Comparison:
    seeds = args.seeds or (config.federation.seed,)
    return compare(
        config,
        args.methods,
        seeds,
        out,
        metric=args.metric,
        run_one=run_one,
        on_boards=args.on_devices,
        jobs=args.jobs,
        say=say,
    )


def _on_boards(args: argparse.Namespace, config: Config, out: Path) -> Comparison:
    """Compare on the boards of a lab; if all runs are finished, no board is needed."""
    lab = args.lab or LAB
    if lab == config.federation.name:
        raise UsageError(
            f"federation.name {lab!r} is the lab's name, too, and both would use the same topics: give the federation "
            f"another one (--set federation.name=NAME), or name another lab here and on its boards (--lab)"
        )
    if settings.troubled(config) or config.faults != Faults():
        say("[scenario], [faults] and the faults in [[fleet]] rows apply to simulations only: ignored on boards")
    wait_s = WAIT_S if args.wait is None else args.wait
    files = TlsFiles(args.ca, args.cert, args.key)
    with ExitStack() as stack:
        desks: list[LabDesk] = []

        def run_one(each: Config, observer: RunObserver | None, folder: Path) -> Result:
            if not desks:
                desk = LabDesk(args.broker, lab, tls=files, wait_s=wait_s, say=say)
                desks.append(stack.enter_context(desk))
            result = desks[0].run(each, observer)
            write_run(result, to_toml(each.tables), folder)
            return result

        return _compared(args, config, out, run_one)


def _check_lab_options(args: argparse.Namespace) -> None:
    """Raise UsageError for options that contradict each other, or invalid addresses, names or times."""
    if args.on_devices and args.jobs > 1:
        raise UsageError("--jobs: has no effect with --on-devices: the boards carry out one run at a time")
    if not args.on_devices:
        for option in ("broker", "lab", "wait", "ca", "cert", "key"):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option}: has no effect without --on-devices")
        return
    if args.broker is None:
        raise UsageError("--on-devices needs --broker URL: the broker of the lab")
    parse_broker_url(args.broker)
    if args.lab is not None and not is_id(args.lab):
        raise UsageError(f"--lab {args.lab!r}: use a-z, 0-9 and -, at most 36 of them")
    if args.wait is not None and not 0 <= args.wait <= MOST_WAIT_S:
        raise UsageError(f"--wait {args.wait:g}: expected seconds from 0 to {MOST_WAIT_S:g}")


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")


def say_drawn(draw: Callable[[], Sequence[Path]]) -> None:
    """Draw the pictures and print their folder; without matplotlib, print that there are no pictures."""
    try:
        pictures = draw()
    except MissingExtra as missing:
        sys.stderr.write(f"no plots: {missing}\n")
    else:
        sys.stdout.write("".join(f"picture: {path}\n" for path in pictures))

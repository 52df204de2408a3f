"""The sub-command simulate."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from edge_sdk.cli import Command

if TYPE_CHECKING:
    from coordinator.watcher import Watcher
    from edge_sim.config import Config


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument(
        "--broker",
        default="memory",
        help="memory (virtual time, the default), embedded, embedded:amqtt, embedded:mosquitto or mqtt://HOST[:PORT]",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="run directory (default: runs/NAME, or runs/NAME-2 and so on where that holds a run)",
    )
    parser.add_argument(
        "--engine",
        choices=("exact", "cohort", "workers", "ray", "auto"),
        help="what devices compute on in memory: shorthand for --set run.engine=ENGINE",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in that directory")
    parser.add_argument("--trace", action="store_true", help="keep the message log, for edge-sdk replay")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON instead of the table")


def _simulate(args: argparse.Namespace) -> int:
    from edge_sim import config as configs  # noqa: PLC0415  # nothing heavy before the arguments are read
    from edge_sim import run_folder  # noqa: PLC0415

    if args.engine:
        args.overrides.append(f"run.engine={args.engine}")
    config = configs.load(args.file, args.overrides)
    default = Path("runs") / config.federation.name
    out = args.out or (default if args.resume else run_folder.unused(default))
    if args.resume and run_folder.is_over(out, config):
        sys.stderr.write(f"{out}: the run is finished, there is nothing to go on with\n")
        if args.json:
            sys.stdout.write((out / "summary.json").read_text(encoding="utf-8"))
        return 0
    with run_folder.claimed(out):
        return _simulate_in(out, config, args)


def _simulate_in(out: Path, config: Config, args: argparse.Namespace) -> int:
    from coordinator.config import to_toml  # noqa: PLC0415  # nothing heavy before the arguments are read
    from coordinator.report.files import write_run  # noqa: PLC0415
    from coordinator.report.plots import draw_all  # noqa: PLC0415
    from coordinator.report.result import summary  # noqa: PLC0415
    from coordinator.report.table import show  # noqa: PLC0415
    from edge_sim import config as configs  # noqa: PLC0415
    from edge_sim.engine_choice import resolve_engine  # noqa: PLC0415
    from edge_sim.fleet import build_fleet  # noqa: PLC0415
    from edge_sim.run_folder import check_new  # noqa: PLC0415
    from edge_sim.runner import run_in  # noqa: PLC0415

    if not args.resume:
        check_new(out)
    if args.broker != "memory" and configs.troubled(config):
        sys.stderr.write(
            "edge-sdk: [scenario] and what [[fleet]] rows have to bear are for the memory broker: left out\n"
        )
    fleet = None
    try:
        if args.broker == "memory":
            fleet = build_fleet(config)
            config, why = resolve_engine(config, fleet, out)
            sys.stderr.write(f"{why}\n" if why else "")
        result = run_in(
            out,
            config,
            broker=args.broker,
            resume=args.resume,
            watcher=lambda part: _watcher(config, out, part),
            trace=args.trace,
            fleet=fleet,
        )
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; {_how_to_go_on(args, out)}\n")
        raise
    write_run(result, to_toml(config.tables), out)
    if args.json:
        sys.stdout.write(json.dumps(summary(result), indent=2) + "\n")
    else:
        show(result, sys.stdout)
        pictures = draw_all(result, out / "plots")
        sys.stdout.write(f"\nsummary: {out / 'summary.json'}\n" + "".join(f"picture: {path}\n" for path in pictures))
    if not result.completed:
        sys.stderr.write(f"edge-sdk: the run failed: {result.reason}\n")
    return 0 if result.completed else 1


def _how_to_go_on(args: argparse.Namespace, out: Path) -> str:
    if not (out / "checkpoint").exists():
        return "the federation had not begun, so there is nothing to resume: start again"
    overrides = "".join(f" --set {shlex.quote(each)}" for each in args.overrides)
    again = (
        f"edge-sdk simulate {args.file}{overrides} --broker {args.broker}{' --trace' * args.trace} --out {out} --resume"
    )
    return f"the state is kept, go on with: {again}"


def _watcher(config: Config, out: Path, part: str) -> Watcher:
    """Lines on the terminal; progress.json and log.jsonl in the run directory."""
    from coordinator.report.log import Log  # noqa: PLC0415
    from coordinator.report.progress import Progress, Several  # noqa: PLC0415
    from coordinator.report.progress_file import About, ProgressFile  # noqa: PLC0415

    table = config.federation
    lines = Progress(f"{table.name} {part}".strip())
    about = About(
        federation=table.name,
        method="local" if part else table.method,
        seed=table.seed,
        rounds=table.rounds,
        expected=table.devices,
        part=part,
    )
    log = Log((out / "standalone" if part else out) / "log.jsonl")
    return Several(lines, ProgressFile(out, about, say=lines.noted), log)


SIMULATE = Command(
    name="simulate",
    help="run a whole federation on this machine",
    example="edge-sdk simulate federation.toml --broker embedded --set federation.rounds=20",
    arguments=_arguments,
    run=_simulate,
)

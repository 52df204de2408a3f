"""The command `edge-sdk simulate`."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from coordinator.config import chosen_method, to_toml
from coordinator.record.observer import ObserverGroup, RunObserver
from coordinator.record.units import human_seconds
from coordinator.results.figures.result import Result
from coordinator.results.page.feed import Feed
from coordinator.results.page.live import PageObserver
from coordinator.results.page.serving import page_feed
from coordinator.results.page.values import finished_state
from coordinator.results.plots.plots import draw_run
from coordinator.results.report.progress import EventLog
from coordinator.results.report.progress_file import About, ProgressFile
from coordinator.results.report.run_files import tell_finished, write_run
from coordinator.results.report.run_table import MOST_ROWS, run_table
from coordinator.results.report.summary import summary, summary_text
from coordinator.results.report.tables import show_table
from coordinator.results.writers.opening import RunWriters, options_of_run, run_writers, writer_options
from edge_sdk import toml
from edge_sdk.errors import MissingExtra
from edge_sdk.protocol.messages import FOREVER
from edge_sim.config import settings
from edge_sim.config.settings import Config
from edge_sim.engines.choice import resolve_run
from edge_sim.fleet.fleet import Fleet, build_fleet
from edge_sim.runs import run_folder
from edge_sim.runs.run_folder import check_new
from edge_sim.runs.runner import as_run_failed, run_in, trains_alone
from edge_sim.runs.simulation_result import expected_error, measuring_line, sample_line


def command(args: argparse.Namespace) -> int:
    """Run the federation in its folder, or resume the run in that folder."""
    for key in ("engine", "processes", "stack"):
        if getattr(args, key) is not None:
            args.overrides.append(f"run.{key}={getattr(args, key)}")
    config = settings.load_config(args.file, args.overrides)
    chosen_method(config)  # first, to report mistakes before making a folder
    toml.check_writer()
    default = Path("runs") / config.federation.name
    out = args.out or (default if args.resume else run_folder.unused(default))
    if args.resume and run_folder.is_over(out, config):
        tell_finished(out, as_json=args.json)
        return 0
    table = config.federation
    options = writer_options(args)
    with (
        page_feed(args.page) as feed,
        run_folder.claimed(out),
        run_writers(
            options, out, federation=table.name, method=table.method, seed=table.seed, tables=config.tables
        ) as writers,
    ):
        return _simulate_in(out, config, args, feed, writers)


def _simulate_in(out: Path, config: Config, args: argparse.Namespace, feed: Feed | None, writers: RunWriters) -> int:
    if not args.resume:
        check_new(out)
    if args.broker != "memory" and settings.troubled(config):
        sys.stderr.write("edge-sdk: [scenario] and the faults in [[fleet]] rows need the memory broker: ignored\n")
    if config.public is not None:
        sys.stderr.write(
            "public.path is for a deployment and is not read: the public set of a simulation is taken from its data "
            "(data.public)\n"
        )
    fleet = None
    try:
        if args.broker == "memory":
            with as_run_failed(out):
                fleet = build_fleet(config)
                config, why = resolve_run(config, fleet, out)
            measuring = measuring_line(fleet, settings.MEASURED, alone=trains_alone(config, sampled=False))
            fleet_lines = (
                sample_line(fleet) + expected_error(fleet),
                measuring if config.run.measured == settings.AUTO else "",
            )
            lines = (*config.remarks, why, fleet.dataset.public_taken, fleet.dataset.remark, *fleet_lines)
            sys.stderr.writelines(f"{line}\n" for line in lines if line)
        sys.stderr.write(f"{_start(config, out, len(fleet.measured) if fleet is not None else 0)}\n")
        result = run_in(
            out,
            config,
            broker=args.broker,
            resume=args.resume,
            quarantine=args.quarantine,
            observer=lambda part: _observer(config, out, part, feed, fleet, writers),
            trace=args.trace,
            fleet=fleet,
        )
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; {_how_to_go_on(args, out)}\n")
        raise
    write_run(result, to_toml(config.tables), out)
    if feed is not None:
        feed.publish(finished_state(result, str(out)))
    if args.json:
        sys.stdout.write(summary_text(summary(result)))
    else:
        show_table(run_table(result, MOST_ROWS), sys.stdout)
        sys.stdout.write(
            f"\nsummary: {out / 'summary.json'}\n{_drawn(result, out / 'plots', wanted=not args.no_plots)}\n"
        )
    if result.completed and args.broker == "memory":
        run_folder.remove_checkpoint(out)
    if not result.completed:
        sys.stderr.write(f"edge-sdk: the run failed: {result.reason}\n")
    return 0 if result.completed else 1


def _drawn(result: Result, folder: Path, *, wanted: bool) -> str:
    """Draw the pictures; return a line with their folder, or with the reason for having none."""
    if not wanted:
        return f"no pictures (--no-plots); draw them with: edge-sdk plot {shlex.quote(str(folder.parent))}"
    begun_s = time.monotonic()
    try:
        count = len(draw_run(result, folder))
    except MissingExtra as missing:
        return f"no pictures: {missing}"
    except MemoryError:  # the result is written regardless
        return f"no pictures: out of memory; draw them with: edge-sdk plot {shlex.quote(str(folder.parent))}"
    took = human_seconds(time.monotonic() - begun_s)
    return f"pictures: {count} in {folder}, drawn in {took} after the run (--no-plots leaves them out)"


def _start(config: Config, out: Path, sampled: int) -> str:
    """Describe the run that is about to start or to continue.  sampled: the measured devices, or 0 for all."""
    table, first = config.federation, ""
    if trains_alone(config, sampled=bool(sampled)) and not (out / "checkpoint").exists():  # else they have trained
        who = f"the {sampled:,} measured devices" if sampled else "each device"
        first = f"first {who} alone, for comparison; then "
    count = (
        "rounds without an end"
        if table.rounds == FOREVER
        else f"{table.rounds} round{'' if table.rounds == 1 else 's'}"
    )
    return f"{table.name}: {first}{table.devices:,} devices under {table.method}, {count}"


def _how_to_go_on(args: argparse.Namespace, out: Path) -> str:
    if not (out / "checkpoint").exists():
        return "the federation had not begun, so it cannot be resumed: start again"
    overrides = "".join(f" --set {shlex.quote(each)}" for each in args.overrides)
    file, broker, folder = (shlex.quote(str(each)) for each in (args.file, args.broker, out))
    options = f"{overrides} --broker {broker}{' --trace' * args.trace}{options_of_run(args)} --out {folder}"
    return f"the state is kept, continue with: edge-sdk simulate {file}{options} --resume"


def _observer(  # noqa: PLR0917  # what one run is watched by
    config: Config, out: Path, part: str, feed: Feed | None, fleet: Fleet | None, writers: RunWriters
) -> RunObserver:
    """Return an observer that writes lines to the terminal, and progress.json and log.jsonl to the run directory.

    feed: of the live page, if there is one.  fleet: None over a broker.
    """
    table = config.federation
    lines = writers.lines(part)
    about = About(
        federation=table.name,
        method="local" if part else table.method,
        seed=table.seed,
        rounds=table.rounds,
        expected=table.devices,
        part=part,
    )
    log = EventLog((out / "standalone" if part else out) / "log.jsonl")
    pages = []
    if feed is not None:
        links = {device.kit.id: device.kit.link for device in fleet.devices} if fleet else {}
        pages = [PageObserver(feed, about, str(out), virtual=fleet is not None, links=links)]
    return ObserverGroup(lines, ProgressFile(out, about, say=lines.noted), log, *pages, *writers.observers(part, lines))

"""The sub-commands of the coordinator's side: coordinator, broker, methods, report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_sdk.cli import Subcommand, add_cloud_safe_option, add_tls_options, tls_files

if TYPE_CHECKING:
    from coordinator.report.tables import Table


def _coordinator_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml")
    parser.add_argument("--broker", required=True, help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in that directory")
    parser.add_argument("--trace", action="store_true", help="keep the message log, for edge-sdk replay")
    add_cloud_safe_option(parser)
    add_tls_options(parser)


def _coordinator(args: argparse.Namespace) -> int:
    from coordinator.deploy import run_coordinator  # noqa: PLC0415  # numpy and paho only when it runs

    return run_coordinator(
        args.file,
        args.broker,
        args.overrides,
        args.out,
        tls=tls_files(args),
        cloud_safe=args.cloud_safe,
        resume=args.resume,
        trace=args.trace,
    )


def _broker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=1883, help="default: 1883")


def _broker(args: argparse.Namespace) -> int:
    from coordinator.broker.embedded import serve  # noqa: PLC0415

    serve(args.port)
    return 0


def _methods_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _methods(args: argparse.Namespace) -> int:
    from coordinator.report.method_catalogue import catalogue_text, describe_methods  # noqa: PLC0415

    rows: list[dict[str, Any]] = describe_methods()
    sys.stdout.write((json.dumps(rows, indent=2) if args.json else catalogue_text(rows)) + "\n")
    return 0


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, draw nothing")


def _report(args: argparse.Namespace) -> int:
    found = [_shown(folder, args) for folder in args.folders]
    if args.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


def _shown(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    from coordinator.report.compare_files import is_comparison  # noqa: PLC0415
    from coordinator.report.progress_file import is_running  # noqa: PLC0415

    if is_comparison(folder):
        return _compared(folder, args)
    return _running(folder, args) if is_running(folder) else _finished(folder, args)


def _compared(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    from coordinator.report.compare_files import comparison_summary, read_comparison  # noqa: PLC0415
    from coordinator.report.compare_table import compare_table  # noqa: PLC0415
    from coordinator.report.plots import draw_comparison  # noqa: PLC0415

    comparison = read_comparison(folder)
    if not args.json:
        _show(compare_table(comparison))
        _say_drawn(draw_comparison(comparison, folder / "plots"))
    return comparison_summary(comparison)


def _running(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    from coordinator.report.progress_file import read_running, running_text  # noqa: PLC0415

    found = read_running(folder)
    if not args.json:
        sys.stdout.write(running_text(folder, found) + "\n")
    return {"state": "running", **found}


def _finished(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    from coordinator.report.plots import draw_run  # noqa: PLC0415
    from coordinator.report.run_files import read_run  # noqa: PLC0415
    from coordinator.report.run_table import run_table  # noqa: PLC0415
    from coordinator.report.summary import summary  # noqa: PLC0415

    result = read_run(folder)
    if not args.json:
        _show(run_table(result))
        _say_drawn(draw_run(result, folder / "plots"))
    return summary(result)


def _show(table: Table) -> None:
    from coordinator.report.tables import show_table  # noqa: PLC0415

    show_table(table, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()  # the pictures take a moment


def _say_drawn(paths: Sequence[Path]) -> None:
    sys.stdout.write("".join(f"drawn: {path}\n" for path in paths))


COORDINATOR = Subcommand(
    name="coordinator",
    help="serve a federation: join devices, aggregate their knowledge",
    example="edge-sdk coordinator federation.toml --broker mqtt://lab:1883",
    arguments=_coordinator_arguments,
    run=_coordinator,
)
BROKER = Subcommand(
    name="broker",
    help="run the embedded MQTT broker on this machine",
    example="edge-sdk broker --port 1883",
    arguments=_broker_arguments,
    run=_broker,
)
METHODS = Subcommand(
    name="methods",
    help="list what each method exchanges, and what it asks of a model",
    example="edge-sdk methods --json",
    arguments=_methods_arguments,
    run=_methods,
)
REPORT = Subcommand(
    name="report",
    help="table and plots of finished or running runs, and of comparisons",
    example="edge-sdk report runs/demo",
    arguments=_report_arguments,
    run=_report,
)

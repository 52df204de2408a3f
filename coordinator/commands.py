"""Declares the sub-commands of the coordinator: coordinator, broker, methods, report, page."""

from __future__ import annotations

import argparse
from pathlib import Path

from edge_sdk.cli import Subcommand, add_cloud_safe_option, add_page_option, add_tls_options


def _coordinator_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml")
    parser.add_argument("--broker", required=True, help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in that directory")
    parser.add_argument("--trace", action="store_true", help="keep the message log, for edge-sdk replay")
    add_page_option(parser)
    add_cloud_safe_option(parser)
    add_tls_options(parser)


def _broker_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=1883, help="default: 1883")
    parser.add_argument(
        "--bind",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the IPv4 address of this machine to listen on; 0.0.0.0: all of them (default: 127.0.0.1, this machine "
        "alone); another address needs --open",
    )
    parser.add_argument(
        "--open",
        action="store_true",
        help="let everybody who reaches the address in: there is no password and no TLS; for a network that you trust",
    )


def _methods_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, draw nothing")


def _page_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN_DIR")
    parser.add_argument(
        "--at",
        default="127.0.0.1:8421",
        metavar="HOST:PORT",
        help="where to serve the page (default: 127.0.0.1:8421, this machine alone); any other host asks for a token",
    )


COORDINATOR = Subcommand(
    name="coordinator",
    help="serve a federation: join devices, aggregate their knowledge",
    example="edge-sdk coordinator federation.toml --broker mqtt://lab:1883",
    arguments=_coordinator_arguments,
    function="coordinator.deploy:command",
)
BROKER = Subcommand(
    name="broker",
    help="run the embedded MQTT broker on this machine, for itself or for the boards of its network",
    example="edge-sdk broker --bind 0.0.0.0 --open",
    arguments=_broker_arguments,
    function="coordinator.broker.embedded:command",
)
METHODS = Subcommand(
    name="methods",
    help="list what each method exchanges, and what it asks of a model",
    example="edge-sdk methods --json",
    arguments=_methods_arguments,
    function="coordinator.report.method_catalogue:command",
)
REPORT = Subcommand(
    name="report",
    help="table and plots of finished or running runs, and of comparisons",
    example="edge-sdk report runs/demo",
    arguments=_report_arguments,
    function="coordinator.report.command:command",
)
PAGE = Subcommand(
    name="page",
    help="show a finished run in a browser, or follow one that goes on",
    example="edge-sdk page runs/demo",
    arguments=_page_arguments,
    function="coordinator.page.command:command",
)

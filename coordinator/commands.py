"""Declares the sub-commands of the coordinator: coordinator, broker, lab, report, plot, table, page."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from edge_sdk.cli import (
    Subcommand,
    add_cloud_safe_option,
    add_page_option,
    add_plots_option,
    add_tls_options,
    add_writer_options,
    whole_number,
)


def _coordinator_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml")
    parser.add_argument("--broker", help="mqtt://HOST[:PORT] or mqtts://HOST[:PORT] (default: that of --lab)")
    parser.add_argument(
        "--lab",
        type=Path,
        metavar="DIR",
        help="the folder that edge-sdk lab init made: frames are signed, and unsigned ones refused",
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory (default: runs/NAME)")
    parser.add_argument("--resume", action="store_true", help="continue the run in that directory")
    parser.add_argument(
        "--quarantine",
        action="store_true",
        help="with --resume: set a damaged ledger aside, and restart the run from the beginning",
    )
    parser.add_argument("--trace", action="store_true", help="keep the message log, for edge-sdk replay")
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON at the end, instead of the table"
    )
    add_page_option(parser)
    add_plots_option(parser)
    add_writer_options(parser)
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
        help="accept everyone who reaches the address, without password or TLS; only in a network that you trust",
    )


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="where the HTML file goes (default: report.html in the folder, or in the one that all folders lie in)",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, draw nothing")
    add_plots_option(parser)


def _plot_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN_DIR", help="the folder of a run or a comparison")
    parser.add_argument(
        "--width", choices=("column", "page"), default="column", help="3.5 or 7.16 inches (default: column)"
    )
    parser.add_argument(
        "--format",
        dest="formats",
        type=_names,
        default=("pdf", "svg"),
        metavar="A,B",
        help="the files of each picture: pdf, svg, png (default: pdf,svg)",
    )
    parser.add_argument("--only", type=_names, default=(), metavar="A,B", help="the pictures (default: all)")
    parser.add_argument("--titles", action="store_true", help="keep titles and subtitles, which a caption replaces")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the files go (default: RUN_DIR/plots/WIDTH)")


def _table_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="COMPARE_DIR", help="the folder of a comparison")
    parser.add_argument(
        "--columns",
        type=_names,
        default=(),
        metavar="A,B",
        help="mean, worst, amp, fm, wlp, gm, pm_v ..., difference, NAME_difference, bytes_up, virtual_s and the other "
        "figures of compare.json (default: those of table.tex)",
    )
    parser.add_argument(
        "--at",
        type=_names,
        default=(),
        metavar="5MB,100J",
        help="accuracy when this much was spent, in B, J, FLOP or s with prefixes k, M, G, T, or in min or h",
    )
    parser.add_argument("--format", choices=("text", "latex", "markdown", "csv"), default="text")
    parser.add_argument("--caption", default="", help="the first words of the caption (default: the federation's name)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write into this file (default: the terminal)")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _lab_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    init = actions.add_parser("init", help="make keys, certificates and the broker's settings in a new folder")
    init.add_argument("lab", type=Path, metavar="DIR")
    init.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="name or address under which devices reach the broker; may be repeated (default: this host's name)",
    )
    init.add_argument("--port", type=whole_number(1, 65535), default=8883, help="default: 8883")
    init.add_argument("--bind", default="0.0.0.0", metavar="ADDRESS", help="that the broker listens on (default: all)")  # noqa: S104  # devices come from outside, with certificates
    init.add_argument(
        "--encrypt",
        action="store_true",
        help="encrypt messages between devices and coordinators, so that the broker cannot read them",
    )
    init.set_defaults(action="init")
    serve = actions.add_parser("serve", help="run the lab's broker, and the desk that enrols boards, until Ctrl-C")
    serve.add_argument("lab", type=Path, metavar="DIR")
    serve.add_argument("--no-broker", action="store_true", help="run only the desk; the broker runs as a service")
    serve.set_defaults(action="serve")
    broker = actions.add_parser("broker", help="run only the broker, and restart it whenever it ends")
    broker.add_argument("lab", type=Path, metavar="DIR")
    broker.set_defaults(action="broker")
    claim = actions.add_parser("claim", help="write a claim file for each device, with which it enrols once")
    claim.add_argument("devices", nargs="*", metavar="DEVICE")
    claim.add_argument("--csv", type=Path, metavar="FILE", help="device names in the first column")
    claim.add_argument("--lab", type=Path, default=Path("lab"), metavar="DIR", help="default: lab")
    claim.add_argument("--out", type=Path, metavar="DIR", help="folder for the claims (default: claims in the lab)")
    claim.set_defaults(action="claim")
    revoke = actions.add_parser("revoke", help="remove devices from the lab, immediately and permanently")
    revoke.add_argument("devices", nargs="+", metavar="DEVICE")
    revoke.add_argument("--lab", type=Path, default=Path("lab"), metavar="DIR", help="default: lab")
    revoke.set_defaults(action="revoke")
    renew = actions.add_parser("renew", help="give broker, coordinator, operator and desk new TLS keys; nothing stops")
    renew.add_argument("lab", type=Path, metavar="DIR")
    renew.add_argument(
        "--host", action="append", metavar="NAME", help="of the broker, if others than before; may be repeated"
    )
    renew.set_defaults(action="renew")
    rotate = actions.add_parser("rotate", help="give the stopped coordinator a new signing key; devices follow")
    rotate.add_argument("lab", type=Path, metavar="DIR")
    rotate.set_defaults(action="rotate")
    restored = actions.add_parser("restored", help="continue after restoring the lab's folder from a backup")
    restored.add_argument("lab", type=Path, metavar="DIR")
    restored.set_defaults(action="restored")
    backup = actions.add_parser("backup", help="write the run directory of a stopped coordinator into one file")
    backup.add_argument("folder", type=Path, metavar="RUN_DIR")
    backup.add_argument("file", type=Path, metavar="FILE.tar")
    backup.set_defaults(action="backup")
    restore = actions.add_parser(
        "restore", help="make a run directory from that file; devices join again automatically"
    )
    restore.add_argument("file", type=Path, metavar="FILE.tar")
    restore.add_argument("folder", type=Path, metavar="RUN_DIR")
    restore.set_defaults(action="restore")


LAB = Subcommand(
    name="lab",
    help="set up a lab in which every message is signed: TLS, one identity for each device, a locked broker",
    example="edge-sdk lab init lab --host lab.local\n  edge-sdk lab serve lab\n  edge-sdk lab claim device-01",
    arguments=_lab_arguments,
    function="coordinator.lab.command:command",
    log_level=logging.WARNING,
)


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
REPORT = Subcommand(
    name="report",
    help="tables, plots and one HTML file of finished or running runs, and of comparisons",
    example="edge-sdk report runs/demo",
    arguments=_report_arguments,
    function="coordinator.results.document.command:command",
)
PLOT = Subcommand(
    name="plot",
    help="draw the pictures of a run or a comparison for a paper: PDF and SVG, as wide as a column or a page",
    example="edge-sdk plot runs/cmp --width column --only accuracy_by_round,accuracy_by_bytes",
    arguments=_plot_arguments,
    function="coordinator.results.plots.plots:command",
)
TABLE = Subcommand(
    name="table",
    help="write the table of a comparison with chosen columns and budgets: text, LaTeX, Markdown or CSV",
    example="edge-sdk table runs/cmp --columns mean,amp,bytes_up --at 5MB,100J --format latex",
    arguments=_table_arguments,
    function="coordinator.results.comparison.compare_files:command",
)
PAGE = Subcommand(
    name="page",
    help="show a finished run in a browser, or follow a running one",
    example="edge-sdk page runs/demo",
    arguments=_page_arguments,
    function="coordinator.results.page.serving:command",
)

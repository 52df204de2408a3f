"""The sub-command compare."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_sdk.cli import Subcommand
from edge_sdk.errors import MissingExtra


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.toml")
    add_grid_options(parser, needs_methods=True, name="compare")
    parser.add_argument("--json", action="store_true", help="print compare.json instead of the table")


def add_grid_options(parser: argparse.ArgumentParser, *, needs_methods: bool, name: str) -> None:
    """Add the options for methods, seeds and the folder of the runs."""
    parser.add_argument(
        "--methods",
        required=needs_methods,
        metavar="A,B,C",
        type=_names,
        help="methods to compare, each with its parameters from [method.NAME]; differences are to the first one, and "
        "the devices alone are always there" + ("" if needs_methods else " (default: the file's own)"),
    )
    parser.add_argument(
        "--seeds", metavar="0,1,2", type=_seeds, help="seeds of data, models and batches (default: the file's own)"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where the runs go (default: runs/NAME-{name}); finished runs that are there are not run again",
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers such as 0,1,2") from None


def _compare(args: argparse.Namespace) -> int:
    from coordinator.report.compare_files import comparison_summary  # noqa: PLC0415  # nothing heavy before the arguments
    from coordinator.report.compare_table import compare_table  # noqa: PLC0415
    from coordinator.report.plots import draw_comparison  # noqa: PLC0415
    from coordinator.report.progress import Progress  # noqa: PLC0415
    from coordinator.report.tables import show_table  # noqa: PLC0415
    from edge_sim import config as configs  # noqa: PLC0415
    from edge_sim.compare import compare  # noqa: PLC0415

    config = configs.load(args.file, args.overrides)
    out = args.out or Path("runs") / f"{config.federation.name}-compare"
    try:
        seeds = args.seeds or (config.federation.seed,)
        comparison = compare(config, args.methods, seeds, out, lambda label: Progress(label, brief=True))
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; finished runs are kept in {out}: the same command goes on from them\n")
        raise
    if args.json:
        sys.stdout.write(json.dumps(comparison_summary(comparison), indent=2) + "\n")
    else:
        show_table(compare_table(comparison), sys.stdout)
        sys.stdout.write(f"\nfigures: {out / 'compare.json'}\n")
        say_drawn(lambda: draw_comparison(comparison, out / "plots"))
    return 0 if comparison.completed else 1


def say_drawn(draw: Callable[[], Sequence[Path]]) -> None:
    """Draw and print where the pictures are; without matplotlib, print that there are none."""
    try:
        pictures = draw()
    except MissingExtra as missing:
        sys.stderr.write(f"no plots: {missing}\n")
    else:
        sys.stdout.write("".join(f"picture: {path}\n" for path in pictures))


COMPARE = Subcommand(
    name="compare",
    help="run the same federation under several methods and compare them",
    example="edge-sdk compare federation.toml --methods fedal,fedmd --seeds 0,1,2",
    arguments=_arguments,
    run=_compare,
)

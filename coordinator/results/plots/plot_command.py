"""The command `edge-sdk plot`: pictures for a paper."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from coordinator.results.comparison.compare_files import is_comparison, read_comparison
from coordinator.results.plots.drawing import chosen_drawings, draw_pictures
from coordinator.results.plots.look import FORMATS, WIDTHS_IN, Look
from coordinator.results.plots.plots import comparison_drawings, run_drawings
from coordinator.results.report.progress_file import is_running
from coordinator.results.report.run_files import read_run
from edge_sdk.at_rest.files import make_folder
from edge_sdk.errors import UsageError


def command(args: argparse.Namespace) -> int:
    """Draw the pictures of a run or a comparison at the width of a column or a page."""
    look = Look(formats=_formats(args.formats), width_in=WIDTHS_IN[args.width], titles=args.titles)
    if is_comparison(args.folder):
        drawings = comparison_drawings(read_comparison(args.folder))
    elif is_running(args.folder):
        raise UsageError(f"{args.folder}: the run is not over; edge-sdk report shows its progress")
    else:
        drawings = run_drawings(read_run(args.folder))
    drawings = chosen_drawings(drawings, args.only)
    out: Path = args.out or args.folder / "plots" / args.width
    make_folder(out, f"--out {out}")
    paths = draw_pictures(drawings, out, look)
    found = (path.with_suffix(f".{name}") for path in paths for name in look.formats)
    sys.stdout.write("".join(f"picture: {path}\n" for path in found))
    return 0


def _formats(names: tuple[str, ...]) -> tuple[str, ...]:
    """The formats of files, each once.  Raises UsageError."""
    for name in names or ("",):
        if name not in FORMATS:
            raise UsageError(f"--format {name}: expected some of {', '.join(FORMATS)}, such as pdf,svg")
    return tuple(dict.fromkeys(names))

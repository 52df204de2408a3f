"""The papers' tables at laptop scale: runs the cells that are missing, and writes docs/results/papers.md.

    python -m benchmarks.papers --list                          # the cells, and which of them have a row
    python -m benchmarks.papers                                 # all that are missing
    python -m benchmarks.papers --table fedhkd-table1 --method fedhkd --seeds 0
    nice -n 19 python -m benchmarks.papers &                    # in the background

A finished cell is a row of docs/results/papers/TABLE.csv, and is not run again unless its settings change; Ctrl-C
loses the running cell alone.  Data are npz files in the folder that EDGE_DATA names, or in the repository's data/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers import cells
from benchmarks.papers.page import page
from benchmarks.papers.tables import SEEDS, TABLES, Table
from coordinator.report import text_files
from edge_sdk.errors import EdgeError

PAGE = Path(__file__).parents[2] / "docs" / "results" / "papers.md"
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None, tables: Sequence[Table] = TABLES, out: Path = PAGE) -> int:
    """Run what is missing and write the page; the exit code: 0, 1 where a cell failed, 2 for bad options.

    out: the page; the CSV files are in the folder of its name beside it.
    """
    parser = _arguments(tables)
    args = parser.parse_args(argv)
    rows = out.with_suffix("")
    wanted = [
        cell
        for table in tables
        if args.table in (None, table.name)
        for cell in cells.cells(table, args.seeds)
        if args.setting in (None, cell.setting.name) and args.method in (None, cell.line.name)
    ]
    if not wanted:
        parser.error("no such cell; --list names them all")
    try:
        if args.list:
            for cell in wanted:
                print(f"{'done' if cells.row_of(cell, cells.rows(cell.table, rows)) else 'missing'}  {cell.name}")
            return 0
        failed = cells.run_missing(wanted, rows, _say, lambda: text_files.replace(out, page(tables, rows)))
        text_files.replace(out, page(tables, rows))
    except KeyboardInterrupt:
        _say("interrupted; finished cells are kept, and the same command goes on")
        return INTERRUPTED
    except EdgeError as error:
        sys.stderr.write(f"papers: {error}\n")
        return error.exit_code
    return 1 if failed else 0


def _say(line: str) -> None:
    print(f"papers: {line}", flush=True)


def _arguments(tables: Sequence[Table]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--table", choices=[table.name for table in tables], help="one table (default: all)")
    parser.add_argument("--setting", help="one setting of it, as --list names them")
    parser.add_argument("--method", help="one line of it, as --list names them")
    parser.add_argument("--seeds", type=_seeds, default=SEEDS, metavar="0,1,2", help="seeds (default: 0,1,2)")
    parser.add_argument("--list", action="store_true", help="name the cells and run none")
    return parser


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        seeds = ()
    if not seeds or min(seeds) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers such as 0,1,2")
    return seeds


if __name__ == "__main__":
    raise SystemExit(main())

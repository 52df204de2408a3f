"""The papers' tables at laptop scale: runs the cells that are missing, and writes docs/results/papers.md.

    python -m benchmarks.papers --page                          # the pages from the rows that stand; runs none
    python -m benchmarks.papers --list                          # the cells in their order, with their CPU seconds
    python -m benchmarks.papers                                 # all that are missing
    python -m benchmarks.papers --table fedhkd-table1 --method fedhkd --seeds 0
    nice -n 19 python -m benchmarks.papers &                    # in the background

A finished cell is a row of docs/results/papers/rows/TABLE.csv, and is not run again unless its settings change; Ctrl-C
loses the running cell alone.  Data are npz files in the folder that EDGE_DATA names, or in the repository's data/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.papers.pages import figures
from benchmarks.papers.pages.page import HOUR_S, ROWS, pages
from benchmarks.papers.running import beforehand, cells
from benchmarks.papers.tables.kinds import SEEDS, Paper
from benchmarks.papers.tables.papers import PAPERS
from coordinator.results.report import text_files
from edge_sdk.cli import OneLineParser
from edge_sdk.errors import EdgeError, StoreError

PAGE = Path(__file__).parents[2] / "docs" / "results" / "papers.md"
INTERRUPTED = 130


def main(
    argv: Sequence[str] | None = None,
    papers: Sequence[Paper] = PAPERS,
    out: Path = PAGE,
    runs: Path = cells.RUNS,
) -> int:
    """Run what is missing and write the pages; the exit code: 0, 1 where a cell failed, 2 for what the user can mend.

    That is a bad option, a damaged row, a missing data file, a place that cannot be written; no cell runs then.
    out: the page; those of the papers and the CSV files are in the folder of its name beside it.  runs: where cells
    keep their run folders.
    """
    tables = [table for paper in papers for table in paper.tables]
    parser = _arguments([table.name for table in tables])
    args = parser.parse_args(argv)
    rows = out.with_suffix("") / ROWS
    wanted = cells.in_order(
        cell
        for table in tables
        if args.table in (None, table.name)
        for cell in cells.cells(table, args.seeds)
        if args.setting in (None, cell.setting.name) and args.method in (None, cell.line.name)
    )
    if not wanted:
        parser.advice = "--list names them all"
        parser.error("no such cell")
    failed = 0
    try:
        if args.list:
            _list(wanted, rows)
        elif args.figures:
            _draw(papers, args.table, out, runs)
        elif args.page:
            _write(papers, out)
        else:
            failed = _run(papers, wanted, out, runs, again=args.again)
    except KeyboardInterrupt:
        _say("interrupted; finished cells are kept, and the same command continues")
        return INTERRUPTED
    except EdgeError as error:
        sys.stderr.write(f"papers: {error}\n")
        return error.exit_code
    return 1 if failed else 0


def _run(papers: Sequence[Paper], wanted: Sequence[cells.Cell], out: Path, runs: Path, *, again: bool) -> int:
    """Run cells and write the pages after each; return the number of cells that failed.  Raises EdgeError."""
    rows = out.with_suffix("") / ROWS
    kept = {table.name: cells.rows(table, rows) for paper in papers for table in paper.tables}
    ahead = [cell for cell in wanted if again or not cells.row_of(cell, kept[cell.table.name])]
    beforehand.find_data(ahead)
    beforehand.find_room(out, (rows, runs, *(cells.run_folder(cell, runs) for cell in ahead)))
    failed = cells.run_missing(wanted, rows, runs, _say, lambda: _write(papers, out), again=again)
    _write(papers, out)
    return failed


def _draw(papers: Sequence[Paper], table: str | None, out: Path, runs: Path) -> None:
    """Draw the figures of one table or of all, and write the pages.  Raises EdgeError."""
    folder = out.with_suffix("")
    beforehand.find_room(out, (folder / figures.FOLDER,))
    named = [each for paper in papers for each in paper.tables if table in (None, each.name)]
    figures.draw(figures.FIGURES, named, figures.Places(folder / ROWS, folder / figures.FOLDER, runs), _say)
    _write(papers, out)


def _write(papers: Sequence[Paper], out: Path) -> None:
    """Write the pages.  Raises UsageError where rows are damaged, StoreError where one cannot be written."""
    for path, text in pages(papers, out).items():
        _replace(path, text)


def _replace(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text_files.replace_file(path, text)
    except OSError as error:
        raise StoreError(f"{path}: cannot write the page ({error.strerror}); free or change the place") from error


def _list(wanted: Sequence[cells.Cell], rows: Path) -> None:
    """Name cells in the order in which they are run, with what they took or are estimated to take."""
    kept = {cell.table.name: cells.rows(cell.table, rows) for cell in wanted}
    done = left = 0.0
    lines = []
    for cell in wanted:
        row = cells.row_of(cell, kept[cell.table.name])
        spent = float(row["cpu_s"]) if row else cells.estimate(cell, kept[cell.table.name])
        done, left = (done + spent, left) if row else (done, left + spent)
        lines.append(f"{'done   ' if row else 'missing'}  {spent:6.0f} s{' ' if row else '?'}  {cell.name}")
    lines.append(f"{done / HOUR_S:.1f} CPU hours done, about {left / HOUR_S:.1f} left")
    sys.stdout.write("\n".join(lines) + "\n")


def _say(line: str) -> None:
    print(f"papers: {line}", flush=True)


def _arguments(tables: Sequence[str]) -> OneLineParser:
    parser = OneLineParser(
        prog="python -m benchmarks.papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--table", choices=tables, help="one table (default: all)")
    parser.add_argument("--setting", help="one setting of it, as --list names them")
    parser.add_argument("--method", help="one line of it, as --list names them")
    parser.add_argument("--seeds", type=_seeds, metavar="0,1,2", help="seeds (default: those planned for each line)")
    parser.add_argument("--again", action="store_true", help="run cells that have a row, too, and replace it")
    parser.add_argument("--list", action="store_true", help="name the cells with their CPU seconds, and run none")
    parser.add_argument("--page", action="store_true", help="write the pages from the rows that stand, and run none")
    parser.add_argument("--figures", action="store_true", help="draw the papers' figures from the runs that were kept")
    return parser


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        seeds = ()
    if not seeds or not {*seeds} <= {*SEEDS}:
        raise argparse.ArgumentTypeError(f"{text!r}: expected some of {','.join(map(str, SEEDS))}")
    return seeds


if __name__ == "__main__":
    raise SystemExit(main())

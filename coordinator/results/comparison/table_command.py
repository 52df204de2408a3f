"""The command `edge-sdk table`: the table of a comparison for a paper or a spreadsheet, with chosen columns."""

from __future__ import annotations

import argparse
import csv
import io
import sys

from coordinator.results.comparison.compare import Comparison
from coordinator.results.comparison.compare_files import is_comparison, read_comparison
from coordinator.results.comparison.paper_table import USUAL, paper_table
from coordinator.results.report import text_files
from coordinator.results.report.tables import Table, latex_text, plain_text
from coordinator.results.report.text_files import as_text
from edge_sdk.at_rest.files import unwritable
from edge_sdk.errors import UsageError


def command(args: argparse.Namespace) -> int:
    """Write the table to the terminal, or into a file."""
    if not is_comparison(args.folder):
        raise UsageError(f"{args.folder}: holds no comparison; edge-sdk compare makes one")
    comparison: Comparison = read_comparison(args.folder)
    columns = (*(args.columns or (USUAL if not args.at else ("mean",))), *args.at)
    table = paper_table(
        comparison,
        columns,
        latex=args.format == "latex",
        caption=args.caption,
        marked=args.format in ("latex", "markdown"),
    )
    text = {"latex": latex_text, "markdown": markdown_text, "csv": _csv_text, "text": plain_text}[args.format](table)
    if args.out is None:
        sys.stdout.write(text)
        return 0
    try:
        text_files.replace_file(args.out, text)
    except OSError as error:
        raise unwritable(error, f"{args.out}: cannot be written ({error.strerror}); give --out another file") from None
    sys.stderr.write(f"table: {args.out}\n")
    return 0


def markdown_text(table: Table) -> str:
    """The table as Markdown, with the caption and notes below it."""
    heads = [column.name for column in table.columns]
    rules = ["---:" if column.right else "---" for column in table.columns]
    rows = [[cell.replace("|", "\\|") for cell in row] for row in (heads, rules, *table.rows)]
    below = "".join(f"\n{line}\n" for line in (table.caption, *table.notes))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n{below}"


def _csv_text(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows((as_text(name), *cells) for name, *cells in table.rows)  # the other cells are figures
    return text.getvalue()

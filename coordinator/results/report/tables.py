"""A table and its renderers: aligned plain text, rich in a terminal, and LaTeX."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

from edge_sdk.terminal import columns, folded, room_of

if TYPE_CHECKING:
    from rich.table import Table as RichTable

UNKNOWN = "-"
"""A cell whose value is not known."""
_GAP = 2
"""Characters between two columns."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and how its cells are shown."""

    name: str
    right: bool = False
    """Align cells to the right, as numbers are."""
    signed: bool = False
    """Colour a loss red and a gain green where the terminal has colours."""
    optional: int = 0
    """A narrow terminal leaves out columns, 1 first; 0 is always shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The contents of a table, all as text."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    """One cell for each column."""
    last: tuple[str, ...] = ()
    """A row below a rule, such as means, or empty."""
    headline: str = ""
    """The most important line below the table, or empty."""
    notes: tuple[str, ...] = ()
    """Further lines below the table."""
    everything: str = ""
    """The file to look into for the columns that a narrow terminal leaves out."""
    caption: str = ""
    """The caption, which only LaTeX shows."""

    def widths(self) -> list[int]:
        """The characters that each column needs."""
        body = (*self.rows, self.last) if self.last else self.rows
        headings = tuple(column.name for column in self.columns)
        return [max(map(len, cells)) for cells in zip(headings, *body, strict=True)]

    def without(self, names: Sequence[str]) -> Table:
        """The table without the columns of these names."""
        kept = [place for place, column in enumerate(self.columns) if column.name not in names]
        return Table(
            columns=tuple(self.columns[place] for place in kept),
            rows=tuple(tuple(row[place] for place in kept) for row in self.rows),
            last=tuple(self.last[place] for place in kept) if self.last else (),
            headline=self.headline,
            notes=self.notes,
            everything=self.everything,
            caption=self.caption,
        )


def show_table(table: Table, stream: TextIO) -> None:
    """Write the table with rich to a terminal where rich is installed, else as plain text."""
    if stream.isatty() and importlib.util.find_spec("rich") is not None:
        _show_rich(table, stream)
    else:
        stream.write(plain_text(table, room_of(stream)))


def plain_text(table: Table, room: int | None = None) -> str:
    """The table and the lines below it as aligned text; where that does not fit, a few lines for each row.

    room: the width in characters, or None for any.
    """
    if room is not None:
        left_out = _left_out(table, room)
        more = f"too narrow for {', '.join(left_out)}" + (f": see {table.everything}" if table.everything else "")
        table = replace(table.without(left_out), notes=(*table.notes, more) if left_out else table.notes)
        if sum(table.widths()) + _GAP * (len(table.columns) - 1) > room:
            rows = [tuple(column.name for column in table.columns), *table.rows, *([table.last] if table.last else [])]
            return "\n".join([columns(rows, room), "", *_below(table, room)]) + "\n"
    widths = table.widths()
    rule = (" " * _GAP).join("-" * width for width in widths)
    lines = [_aligned(tuple(column.name for column in table.columns), table, widths), rule]
    lines += [_aligned(row, table, widths) for row in table.rows]
    lines += [*([rule] if table.rows else []), _aligned(table.last, table, widths)] if table.last else []
    return "\n".join([*lines, "", *_below(table, room)]) + "\n"


def _below(table: Table, room: int | None) -> list[str]:
    """The lines below a table, broken where they are wider than the terminal."""
    lines = [*filter(None, [table.headline]), *table.notes]
    return [folded(line, room) for line in lines]


def latex_text(table: Table) -> str:
    """The table as a LaTeX `table` environment; it needs the package booktabs.  Cells and notes are LaTeX already."""
    alignment = "".join("r" if column.right else "l" for column in table.columns)
    cells = [tuple(column.name for column in table.columns), *table.rows]
    heads, *rows = (" & ".join(row) + r" \\" for row in cells)
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            r"\begin{table}",
            rf"\caption{{{table.caption}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            heads,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {note}" for note in table.notes),
            r"\end{table}",
            "",
        ]
    )


def _aligned(cells: Sequence[str], table: Table, widths: Sequence[int]) -> str:
    padded = (
        cell.rjust(width) if column.right else cell.ljust(width)
        for column, cell, width in zip(table.columns, cells, widths, strict=True)
    )
    return (" " * _GAP).join(padded).rstrip()


def _show_rich(table: Table, stream: TextIO) -> None:
    from rich.console import Console  # an optional package: only where a table is drawn
    from rich.text import Text

    console = Console(file=stream)
    left_out = _left_out(table, console.width)
    console.print(_rich_table(table.without(left_out)))
    if left_out:
        more = f", or see {table.everything}" if table.everything else ""
        console.print(Text(f"too narrow for {', '.join(left_out)}: widen the terminal{more}", style="dim"))
    if table.headline:
        console.print(Text(table.headline, style="bold"))
    for line in table.notes:
        console.print(Text(line))


def _rich_table(table: Table) -> RichTable:
    from rich import box  # an optional package: only where a table is drawn
    from rich.table import Table as NewTable
    from rich.text import Text

    drawn = NewTable(box=box.SIMPLE_HEAD, show_footer=bool(table.last), collapse_padding=True, pad_edge=False)
    for place, column in enumerate(table.columns):
        drawn.add_column(
            Text(column.name),
            footer=Text(table.last[place] if table.last else ""),
            justify="right" if column.right else "left",
            no_wrap=True,
        )
    for row in table.rows:
        cells = zip(row, table.columns, strict=True)
        drawn.add_row(*(Text(cell, style=_colour(cell) if column.signed else "") for cell, column in cells))
    return drawn


def _left_out(table: Table, room: int) -> list[str]:
    """The names of the columns that a terminal with `room` characters must do without."""
    optional = sorted((column.optional, column.name) for column in table.columns if column.optional)
    names = [name for _, name in optional]
    for count in range(len(names)):
        widths = table.without(names[:count]).widths()
        if sum(widths) + _GAP * len(widths) <= room:
            return names[:count]
    return names


def _colour(cell: str) -> str:
    if cell == UNKNOWN:
        return ""
    return "red" if cell.startswith("-") else "green"

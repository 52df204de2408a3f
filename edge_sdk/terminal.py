"""Text for terminals of any width: aligned columns where they fit, and otherwise a few lines for each row."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Sequence
from typing import TextIO

GAP = "  "


def room_of(stream: TextIO) -> int | None:
    """Return the width of a terminal in characters, COLUMNS, or None for a file or a pipe, of any width."""
    told = os.environ.get("COLUMNS", "")
    return shutil.get_terminal_size().columns if stream.isatty() or told.isdecimal() else None


def columns(rows: Sequence[Sequence[str]], room: int | None = None) -> str:
    """Return rows as text; rows: the headings first.  Where they do not fit, each row is a heading and lines below it.

    room: the width in characters, or None for any.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if room is None or sum(widths) + len(GAP) * (len(widths) - 1) <= room:
        return "\n".join(
            GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )
    head, *body = rows
    wide = max(map(len, head[1:]), default=0)
    lines = []
    for row in body:
        lines += textwrap.wrap(row[0], room) or [""]
        for name, cell in zip(head[1:], row[1:], strict=True):
            begin = f"{GAP}{name:{wide}}{GAP}"
            further = " " * min(len(begin), room // 2)
            lines += textwrap.wrap(cell, room, initial_indent=begin, subsequent_indent=further)
    return "\n".join(lines)


def folded(line: str, room: int | None = None) -> str:
    """Return a line, broken between words where it does not fit; room: the width in characters, or None for any."""
    return line if room is None else textwrap.fill(line, room, break_on_hyphens=False)


def indented(line: str, room: int | None = None) -> str:
    """Return a line behind a gap, broken as `folded` does; its further parts stand behind a wider one."""
    if room is None:
        return f"{GAP}{line}"
    return textwrap.fill(line, room, initial_indent=GAP, subsequent_indent=2 * GAP, break_on_hyphens=False)


FIRST_LINES = 10
"""Lines that may come at once, so that a handful of devices that were set up wrongly are each named."""
EVERY_S = 60.0
"""Seconds after which one more line may come."""


class LineBudget:
    """Limits lines about what may happen again and again: writes the first, then one a minute with a count."""

    def __init__(self, first: int = FIRST_LINES) -> None:
        """first: the number of lines that may come at once."""
        self._most, self._left, self._since_s, self._omitted = first, float(first), 0.0, 0

    def line(self, text: str, now_s: float) -> str | None:
        """Return the line to write now, or None."""
        self._left = min(self._most, self._left + max(0.0, now_s - self._since_s) / EVERY_S)
        self._since_s = now_s
        if self._left < 1.0:
            self._omitted += 1
            return None
        self._left -= 1.0
        omitted, self._omitted = self._omitted, 0
        return f"{text} (and {omitted} more such lines since the last one)" if omitted else text

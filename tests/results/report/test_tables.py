"""One table, rendered as plain text, with rich, and as LaTeX."""

import io
import itertools
import re
import sys

import pytest
import synthetic

from coordinator.results.report.run_table import run_table
from coordinator.results.report.tables import Column, Table, latex_text, plain_text, show_table

TABLE = Table(
    columns=(Column("name"), Column("kind", optional=1), Column("gain", right=True, signed=True)),
    rows=(("a", "[bold]long kind[/bold]", "+1.5"), ("longer name", "-", "-20.0"), ("c", "", "-")),
    last=("mean", "", "-9.2"),
    headline="the headline",
    notes=("[red]not markup[/red] " + "long " * 40 + "end",),
    everything="all.csv",
)


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """Shows a table on a terminal of so many columns."""
    pytest.importorskip("rich")

    def show(table, columns):
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.delenv("NO_COLOR", raising=False)
        stream = Terminal()
        show_table(table, stream)
        return stream.getvalue()

    return show


def test_plain_text_is_aligned():
    table = run_table(synthetic.result())
    lines = plain_text(table).splitlines()
    head, rule = lines[0], lines[1]
    assert head.split() == [column.name for column in table.columns]
    assert set(rule) == {"-", " "}
    edges = [index for index, (here, after) in enumerate(itertools.pairwise(rule)) if here + after == "- "]
    for line in lines[2:10]:
        assert len(line) == len(rule)
        assert all(line[edge + 1 : edge + 3] == "  " for edge in edges)
    assert lines[10] == rule
    assert lines[11].startswith("mean")
    assert all(line == line.rstrip() for line in lines)
    assert lines[13] == table.headline
    assert lines[14:] == list(table.notes)


def test_a_table_without_a_last_row_has_one_rule():
    text = plain_text(Table(columns=(Column("a"), Column("b", right=True)), rows=(("x", "1"), ("long", "22"))))
    assert text.splitlines() == ["a      b", "----  --", "x      1", "long  22", ""]


def test_what_is_no_terminal_gets_plain_text():
    stream = io.StringIO()
    show_table(TABLE, stream)
    assert stream.getvalue() == plain_text(TABLE)


def test_without_rich_a_terminal_gets_plain_text(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    show_table(TABLE, stream)
    assert stream.getvalue() == plain_text(TABLE, room=80)


def test_with_rich_every_cell_and_line_is_there_and_nothing_is_markup(on_terminal):
    text = on_terminal(TABLE, 400)
    for cell in {cell for row in (*TABLE.rows, TABLE.last) for cell in row}:
        assert cell in text
    assert TABLE.headline in text
    assert TABLE.notes[0] in text
    assert TABLE.everything not in text


def test_rich_colours_gains_and_losses_only(on_terminal):
    text = on_terminal(TABLE, 160)
    assert re.search(r"\x1b\[32m *\+1\.5\x1b\[0m", text)
    assert re.search(r"\x1b\[31m *-20\.0\x1b\[0m", text)
    assert text.count("\x1b[31m") == text.count("\x1b[32m") == 1


@pytest.mark.parametrize("columns", [60, 80, 100, 116, 117, 200])
def test_a_narrow_terminal_loses_optional_columns_and_no_figures(on_terminal, columns):
    table = run_table(synthetic.result())
    text = on_terminal(table, columns).split("mean accuracy")[0]
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert (table.everything in text) == (columns < 117)
    for row in table.rows:
        for column, cell in zip(table.columns, row, strict=True):
            assert column.optional or cell in text


def test_latex_has_a_line_for_each_row_and_aligns_as_the_columns_do():
    text = latex_text(Table(columns=TABLE.columns, rows=TABLE.rows, caption="said"))
    assert r"\begin{tabular}{llr}" in text
    assert r"\caption{said}" in text
    assert text.count(r"\\") == 1 + len(TABLE.rows)
    assert r"- & -20.0 \\" in text

"""Tables that keep within the width of a terminal."""

from __future__ import annotations

import io

import pytest

from coordinator.results.report.tables import Column, Table, plain_text
from edge_sdk.cli import main
from edge_sdk.terminal import columns, indented, room_of

ROWS = [("name", "what", "why"), ("a", "x" * 30, "because"), ("b", "y", "")]


def test_rows_that_fit_are_aligned_and_others_are_lines_that_lose_nothing() -> None:
    assert columns(ROWS) == columns(ROWS, 60)
    assert columns(ROWS).splitlines()[1].split() == ["a", "x" * 30, "because"]
    narrow = columns(ROWS, 40).splitlines()
    assert narrow[0] == "a"
    assert {"x" * 30, "because", "y"} <= {line.split()[-1] for line in narrow}
    assert max(map(len, narrow)) <= 40


def test_the_width_is_that_of_the_terminal_or_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert room_of(io.StringIO()) is None
    monkeypatch.setenv("COLUMNS", "60")
    assert room_of(io.StringIO()) == 60


def test_an_indented_line_is_broken_where_it_does_not_fit() -> None:
    line = "fedavg: train.learning_rate = 0.1 (validation 90.0 %, best of 3)"
    assert indented(line) == indented(line, 200) == f"  {line}"
    first, *further = indented(line, 40).splitlines()
    assert max(map(len, [first, *further])) <= 40
    assert further
    assert all(each.startswith("    ") for each in further)


@pytest.mark.parametrize("room", [30, 60, 200])
def test_a_table_keeps_within_its_room_and_says_what_it_leaves_out(room: int) -> None:
    heads = (Column("device"), Column("board", optional=1), Column("model", optional=2), Column("accuracy", right=True))
    rows = (("device-00", "rpi-zero-2w" * 2, "a model with a long name", "90.0 %"),)
    table = Table(columns=heads, rows=rows, headline="a line of words " * 5, everything="devices.csv")
    text = plain_text(table, room)
    assert max(map(len, text.splitlines())) <= room
    assert "90.0 %" in text
    assert ("devices.csv" in text) == (room < 200)
    assert plain_text(table, 200).splitlines()[:3] == plain_text(table).splitlines()[:3]


def test_commands_keep_within_sixty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["methods"]) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if not line.startswith("  ")]  # a value may be longer than a line
    assert max(map(len, rows)) <= 60
    assert main(["boards"]) == 0
    assert "rpi-zero-2w\n" in capsys.readouterr().out

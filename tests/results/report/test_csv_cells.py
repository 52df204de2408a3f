"""Cells of CSV files: text that a device sent is no formula in a spreadsheet, and numbers stay numbers."""

from __future__ import annotations

import csv
import io

import pytest

from coordinator.results.comparison.compare_files import _csv_text
from coordinator.results.report.tables import Column, Table
from coordinator.results.report.text_files import csv_text

CELLS = {
    "=HYPERLINK(1)": "'=HYPERLINK(1)",
    "+cmd|' /C calc'!A0": "'+cmd|' /C calc'!A0",
    "-2+3+cmd": "'-2+3+cmd",
    "@SUM(1)": "'@SUM(1)",
    "\t=1": "'\t=1",
    "-1.5": "-1.5",
    "+0.25": "+0.25",
    "-1e-7": "-1e-7",
    "device-01": "device-01",
    "": "",
}


@pytest.mark.parametrize("cell", CELLS)
def test_a_text_is_no_formula(cell: str) -> None:
    (row,) = csv.DictReader(io.StringIO(csv_text(("a",), [{"a": cell}])))
    assert row["a"] == CELLS[cell]
    table = Table(columns=(Column("a"), Column("b")), rows=((cell, "x"),))
    assert list(csv.reader(io.StringIO(_csv_text(table))))[1][0] == CELLS[cell]


def test_numbers_stay_numbers() -> None:
    assert csv_text(("a", "b", "c"), [{"a": -1.5, "b": -3, "c": None}]) == "a,b,c\n-1.5,-3,\n"

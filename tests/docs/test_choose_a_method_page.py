"""docs/results/choose-a-method.md quotes rows that stand on the pages that it links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge_sdk.methods.registry import method_names

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = RESULTS / "choose-a-method.md"
BODY = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("line", BODY, ids=lambda line: cells(line)[0][:30])
def test_what_a_line_quotes_stands_in_one_row_of_its_page(line: str) -> None:
    *_, quoted, link = cells(line)
    (page,) = re.findall(r"\]\(([a-z-]+\.md)\)", link)
    rows = [row.replace("`", "") for row in (RESULTS / page).read_text(encoding="utf-8").splitlines()]
    quotes = re.findall(r"`([^`]+)`", quoted)
    assert quotes
    for quote in quotes:
        name, _, figures = quote.partition(": ")
        wanted = [f"| {name} |", *figures.split(", ")]
        assert any(all(part in row for part in wanted) for row in rows), quote


def test_every_method_that_is_named_is_registered() -> None:
    for line in BODY:
        for word in re.findall(r"`([a-z_]+)`", cells(line)[4]):
            assert word in method_names()

"""docs/results/choose-a-method.md quotes rows of the sections that it links; the short page before it quotes that one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge_sdk.methods.contract.registry import method_names
from edge_sim.projects.methods_command import BEGIN_WITH

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = RESULTS / "choose-a-method.md"
SHORT = RESULTS.parent / "how-to" / "choose-a-method.md"
BODY = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def section(page: str, anchor: str) -> list[str]:
    """Return the lines of a page below the heading that an anchor leads to, up to the next of its level; all without one."""
    lines = (RESULTS / page).read_text(encoding="utf-8").splitlines()
    if not anchor:
        return lines
    levels = {at: len(line) - len(line.lstrip("#")) for at, line in enumerate(lines) if re.match("#+ ", line)}
    (begin,) = [at for at in levels if fragment(lines[at].lstrip("# ")) == anchor]
    ends = [at for at, level in levels.items() if at > begin and level <= levels[begin]]
    return lines[begin : min(ends, default=len(lines))]


def fragment(title: str) -> str:
    return "".join(sign for sign in title.lower().replace(" ", "-") if sign.isalnum() or sign in "-_")


def figures_of(row: str) -> set[str]:
    """Return a row's cells, and the parts of those that hold several, such as `1.5 kB, 1.7 kB`."""
    return {part for cell in cells(row) for part in (cell, *cell.split(", "))}


@pytest.mark.parametrize("line", BODY, ids=lambda line: cells(line)[0][:60])
def test_what_a_line_quotes_stands_in_one_row_of_its_section(line: str) -> None:
    *_, quoted, link = cells(line)
    ((page, anchor),) = re.findall(r"\]\(([a-z-]+\.md)#?([\w-]*)\)", link)
    rows = [row.replace("`", "") for row in section(page, anchor) if row.startswith("|")]
    quotes = re.findall(r"`([^`]+)`", quoted)
    assert quotes
    for quote in quotes:
        name, _, figures = quote.partition(": ")
        named = [row for row in rows if f"| {name} |" in row]
        wanted = set(re.split(r", (?![^(]*\))", figures))
        assert any(wanted <= figures_of(row) for row in named), quote


def test_every_section_that_it_links_is_one() -> None:
    for page, anchor in re.findall(r"\]\(([a-z-]+\.md)#([\w-]+)\)", PAGE.read_text(encoding="utf-8")):
        assert section(page, anchor)


def test_every_method_that_is_named_is_registered() -> None:
    for line in BODY:
        for word in re.findall(r"`([a-z_]+)`", cells(line)[4]):
            assert word in method_names()


def test_the_short_page_has_at_most_ten_rows_with_the_figures_of_the_long_one() -> None:
    rows = [cells(line) for line in SHORT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    assert len(rows) <= 10
    evidence = [line for line in BODY if "`" in line]
    for _, method, _, measured in rows:
        name = re.findall(r"`(\w+)`", method)[0]
        figures = re.findall(r"\d+\.\d", measured)
        assert figures
        assert any(name in line and all(figure in line for figure in figures) for line in evidence), (name, figures)


def test_the_short_page_begins_with_the_methods_that_the_program_names() -> None:
    rows = [cells(line) for line in SHORT.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][1:]
    named = {re.findall(r"`(\w+)`", method)[0] for _, method, _, _ in rows}
    assert named == {method.split(",")[0] for _, method in BEGIN_WITH}

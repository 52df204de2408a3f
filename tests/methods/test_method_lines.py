"""A method stays small: what docs/results/methods.md tables is held here, too."""

from __future__ import annotations

import runpy
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = runpy.run_path(str(ROOT / "benchmarks" / "methods" / "method_lines.py"))
SOURCE = '''"""Module."""
# comment

x = (  # one
    1,
)


def f():
    """Told."""
    return """a
    b"""


y = 2
"""Told, too,
in two lines."""
'''


def test_only_code_counts() -> None:
    assert LINES["code_lines"](SOURCE) == 3 + 3 + 1


def test_no_method_outgrows_its_bounds() -> None:
    counts = {name: found["lines"] for name, found in LINES["counted"]().items()}
    assert len(counts) > 20
    assert max(counts.values()) <= LINES["MOST_LINES"], counts
    assert statistics.median(counts.values()) <= LINES["MEDIAN_LINES"]


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "results" / "methods.md").read_text(encoding="utf-8")
    table = page.split(LINES["BEGIN"])[1].split(LINES["END"])[0]
    assert "| method | lines" in table
    assert "| **maximum** |" in table
    assert LINES["written"](LINES["written"](page)) == LINES["written"](page)

"""docs/reference/boards.md and scenarios.md say what profiles and tables say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_are_what_the_profiles_and_the_tables_say():
    for name, text in runpy.run_path(str(DOCS / "gen_fleet.py"))["pages"]().items():
        assert (DOCS / "reference" / name).read_text(encoding="utf-8") == text, "run docs/gen_fleet.py"
        assert name == "boards.md" or not re.search(r"\|  \|$", text, re.MULTILINE), f"{name}: a key without words"

"""docs/reference/boards.md says what the profiles say."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_the_profiles_say():
    written = (DOCS / "reference" / "boards.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(DOCS / "gen_boards.py"))["page"](), "run docs/gen_boards.py"

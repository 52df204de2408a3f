"""docs/reference/boards.md, scenarios.md and configuration.md say what profiles and tables say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_are_what_the_profiles_and_the_tables_say():
    for name, text in runpy.run_path(str(DOCS / "gen_fleet.py"))["pages"]().items():
        assert (DOCS / "reference" / name).read_text(encoding="utf-8") == text, "run docs/gen_fleet.py"
        assert name == "boards.md" or not re.search(r"\|  \|$", text, re.MULTILINE), f"{name}: a key without words"


def test_the_configuration_page_is_what_the_tables_say():
    text = runpy.run_path(str(DOCS / "gen_configuration.py"))["page"]()
    assert (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8") == text, (
        "run docs/gen_configuration.py"
    )
    assert not re.search(r"\|  \|$", text, re.MULTILINE), "a key without words"
    rows = {row[1]: row[2:4] for row in (re.split(r" *\| *", line) for line in text.splitlines()) if len(row) > 3}
    assert rows["`quorum`"][0] == "1 to 10^6"
    assert rows["`optimiser`"] == ["`sgd`, `adam`", "adam"]
    assert rows["`seed`"] == ["0 to 2^32 - 1", "0"]

"""Every page that a script writes stands as the script writes it."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SCRIPTS = sorted(DOCS.glob("gen_*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_the_page_is_what_its_script_writes(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])  # scripts look beside themselves
    found = runpy.run_path(str(script))
    several = {found["PAGES"] / name: text for name, text in found["pages"]().items()} if "PAGES" in found else {}
    for path, text in (several or {found["PAGE"]: found["page"]()}).items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run scripts/docs --write"

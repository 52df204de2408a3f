"""Writes docs/reference/planted-bugs.md from the list in tests/planted/planted_bugs.py."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).parent / "reference" / "planted-bugs.md"

HEAD = """\
# Planted bugs

Possible mistakes, each with the test that notices it. Each is planted in a copy of the repository, and
its test must fail there: a few in every run of the tests, all with `scripts/test --all`. `docs/gen_planted_bugs.py`
writes this page from `tests/planted/planted_bugs.py`; [promises](../promises.md) lists the promises.

If you change the code of a bug, change the bug, too: a bug that can no longer be planted fails the tests.

| bug | planted in | noticed by | promise |
|---|---|---|---|
"""


def page() -> str:
    """Return the page: one row for each bug, in the order of the list."""
    sys.path.insert(0, str(ROOT / "tests" / "planted"))
    from planted_bugs import BUGS

    rows = (f"| {bug.name} | `{bug.file}` | `{bug.test}` | {bug.promise} |\n" for bug in BUGS)
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""Writes docs/reference/contents.md: every page of the site, and the tests that guard it.

A test guards a page by itself if its source names the page, or all pages of its folder; some guard all of them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "reference" / "contents.md"
FOLDERS = {
    "": "Start",
    "tutorial": "Tutorial",
    "how-to": "How-to",
    "explanation": "Explanation",
    "reference": "Reference",
    "reference/api": "Reference: API",
    "reference/methods": "Reference: methods",
    "results": "Results",
    "results/papers": "Results: the papers",
    "examples": "Examples",
}
EVERY_GENERATOR = "tests/docs/test_generated_pages.py"
"""The test that runs every docs/gen_*.py."""

HEAD = """\
# The pages, and what guards each of them

`tests/docs/test_site.py` builds the site and guards all pages alike: every link and anchor leads somewhere, every
page is in the navigation, nothing is loaded from another address, and lists, tables and blocks are the same for other
readers of Markdown. `tests/docs/test_code_blocks.py` reads the blocks of all pages but results and decisions: Python
compiles and its imports exist, TOML is TOML, and every `edge-sdk` command is one. Beside these, the tests in the
second column read a page by name, run its commands, or write it again and compare. [Decisions](../adr/README.md)
record what was thought at a time, and have no test of their own. `docs/gen_contents.py` writes this page.
"""


def page() -> str:
    """Return the whole page."""
    tests = {path.relative_to(ROOT).as_posix(): _flat(path.read_text(encoding="utf-8")) for path in _tests()}
    parts = [HEAD]
    for folder, title in FOLDERS.items():
        rows = [_row(path, tests) for path in _pages(folder)]
        parts += [f"## {title}\n", "| page | guarded by | written by |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def _tests() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def _pages(folder: str) -> list[Path]:
    if folder == "examples":
        return [page for name in ("README.md", "*/README.md") for page in sorted((ROOT / "examples").glob(name))]
    return sorted((DOCS / folder).glob("*.md"))


def _flat(source: str) -> str:
    """Return a test's source with paths in one form: `"docs" / "how-to" / "tls.md"` becomes docs/how-to/tls.md."""
    return re.sub(r"""["']\s*/\s*["']""", "/", source)


def _row(path: Path, tests: dict[str, str]) -> str:
    name = path.relative_to(ROOT).as_posix()
    generator = _generator(path)
    found = [test for test, source in tests.items() if _names(test, source, name, generator)]
    found += [EVERY_GENERATOR] * bool(generator and EVERY_GENERATOR not in found)
    by = ", ".join(f"`{test}`" for test in found)
    return f"| [{_title(path)}]({_from_here(path)}) | {by} | {f'`{generator}`' if generator else ''} |"


def _names(test: str, source: str, page: str, generator: str) -> bool:
    """Whether a test names the page, its generator, its example's folder, or all pages of its folder."""
    folder = page.rpartition("/")[0]
    if folder.startswith("examples/"):
        own = re.escape(folder.removeprefix("examples/"))
        beside = test.startswith("tests/examples/") and bool(re.search(rf"""["']{own}["']""", source))
        return beside or bool(re.search(rf"""examples/{own}[/"']""", source))
    shown = page if page.count("/") == 1 else page.removeprefix("docs/")
    return bool(generator and generator in source) or shown in source or f'{folder}").glob("*.md")' in source


def _generator(path: Path) -> str:
    """Return the script that writes a page, as the page itself says."""
    found = re.search(r"`(docs/gen_\w+\.py)`", path.read_text(encoding="utf-8")[:3000])
    return found[1] if found and (ROOT / found[1]).is_file() else ""


def _from_here(path: Path) -> str:
    return Path(os.path.relpath(path, PAGE.parent)).as_posix()


def _title(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

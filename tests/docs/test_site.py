"""The site builds without the network, its links lead somewhere, every page is found, and nothing comes from outside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

for package in ("mkdocs", "material", "mkdocstrings"):
    pytest.importorskip(package)
pytestmark = [pytest.mark.costly, pytest.mark.timeout(400)]  # the build takes some 10 s of CPU

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LOADS = re.compile(r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["']([^"']+)|<link\b[^>]*\bhref=["']([^"']+)""")
COUNTED = ("li", "table", "pre", "blockquote", "img", "h2", "h3")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning, such as a link or an anchor that leads nowhere, ends the build."""
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(made)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "true", "http_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return made


def built(site: Path, page: Path) -> Path:
    """Where a page of docs/ is on the site."""
    name = page.relative_to(DOCS).with_suffix(".html")
    return site / (name.with_name("index.html") if name.name == "README.html" else name)


def test_every_page_is_in_the_navigation(site: Path) -> None:
    shown = (site / "index.html").read_text(encoding="utf-8")
    links = {
        link.partition("#")[0] for link in re.findall(r'class="md-nav__link[^"]*"[^>]*href="|href="([^"#]+)', shown)
    }
    for page in sorted(DOCS.rglob("*.md")):
        name = built(site, page).relative_to(site).as_posix()
        assert (site / name).is_file()
        assert name in links or page == DOCS / "index.md", f"{name}: add it to nav in mkdocs.yml"
    for readme in sorted((ROOT / "examples").glob("*/README.md")):
        assert f"examples/{readme.parent.name}.html" in links


def test_nothing_is_loaded_from_another_address(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = [one or other for one, other in LOADS.findall(text)]
        assert loaded
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet


def test_the_search_knows_the_words_of_pages(site: Path) -> None:
    found = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    assert any("W17" in entry["title"] for entry in found)
    assert any(entry["location"].startswith("reference/api/agent.html#edge_sdk.Agent.predict") for entry in found)
    messages = [entry["text"] for entry in found if entry["location"].startswith("reference/messages.html#")]
    assert any("add --resume" in text for text in messages)


def test_the_licences_of_what_is_shipped_are_there() -> None:
    for folder in ("katex", "mermaid", "iframe-worker"):
        assert "MIT" in (DOCS / "assets" / "vendor" / folder / "LICENSE").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Counts the tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag: str, _attributes: object) -> None:
        if tag in COUNTED:
            self.counts[tag] += 1


def test_pages_look_alike_on_the_site_and_elsewhere(site: Path) -> None:
    """Two dialects of Markdown differ in lists and blocks: a page must mean the same in both."""
    markdown_it = pytest.importorskip("markdown_it")
    reader = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table")
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if ":::" in text:  # filled in from docstrings
            continue
        article = re.search(r"<article[^>]*>(.*?)</article>", built(site, page).read_text(encoding="utf-8"), re.DOTALL)
        assert article
        plain, shown = Tags(reader.render(text)).counts, Tags(article[1]).counts
        assert shown == plain, page


TYPESET = """
texts => texts.map(text => {
  try { katex.renderToString(text, {displayMode: true, strict: "error"}); return ""; }
  catch (error) { return `${text}: ${error.message}`; }
})
"""


def equations() -> list[str]:
    """Every equation of the documentation, between dollars."""
    texts = "\n".join(
        page.read_text(encoding="utf-8") for page in sorted((DOCS / "reference" / "methods").glob("*.md"))
    )
    texts = re.sub(r"`[^`\n]*`", "", texts)
    found = re.findall(r"\$\$(.+?)\$\$", texts, re.DOTALL)
    found += re.findall(r"\$([^$\n]+?)\$", re.sub(r"\$\$.+?\$\$", "", texts, flags=re.DOTALL))
    assert len(found) > 40
    return found


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH")
def test_a_browser_shows_it_without_the_network(site: Path) -> None:
    """Equations and diagrams are drawn, and a search finds a page, from files alone."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.set_default_timeout(90_000)  # of a busy machine
        outside: list[str] = []
        wrong: list[str] = []
        page.on("request", lambda asked: outside.append(asked.url) if asked.url.startswith(("http", "ws")) else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((site / "reference" / "methods" / "fml.html").as_uri())
        page.wait_for_selector(".katex")
        wrong += [fault for fault in page.evaluate(TYPESET, equations()) if fault]
        for name, diagrams in (("reference/states.html", 2), ("explanation/life-of-a-round.html", 1)):
            page.goto((site / name).as_uri())
            page.wait_for_selector("div.diagram svg")
            assert page.locator("div.diagram svg").count() == diagrams
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").first.fill("quarantine")
        page.wait_for_selector(".md-search-result__item a")
        assert page.locator(".md-search-result__item a").count() > 1
        browser.close()
    assert outside == []
    assert wrong == []

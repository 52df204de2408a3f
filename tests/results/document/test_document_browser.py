"""The HTML report in a browser: sorted by keys alone, light and dark, nothing serious for axe, no error, no request."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import synthetic

from coordinator.results.document.jinja2_document import write_document
from coordinator.results.document.values import run_section
from coordinator.results.plots.plots import run_drawings

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("matplotlib")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(__file__).parents[1] / "page" / "axe" / "axe.min.js"

pytestmark = [
    pytest.mark.long,
    pytest.mark.draws,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt install chromium)"),
]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    path = tmp_path_factory.mktemp("document") / "report.html"
    result = synthetic.result(count=12, rounds=4)
    write_document([(run_section(result, "demo", "[federation]", "part-1"), run_drawings(result))], path)
    return path


@pytest.fixture
def opened(browser, document):
    faults, addresses, contexts = [], [], []

    def open_document(**context):
        contexts.append(browser.new_context(bypass_csp=True, **context))
        page = contexts[-1].new_page()
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(document.as_uri())
        return page

    yield open_document
    for context in contexts:
        context.close()
    assert faults == []
    assert set(addresses) <= {document.as_uri()}


def test_a_table_is_sorted_by_keys_alone(opened):
    page = opened()
    table = page.locator("table").first
    table.get_by_role("button", name="sent").focus()
    page.keyboard.press("Enter")
    sent = [
        float(each)
        for each in table.locator("tbody td[data-sort]").evaluate_all(
            "cells => cells.filter(cell => cell.closest('table').tHead.rows[0].cells[cell.cellIndex].innerText.startsWith('sent'))"
            ".map(cell => cell.dataset.sort)"
        )
    ]
    assert len(sent) == 12
    assert sent == sorted(sent)
    page.keyboard.press("Enter")
    sync_api.expect(table.get_by_role("columnheader", name="sent")).to_have_attribute("aria-sort", "descending")
    first = table.locator("tbody tr").first.locator("th").inner_text()
    assert first != "device-00" or sent[0] == sent[-1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(opened, scheme, width):
    page = opened(color_scheme=scheme, viewport={"width": width, "height": 900})
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run().then(found => found.violations.map(each => [each.impact, each.id]))")
    assert [each for each in found if each[0] in ("serious", "critical")] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width

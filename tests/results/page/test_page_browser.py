"""The page in a browser: a device appears, fails and comes back; keys alone; nothing leaves this machine.

Needs Debian's chromium, which Playwright drives; nothing is downloaded.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from page_parts import a_state

from coordinator.results.page.feed import Feed
from coordinator.results.page.serving import served
from coordinator.results.page.values import device_row, finished_state, round_columns

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("uvicorn")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(__file__).parent / "axe" / "axe.min.js"
VIEWS = ("fleet", "round", "learning", "ledger", "device/device-0")
WAIT_MS = 20_000

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH (apt install chromium)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser):
    """A function that serves a feed and opens its page; at the end nothing has gone wrong on it."""
    faults, addresses, open_ = [], [], []

    def open_page(feed: Feed, **context):
        said = []
        server = served(feed, "127.0.0.1:0", said.append)
        server.__enter__()
        page = browser.new_context(**context).new_page()
        open_.append((page, server))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: addresses.append(request.url))
        page.goto(said[0].removeprefix("page: "))
        sync_api.expect(page.locator("#link")).to_have_text("Connected.", timeout=WAIT_MS)
        return page

    yield open_page
    for page, server in open_:
        page.context.close()
        server.__exit__(None, None, None)
    assert faults == []
    assert [each for each in addresses if not each.startswith(("http://127.0.0.1:", "data:"))] == []


def with_device(newest, **values):
    row = device_row(why="", bytes_up=1, bytes_down=1, **values)
    return replace(newest, devices={**newest.devices, values["id"]: row})


def test_a_device_appears_fails_and_comes_back(opened):
    feed = Feed(a_state())
    page = opened(feed)
    row = page.get_by_role("row", name="device-9")
    sync_api.expect(row).to_have_count(0)
    for word in ("training", "absent", "training"):
        feed.publish(with_device(feed.newest, id="device-9", state=word))
        sync_api.expect(row.locator(".state")).to_have_text(word, timeout=WAIT_MS)


def test_rows_are_updated_in_place(opened):
    feed = Feed(a_state(tuple(f"device-{place}" for place in range(1000))))
    page = opened(feed)
    row = page.get_by_role("row", name="device-7 ", exact=False).first
    page.evaluate("document.querySelectorAll('tbody tr').forEach((row, place) => { row.dataset.place = place; })")
    feed.publish(with_device(feed.newest, id="device-7", state="absent"))
    sync_api.expect(row.locator(".state")).to_have_text("absent", timeout=WAIT_MS)
    assert page.locator("tbody tr:not([data-place])").count() == 0
    assert page.locator("tbody tr").count() == 1000


def test_a_walk_by_keys_alone(opened):
    page = opened(Feed(finished_state(synthetic.result(), "runs/demo")))
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim().slice(0, 40)"))
    assert {"Skip to the figures", "Fleet", "Round", "Learning", "Ledger", "Accuracy", "device-0"} <= set(reached)
    page.get_by_role("link", name="Learning").focus()
    page.keyboard.press("Enter")
    sync_api.expect(page.get_by_role("heading", name="Learning", exact=True)).to_be_focused(timeout=WAIT_MS)
    page.get_by_role("link", name="Fleet").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Accuracy").focus()
    page.keyboard.press("Enter")
    sync_api.expect(page.get_by_role("columnheader", name="Accuracy")).to_have_attribute("aria-sort", "ascending")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_screen(opened, scheme, width):
    feed = Feed(finished_state(synthetic.result(), "runs/demo"))
    page = opened(feed, color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    page.add_script_tag(path=AXE)
    for view in VIEWS:
        page.evaluate("view => { location.hash = view; }", view)
        sync_api.expect(page.locator("main h2")).to_have_text(view.removeprefix("device/"), ignore_case=True)
        found = page.evaluate("axe.run().then(found => found.violations.map(each => [each.impact, each.id]))")
        assert [each for each in found if each[0] in ("serious", "critical")] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_plots_are_drawn(opened):
    page = opened(Feed(finished_state(synthetic.result(), "runs/demo")))
    page.get_by_role("link", name="Learning").click()
    sync_api.expect(page.locator("canvas").first).to_be_visible(timeout=WAIT_MS)


@pytest.mark.parametrize("shared", [True, False])
def test_the_legend_names_a_shared_model_only_where_there_is_one(opened, shared):
    state = finished_state(synthetic.result(), "runs/demo")
    place = round_columns().index("global")
    history = tuple([*row[:place], 0.5 if shared else None, *row[place + 1 :]] for row in state.history)
    page = opened(Feed(replace(state, history=history)))
    page.get_by_role("link", name="Learning").click()
    keys = page.locator("figure", has_text="Mean accuracy").locator(".keys li:visible")
    sync_api.expect(keys.filter(has_text="own models")).to_have_count(1, timeout=WAIT_MS)
    assert keys.filter(has_text="shared model").count() == shared


def test_an_axis_of_rounds_has_no_half_rounds(opened):
    page = opened(Feed(finished_state(synthetic.result(rounds=4), "runs/demo")))
    page.evaluate(
        """() => {
            window.drawn = [];
            const fill = CanvasRenderingContext2D.prototype.fillText;
            CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
                window.drawn.push(text);
                return fill.call(this, text, ...rest);
            };
        }"""
    )
    page.get_by_role("link", name="Learning").click()
    page.wait_for_function("window.drawn.includes('rounds')", timeout=WAIT_MS)
    drawn = page.evaluate("window.drawn")
    assert {"1", "2", "3", "4"} <= set(drawn)
    assert [each for each in drawn if each.replace(".", "", 1).isdecimal() and "." in each] == []


def test_curves_of_each_device_are_drawn_and_named_in_the_table(opened):
    page = opened(Feed(finished_state(synthetic.result(), "runs/demo")))
    page.get_by_role("link", name="Learning").click()
    figure = page.locator("figure", has_text="Accuracy of each device's own model")
    sync_api.expect(figure.locator("canvas")).to_be_visible(timeout=WAIT_MS)
    figure.locator("summary").click()
    sync_api.expect(figure.get_by_role("columnheader", name="device-0", exact=True)).to_be_visible(timeout=WAIT_MS)
    page.evaluate("location.hash = 'device/device-0'")
    sync_api.expect(page.locator("figure", has_text="Accuracy of its own model").locator("canvas")).to_be_visible()


def test_a_device_is_paused_and_the_run_is_drained_where_the_page_may(opened):
    feed = Feed(a_state(controls=True))
    page = opened(feed)
    feed.guarded = feed.takes_orders = True  # as with a token, before a run that goes on
    given = []

    def run():  # the run's thread, at a moment of its own
        for order in feed.orders():
            given.append((order.operation, order.device))
            order.answer.set_result((True, f"{order.operation} is carried out"))

    page.on("dialog", lambda dialog: dialog.accept())
    for view, operation, device in (("device/device-0", "Pause", "device-0"), ("round", "Drain", None)):
        page.evaluate("view => { location.hash = view; }", view)
        page.get_by_role("button", name=operation).click()
        said = page.get_by_label("Commands").get_by_role("status")
        sync_api.expect(said).to_have_text("Sent, waiting for the run.", timeout=WAIT_MS)
        page.wait_for_timeout(200)
        run()
        sync_api.expect(said).to_have_text(f"{operation.lower()} is carried out", timeout=WAIT_MS)
        assert given[-1] == (operation.lower(), device)


def test_a_page_that_may_not_command_shows_no_buttons(opened):
    page = opened(Feed(a_state()))
    page.evaluate("location.hash = 'device/device-0'")
    sync_api.expect(page.locator("main h2")).to_have_text("device-0", timeout=WAIT_MS)
    assert page.get_by_role("button", name="Pause").count() == 0


def test_names_of_classes_stand_on_the_left_and_as_they_are_written(opened):
    names = ("two <b>three</b>", *(f"class {number}" for number in range(1, 10)))
    page = opened(Feed(finished_state(replace(synthetic.result(), class_names=names), "runs/demo")))
    page.evaluate("location.hash = '#learning'")
    name = page.get_by_role("rowheader", name=names[0])
    sync_api.expect(name).to_be_visible(timeout=WAIT_MS)
    assert name.evaluate("each => getComputedStyle(each).textAlign") == "left"

"""Commands that are given on the page: only behind a token, only to a run that goes on, carried out in its own thread."""

from __future__ import annotations

import asyncio
import threading

import fleets
import pytest
from page_parts import a_state

from coordinator.address import ListenAddress
from coordinator.record.observer import RunObserver
from coordinator.record.run_record import RunRecord
from coordinator.results.page.feed import Feed
from coordinator.results.page.guard import TOKEN_VARIABLE, Guard
from coordinator.results.page.live import PageObserver
from coordinator.results.page.serving import served
from coordinator.results.page.values import device_columns
from coordinator.results.report.progress_file import About

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from coordinator.results.page import starlette_app

TOKEN = "a-token-of-the-lab"
LAB = ListenAddress("192.0.2.7", 8421)
ABOUT = About(federation="tiny", method="fedmd", seed=7, rounds=3, expected=3)
JSON = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}


def ready(*, guarded: bool = True, takes_orders: bool = True) -> Feed:
    feed = Feed(a_state())
    feed.guarded, feed.takes_orders = guarded, takes_orders
    return feed


def posted(feed: Feed, content: str, headers: dict[str, str] = JSON, guard: Guard | None = None) -> httpx.Response:
    """The answer to a command; meanwhile a run does what it is told."""
    app = starlette_app.page_app(feed, LAB, guard or Guard(TOKEN), lambda: False)
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            for order in feed.orders():
                order.answer.set_result((order.operation != "drain", f"{order.operation} {order.device}"))
            over.wait(0.005)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://192.0.2.7:8421") as client:
            return await client.post("/command", content=content, headers=headers)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        return asyncio.run(ask())
    finally:
        over.set()
        thread.join()


def test_a_command_is_answered_with_the_runs_own_line():
    answer = posted(ready(), '{"operation": "pause", "device": "device-1"}')
    assert (answer.status_code, answer.text.strip()) == (200, "pause device-1")
    refused = posted(ready(), '{"operation": "drain"}')
    assert (refused.status_code, refused.text.strip()) == (409, "drain None")


@pytest.mark.parametrize(
    ("feed", "content", "headers", "status"),
    [
        (ready(), '{"operation": "pause"}', {"content-type": "application/json"}, 401),
        (ready(guarded=False), '{"operation": "pause"}', JSON, 403),
        (ready(takes_orders=False), '{"operation": "pause"}', JSON, 409),
        (ready(), '{"operation": "pause"}', {**JSON, "content-type": "text/plain"}, 415),
        (ready(), '{"operation": "forget", "device": "device-1"}', JSON, 400),
        (ready(), '{"operation": "pause", "device": "../x"}', JSON, 400),
        (ready(), '{"operation": ["pause"]}', JSON, 400),
        (ready(), "rubbish", JSON, 400),
        (ready(), "[1]", JSON, 400),
        (ready(), '{"operation": "pause", "more": "' + "x" * 5000 + '"}', JSON, 400),
    ],
)
def test_what_is_no_command_or_comes_from_elsewhere_reaches_no_run(feed, content, headers, status):
    answer = posted(feed, content, headers)
    assert answer.status_code == status
    assert [*feed.orders()] == []


def test_a_run_that_does_not_answer_is_said(monkeypatch):
    monkeypatch.setattr(starlette_app, "ANSWER_S", 0.01)
    feed = ready()
    real_orders = feed.orders
    monkeypatch.setattr(feed, "orders", lambda: ())
    answer = posted(feed, '{"operation": "pause"}')
    assert answer.status_code == 504
    assert "may carry out this pause later" in answer.text
    assert "edge-sdk devices" in answer.text
    (late,) = real_orders()
    late.answer.set_result((True, "paused"))  # as the run does: it must not fail


class FakeView:
    """Counts the commands that are carried out."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def operate(self, operation: str, device: str | None) -> tuple[bool, str]:
        del device
        self.done.append(operation)
        return True, operation


def test_an_order_that_the_page_took_back_neither_ends_the_run_nor_is_carried_out():
    feed, view = ready(), FakeView()
    page = PageObserver(feed, ABOUT, "runs/tiny", virtual=False, clock=lambda: 0.0)
    page.begun(view)  # type: ignore[arg-type]
    taken_back, kept = feed.order("pause", None), feed.order("resume", None)
    taken_back.cancel()
    page._tell = lambda **_: None  # type: ignore[method-assign]
    page.waited(RunRecord())
    assert view.done == ["resume"]
    assert kept.result(0) == (True, "resume")


def test_on_this_machine_a_token_of_the_users_opens_the_commands(monkeypatch):
    pytest.importorskip("uvicorn")
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    for token, guarded in (("", False), (TOKEN, True)):
        monkeypatch.setenv(TOKEN_VARIABLE, token)
        feed, said = Feed(), []
        with served(feed, "127.0.0.1:0", said.append):
            assert feed.guarded is guarded
            assert (TOKEN in said[0]) is guarded


def test_the_page_of_a_folder_offers_no_commands_in_its_terminal(monkeypatch):
    pytest.importorskip("uvicorn")
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    for commands in (False, True):
        said: list[str] = []
        with served(Feed(), "127.0.0.1:0", said.append, commands=commands):
            assert ("drain" in said[1]) is commands


class Ordering(RunObserver):
    """Gives a command on the page once the first round is done."""

    def __init__(self, feed: Feed) -> None:
        self.feed, self.answers = feed, []

    def round_done(self, result, of, record):
        del of, record
        if result.round == 1:
            self.answers = [self.feed.order("pause", "device-01"), self.feed.order("pause", "nobody")]


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """The answers to two commands, and the last state of the run that was given them."""
    from coordinator.record.observer import ObserverGroup

    feed = Feed(clock=lambda: 0.0)
    pictures = fleets.write_pictures(tmp_path_factory.mktemp("page") / "pictures.npz")
    page = PageObserver(feed, ABOUT, "runs/tiny", virtual=True, clock=iter(range(10**9)).__next__)
    ordering = Ordering(feed)
    run = fleets.Run(fleets.built(pictures, "fedmd", 3, quorum=2, rounds=3), observer=ObserverGroup(ordering, page))
    run.finished()
    return [each.result(0) for each in ordering.answers], feed.newest


def test_the_runs_thread_carries_commands_out(states):
    (paused, said), (unknown, fault) = states[0]
    assert paused
    assert "device-01" in said
    assert not unknown
    assert "nobody" in fault


def test_simulated_boards_tell_their_heat_and_their_seconds(states):
    rows = [dict(zip(device_columns(), row, strict=True)) for row in states[1].devices.values()]
    assert all(row["busy_s"] > 0 and row["energy_j"] > 0 and row["air_s"] >= 0 for row in rows)
    assert all(0 <= row["heat"] <= 1 for row in rows)


def test_bytes_are_told_by_what_travelled_and_add_up(states):
    ledger = states[1].ledger
    kinds = {kind: (up, down) for kind, up, down in ledger["kinds"]}
    assert sum(up for up, _ in kinds.values()) == ledger["bytes_up"]
    assert sum(down for _, down in kinds.values()) == ledger["bytes_down"]
    assert min(kinds["knowledge"]) > max(*kinds["joining"], kinds["receipts"][1])


def test_curves_are_those_of_the_devices_that_are_asked_for(states):
    every, one = states[1].curves(), states[1].curves(["device-02", "nobody"])
    assert every["of"] == len(every["devices"]) == 3
    assert every["rounds"] == sorted(every["rounds"])
    assert one["devices"] == {"device-02": every["devices"]["device-02"]}
    assert one["devices"]["device-02"][-1] is not None

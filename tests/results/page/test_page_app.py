"""The page over HTTP."""

import asyncio
import json

import pytest
from page_parts import a_state

from coordinator.address import ListenAddress
from coordinator.results.page.feed import Feed
from coordinator.results.page.guard import WRONG, Guard

pytest.importorskip("starlette")
httpx = pytest.importorskip("httpx")

from coordinator.results.page import starlette_app

TOKEN = "a-token-of-the-lab"
HERE, LAB = ListenAddress("127.0.0.1", 8421), ListenAddress("192.0.2.7", 8421)


def asked(*requests, address=HERE, guard=None, feed=None):
    """The answers to (method, path, headers) one after the other, with the cookies of a browser."""
    app = starlette_app.page_app(feed or Feed(a_state()), address, guard, lambda: False)

    async def ask():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{address.host}:{address.port}") as client:
            return [await client.request(method, path, headers=headers) for method, path, headers in requests]

    return asyncio.run(ask())


def test_the_page_and_all_that_it_names_are_there():
    (page,) = asked(("GET", "/", {}))
    names = [part.split('"')[0] for part in page.text.split("static/")[1:]]
    assert len(names) >= 7
    answers = asked(*(("GET", f"/static/{name}", {}) for name in names))
    assert {answer.status_code for answer in answers} == {200}


def test_everything_forbids_other_addresses():
    for answer in asked(("GET", "/", {}), ("GET", "/state", {}), ("GET", "/nothing", {})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "http" not in policy


@pytest.mark.parametrize("name", ["nothing.js", "..%2fcommand.py", "index.html", "%2e%2e"])
def test_no_other_file_is_served(name):
    (answer,) = asked(("GET", f"/static/{name}", {}))
    assert answer.status_code == 404


def test_the_state_is_json():
    (answer,) = asked(("GET", "/state", {}))
    assert answer.json()["head"]["federation"] == "lab"


def test_the_page_is_read_only():
    (answer,) = asked(("POST", "/state", {}))
    assert answer.status_code == 405


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8421", 200),
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("127.0.0.1", 200),
        ("[::1]", 200),
        ("[::1]:8421", 200),
        ("evil.test:8421", 400),
        ("evil.test", 400),
        ("localhost.evil.test", 400),
        ("", 400),
    ],
)
def test_on_loopback_another_sites_name_does_not_lead_to_the_page(host, status):
    (answer,) = asked(("GET", "/state", {"host": host}))
    assert answer.status_code == status


def test_beyond_this_machine_the_token_is_needed_and_kept_in_a_cookie():
    without, first, then = asked(
        ("GET", "/state", {}), ("GET", f"/?token={TOKEN}", {}), ("GET", "/state", {}), address=LAB, guard=Guard(TOKEN)
    )
    assert without.status_code == 401
    assert (first.status_code, first.headers["location"]) == (303, "/")
    assert {"httponly", "samesite=strict"} <= set(first.headers["set-cookie"].lower().split("; "))
    assert then.status_code == 200


def test_the_cookie_of_another_page_on_this_host_neither_counts_nor_takes_this_ones_place():
    """Browsers send a host's cookies to all of its ports."""
    other, guard = Guard("a-token-of-another-page"), Guard(TOKEN)
    cookies = {"cookie": f"{other.cookie}=a-token-of-another-page"}
    both = {"cookie": f"{other.cookie}=a-token-of-another-page; {guard.cookie}={TOKEN}"}
    answers = asked(*[("GET", "/state", cookies)] * (WRONG + 1), ("GET", "/state", both), address=LAB, guard=guard)
    assert [answer.status_code for answer in answers] == [401] * (WRONG + 1) + [200]


def test_a_guess_in_the_right_cookie_counts():
    guard = Guard(TOKEN)
    guesses = [("GET", "/state", {"cookie": f"{guard.cookie}=guess"})] * (WRONG + 1)
    assert asked(*guesses, address=LAB, guard=guard)[-1].status_code == 429


def test_a_script_sends_the_token_as_a_bearer():
    right, wrong = asked(
        ("GET", "/state", {"authorization": f"Bearer {TOKEN}"}),
        ("GET", "/state", {"authorization": "Bearer guess"}),
        address=LAB,
        guard=Guard(TOKEN),
    )
    assert (right.status_code, wrong.status_code) == (200, 401)


def test_guessing_is_slowed_down():
    guesses = [("GET", f"/?token=guess{place}", {}) for place in range(WRONG + 1)]
    *answers, last = asked(*guesses, address=LAB, guard=Guard(TOKEN))
    assert {answer.status_code for answer in answers} == {401}
    assert last.status_code == 429
    assert int(last.headers["retry-after"]) > 0


def test_changes_are_streamed_and_the_end_is_told(monkeypatch):
    monkeypatch.setattr(starlette_app, "EVERY_S", 0.0)
    feed, stopping = Feed(a_state()), []

    async def read():
        events = []
        async for text in starlette_app.changes(feed, lambda: bool(stopping)):
            events.append(text)
            if len(events) == 2:
                feed.publish(a_state(round=2))
            if len(events) == 3:
                feed.publish(a_state(state="finished"))
                stopping.append(True)
        return events

    _, whole, change, last, over = asyncio.run(read())
    assert whole.startswith("event: state\n")
    assert json.loads(change.partition("data: ")[2])["head"]["round"] == 2
    assert json.loads(last.partition("data: ")[2])["head"]["state"] == "finished"
    assert over.startswith("event: over\n")

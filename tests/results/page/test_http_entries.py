"""The page and the metrics survive any request: they answer it or refuse it in one line, and serve the next."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest
import strangers
from hypothesis import given
from hypothesis import strategies as st
from page_parts import a_state
from properties import examples

from coordinator.address import ListenAddress
from coordinator.results.page.feed import Feed
from coordinator.results.page.guard import Guard

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from coordinator.results.page import starlette_app  # needs starlette
from coordinator.results.writers.tools import PrometheusWriter  # needs prometheus_client

TOKEN = "a-token-of-the-lab"
HERE = ListenAddress("127.0.0.1", 8421)
LONG_LINE = b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"


class Page:
    """The page's application, called as its server calls it: with bytes that no client library would send."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.feed = Feed(a_state())
        self.feed.guarded = self.feed.takes_orders = True
        self.app = starlette_app.page_app(self.feed, HERE, guard, lambda: True)
        self.read = 0

    def status(self, path: str = "/command", query: bytes = b"", body: tuple[bytes, ...] = (), **headers: bytes) -> int:
        """The status of the answer to one request."""
        pairs = {"host": b"127.0.0.1:8421", "content-type": b"application/json", **headers}
        scope = {
            "type": "http",
            "method": "POST" if path == "/command" else "GET",
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": query,
            "root_path": "",
            "scheme": "http",
            "server": ("127.0.0.1", 8421),
            "client": ("127.0.0.1", 1),
            "headers": [(name.encode(), value) for name, value in pairs.items()],
        }
        pieces, sent = list(body), list[int]()

        async def receive() -> dict[str, object]:
            self.read += 1
            return {"type": "http.request", "body": pieces.pop(0) if pieces else b"", "more_body": bool(pieces)}

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                sent.append(message["status"])  # type: ignore[arg-type]

        asyncio.run(self.app(scope, receive, send))  # type: ignore[arg-type]  # of a starlette
        assert len(sent) == 1
        return sent[0]

    def orders(self) -> int:
        return sum(1 for _ in self.feed.orders())


@pytest.fixture(scope="module")
def page() -> Page:
    return Page()


@pytest.mark.parametrize("name", strangers.kept("text"))
def test_a_kept_text_is_no_command(page: Page, name: str) -> None:
    assert page.status(body=(strangers.kept("text")[name][:1024],)) == 400
    assert page.orders() == 0


@examples(300)
@given(body=strangers.TEXTS)
def test_any_body_is_no_command(page: Page, body: bytes) -> None:
    assert page.status(body=(body,)) == 400
    assert page.orders() == 0


def test_of_a_body_without_end_little_is_read() -> None:
    page = Page()
    assert page.status(body=(b" " * 1000,) * 1000) == 400
    assert page.read < 5


@examples(300)
@given(query=st.binary(max_size=40), cookie=st.binary(max_size=40), path=st.text(max_size=20))
def test_any_path_query_and_header_is_answered(page: Page, query: bytes, cookie: bytes, path: str) -> None:
    guarded = Page(Guard(TOKEN))
    for each in (page, guarded):
        for where in ("/curves", "/state", f"/static/{path}", f"/{path}"):
            assert each.status(where, query, cookie=cookie, authorization=b"Bearer " + cookie, host=cookie) < 500
    assert guarded.status("/state", authorization=f"Bearer {TOKEN}".encode()) in (200, 429)


def test_what_no_part_expected_is_refused_in_one_line(
    page: Page, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: object) -> str:
        raise RecursionError

    monkeypatch.setattr(page.feed, "curves", fails)
    with caplog.at_level(logging.WARNING):
        assert page.status("/curves") == 400
    monkeypatch.undo()
    assert page.status("/curves") == 200
    assert [record.exc_info for record in caplog.records] == [None]


@pytest.fixture(scope="module")
def metrics() -> Iterator[PrometheusWriter]:
    writer = PrometheusWriter(ListenAddress("127.0.0.1", 0), {"federation": "lab", "method": "fedavg"})
    writer.write(1, {"accuracy": 0.5})
    yield writer
    writer.close()


def answer(metrics: PrometheusWriter, request: bytes) -> bytes:
    """What the server says, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", metrics.port), timeout=10.0) as link:
        link.sendall(request)
        link.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while piece := link.recv(65536):
                found += piece
        except ConnectionError:  # it closed with bytes of ours unread
            pass
        return found


@pytest.mark.parametrize("name", [*strangers.kept("http"), "long line"])
def test_metrics_after_a_kept_request(metrics: PrometheusWriter, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    answer(metrics, {**strangers.kept("http"), "long line": LONG_LINE}[name])
    assert b"edge_sdk_accuracy" in answer(metrics, b"GET /metrics HTTP/1.0\r\n\r\n")
    assert "Traceback" not in capfd.readouterr().err


@examples(100)
@given(line=st.binary(max_size=40), header=st.binary(max_size=40))
def test_metrics_after_any_request(metrics: PrometheusWriter, line: bytes, header: bytes) -> None:
    for request in (line, b"GET /" + line + b" HTTP/1.0\r\nAccept: " + header + b"\r\n\r\n"):
        answer(metrics, request)
    assert b"edge_sdk_accuracy" in answer(metrics, b"GET /metrics HTTP/1.0\r\n\r\n")


def test_an_error_of_the_metrics_is_refused_in_one_line(
    metrics: PrometheusWriter, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise RecursionError

    monkeypatch.setattr(metrics._registry, "collect", fails)
    before = metrics.refused["schema"]
    assert answer(metrics, b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 400")
    assert metrics.refused["schema"] == before + 1
    assert "Traceback" not in capfd.readouterr().err

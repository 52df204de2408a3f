"""The page over HTTP: its files, the state as JSON, and changes as server-sent events."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.address import ListenAddress
from coordinator.results.page.feed import EVERY_S, Feed
from coordinator.results.page.guard import TOKEN_VARIABLE, WINDOW_S, Guard, PageVerdict
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.entry_guard import EntryGuard, foreign_json, legible
from edge_sdk.protocol.topics import is_id

STATIC = Path(__file__).parent / "static"
MOST_BROWSERS = 64
"""The most browsers that are served changes at a time."""
QUIET_S = 15.0
"""A comment is sent after this long without a change, so that a browser that went away is noticed."""
OPERATIONS = ("pause", "resume", "drain")
"""The commands that the page may give."""
MOST_COMMAND_BYTES = 1024
ANSWER_S = 10.0
"""The longest wait for the run to answer a command."""
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
"""Sent with everything: the browser loads nothing from elsewhere, and keeps nothing."""
_PORT = re.compile(r":[0-9]+$")
"""The port at the end of a Host; browsers leave out that of the scheme, and `[::1]` ends in no port."""
ANSWERS = {
    PageVerdict.NO_TOKEN: "This page needs its token: open the whole address that the run printed, to its end.\n",
    PageVerdict.TOO_MANY: f"Too many wrong tokens from your address; wait {WINDOW_S:.0f} seconds.\n",
}


def page_app(feed: Feed, address: ListenAddress, guard: Guard | None, stopping: Callable[[], bool]) -> Starlette:
    """Return the application; guard: None where only this machine reaches the address.

    stopping: whether the server stops, so that the streams of events end.
    """
    browsers = 0

    async def state(_: Request) -> Response:
        found = feed.newer_than(None)
        return Response(found.text if found else "{}", media_type="application/json")

    async def curves(request: Request) -> Response:
        return Response(feed.curves(request.query_params.getlist("device")), media_type="application/json")

    async def command(request: Request) -> Response:
        return await _commanded(request, feed)

    async def events(_: Request) -> Response:
        if browsers >= MOST_BROWSERS:
            return PlainTextResponse("Too many browsers show this page.\n", 503, {"retry-after": "30"})
        return StreamingResponse(stream(), media_type="text/event-stream")

    async def stream() -> AsyncIterator[str]:
        nonlocal browsers
        browsers += 1
        try:
            async for text in changes(feed, stopping):
                yield text
        finally:
            browsers -= 1

    return Starlette(
        routes=[
            Route("/", lambda _: FileResponse(STATIC / "index.html")),
            Route("/state", state),
            Route("/events", events),
            Route("/curves", curves),
            Route("/command", command, methods=["POST"]),
            Route("/static/{name}", static_file),
        ],
        middleware=[Middleware(_Door, address=address, guard=guard)],
    )


async def _commanded(request: Request, feed: Feed) -> Response:
    """Have the run carry out a command, and answer with its line about it."""
    if not feed.guarded:
        return PlainTextResponse(f"Commands need a token: start the run with {TOKEN_VARIABLE} set.\n", 403)
    if not feed.takes_orders:
        return PlainTextResponse("No run is here that takes commands.\n", 409)
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        return PlainTextResponse("A command is JSON.\n", 415)  # which a form of another site cannot send
    try:
        found = foreign_json(await _short_body(request))
        operation, device = found["operation"], found.get("device")
    except (ValueError, TypeError, KeyError, AttributeError):
        operation, device = "", None
    if operation not in OPERATIONS or not (device is None or (isinstance(device, str) and is_id(device))):
        return PlainTextResponse(
            f"A command has an operation, of {', '.join(OPERATIONS)}, and perhaps a device.\n", 400
        )
    answer = asyncio.wrap_future(feed.order(operation, device))
    await asyncio.wait([answer], timeout=ANSWER_S)
    if not answer.done():
        return PlainTextResponse(
            f"The run has not answered within {ANSWER_S:.0f} seconds; it may carry out this {operation} later, or have "
            "done so: look at its state on this page, or with edge-sdk devices, before you give it again.\n",
            504,
        )
    done, text = answer.result()
    return PlainTextResponse(f"{text}\n", 200 if done else 409)


async def _short_body(request: Request) -> bytes:
    """Return what a command says.  Raises ValueError for more than any command has, without keeping it."""
    found = b""
    async for piece in request.stream():
        found += piece
        if len(found) > MOST_COMMAND_BYTES:
            raise ValueError(f"more than {MOST_COMMAND_BYTES} bytes")
    return found


async def changes(feed: Feed, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield events: the whole state, then what changes, at most once in EVERY_S; `over` when the server stops."""
    number, quiet_s = None, 0.0
    yield "retry: 2000\n\n"
    while not stopping():
        found = feed.newer_than(number)
        if found is not None:
            number, quiet_s = found.number, 0.0
            yield f"event: {found.event}\ndata: {found.text}\n\n"
        elif quiet_s >= QUIET_S:
            quiet_s = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(EVERY_S)
        quiet_s += EVERY_S
    found = feed.newer_than(number)
    if found is not None:
        yield f"event: {found.event}\ndata: {found.text}\n\n"
    yield "event: over\ndata: {}\n\n"


def static_file(request: Request) -> Response:
    """Return a file of the page; only those that it has, by their names."""
    name = request.path_params["name"]
    if name not in {path.name for path in STATIC.iterdir() if path.name != "index.html"}:
        return PlainTextResponse("No such file.\n", 404)
    return FileResponse(STATIC / name, media_type=mimetypes.guess_type(name)[0] or "text/plain")


class _Door:
    """Middleware: refuses foreign host names and requests without the token, and adds HEADERS to every answer.

    A request that cannot be read is refused, counted and logged, and ends nothing.
    """

    def __init__(self, app: ASGIApp, address: ListenAddress, guard: Guard | None) -> None:
        self._app, self._address, self._guard = app, address, guard
        self._entry = EntryGuard("page")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = False

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            await send(message)

        with self._entry.message("a request"):
            try:
                with legible():
                    await (self._refusal(HTTPConnection(scope)) or self._app)(scope, receive, with_headers)
            except RemoteProtocolError:
                if not begun:
                    await PlainTextResponse("This request cannot be read.\n", 400)(scope, receive, with_headers)
                raise

    def _refusal(self, request: HTTPConnection) -> Response | None:
        if self._guard is None:
            return None if self._own_name(request) else PlainTextResponse("This page has another address.\n", 400)
        query = dict(parse_qsl(request.url.query))
        given = query.get("token") or _bearer(request) or request.cookies.get(self._guard.cookie)
        verdict = self._guard.verdict(request.client.host if request.client else "", given)
        if verdict is not PageVerdict.ALLOWED:
            wait = (
                {"retry-after": f"{WINDOW_S:.0f}"}
                if verdict is PageVerdict.TOO_MANY
                else {"www-authenticate": "Bearer"}
            )
            return PlainTextResponse(ANSWERS[verdict], int(verdict), wait)
        if "token" in query:
            return _without_token(request, query, self._guard.cookie)
        return None

    def _own_name(self, request: HTTPConnection) -> bool:
        """Whether the page is addressed by a name of this machine, so that no other site's name leads to it."""
        host = _PORT.sub("", request.headers.get("host", "").lower())
        return host in {"localhost", "127.0.0.1", "[::1]", self._address.shown_host.lower()}


def _bearer(request: HTTPConnection) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" and token else None


def _without_token(request: HTTPConnection, query: dict[str, str], cookie: str) -> Response:
    """Keep the token in a cookie, and take it out of the address, which others may see."""
    token = query.pop("token")
    where = request.url.path + ("?" + urlencode(query) if query else "")
    answer = RedirectResponse(where, status_code=303)
    answer.set_cookie(cookie, token, httponly=True, samesite="strict", path="/")
    return answer

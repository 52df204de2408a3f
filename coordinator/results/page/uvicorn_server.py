"""Serves the page in a thread of its own."""

from __future__ import annotations

import logging
import os
import socket
import threading

import uvicorn

from coordinator.address import ListenAddress
from coordinator.results.page.feed import Feed
from coordinator.results.page.guard import PROXIES_VARIABLE, Guard
from coordinator.results.page.starlette_app import page_app

STOP_S = 5.0
"""The longest wait for the thread at its end, in seconds."""


class PageThread:
    """The page's HTTP server.  It ends with the process, even with open browsers."""

    def __init__(self, feed: Feed, listening: socket.socket, address: ListenAddress, guard: Guard | None) -> None:
        self._socket = listening
        self._stopping = False
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        proxies = os.environ.get(PROXIES_VARIABLE, "")
        app = page_app(feed, address, guard, lambda: self._stopping or self._server.should_exit)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(proxies),  # anybody may send these headers, with a new address in each request
                forwarded_allow_ips=proxies,
                date_header=False,
                limit_concurrency=256,
                timeout_graceful_shutdown=2,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, name="page", daemon=True
        )

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Tell browsers that the page ends, and stop."""
        self._stopping = True
        self._server.should_exit = True
        self._thread.join(STOP_S)
        self._socket.close()

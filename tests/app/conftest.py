"""What tests of apps share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from coordinator.serving.server import Server


@pytest.fixture
def serve() -> Iterator[Callable[..., threading.Thread]]:
    """Run a server in a thread, and see it end."""
    threads: list[threading.Thread] = []

    def begin(server: Server, check: Callable[[], str] = lambda: "") -> threading.Thread:
        threads.append(threading.Thread(target=lambda: server.run(check), daemon=True))
        threads[-1].start()
        return threads[-1]

    yield begin
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()

"""Moves bytes between one socket and one MQTT client.

paho's own loop waits in select(), which fails silently for file numbers above 1023.  This loop uses the platform's best
selector, and can pause reading.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from typing import Any, Protocol

_WAIT_S = 0.5
"""Longest wait for something to do."""
_PAUSED_WAIT_S = 0.02
"""The same while reading is paused."""
_AT_ONCE = 64
"""The maximum number of packets that are read before the loop writes again."""


class SocketClient(Protocol):
    """The part of an MQTT client that an external loop drives."""

    def socket(self) -> Any:
        """The open socket, or None once the connection is gone."""

    def want_write(self) -> bool:
        """Whether bytes wait to be written."""

    @property
    def has_packet(self) -> bool:
        """Whether a whole packet waits in the client's own buffer."""

    def loop_read(self) -> object:
        """Read one packet, if it has arrived."""

    def loop_write(self) -> object:
        """Write the bytes that can be written without waiting."""

    def loop_misc(self) -> object:
        """Send keep-alive messages when they are due."""


class SocketLoop:
    """The network loop of one connection; `wake` may be called from any thread, the rest from one thread only."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for end in (self._wake_receiver, self._wake_sender):
            end.settimeout(0)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._watched: Any = None
        self._events = 0
        self._wake_sent = False

    def wake(self) -> None:
        """End the current wait, to write something or to close the connection."""
        if self._wake_sent:
            return  # one byte ends the wait, however many calls there were
        self._wake_sent = True
        try:
            self._wake_sender.send(b"!")
        except OSError:
            return  # the buffer is full, so a byte is waiting; or this loop is closed

    def run_once(self, client: SocketClient, *, may_read: Callable[[], bool], timeout_s: float = _WAIT_S) -> bool:
        """Wait for the socket, at most `timeout_s` seconds, then read and write; returns whether the socket is open.

        may_read: called again after each packet; while it returns False, frames wait in the broker.
        """
        reading = may_read()
        connection = client.socket()
        if connection is None:
            return False
        self._watch(connection, selectors.EVENT_READ * reading | selectors.EVENT_WRITE * client.want_write())
        if reading and (client.has_packet or _decrypted_bytes(connection)):
            _read(client, may_read)
        else:
            self._wait(client, connection, may_read, min(timeout_s, _WAIT_S if reading else _PAUSED_WAIT_S))
        if client.want_write():
            client.loop_write()
        client.loop_misc()
        return client.socket() is not None

    def close(self) -> None:
        """Close everything but the client's own socket."""
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _wait(self, client: SocketClient, connection: Any, may_read: Callable[[], bool], timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._wake_receiver:
                self._wake_receiver.recv(4096)
                self._wake_sent = False  # messages queued since need no further byte: run_once ends by sending them
            elif key.fileobj is connection and events & selectors.EVENT_READ:
                _read(client, may_read)

    def _watch(self, connection: Any, events: int) -> None:
        if connection is self._watched and events == self._events:
            return
        if self._events:
            self._selector.unregister(self._watched)
        if events:
            self._selector.register(connection, events)
        self._watched, self._events = connection, events


def _read(client: SocketClient, may_read: Callable[[], bool]) -> None:
    """Read a packet, and those that came with it."""
    for _ in range(_AT_ONCE):
        client.loop_read()
        if not client.has_packet or client.socket() is None or not may_read():
            return


def _decrypted_bytes(connection: Any) -> int:
    """Count the bytes that TLS has decrypted already; the selector does not see them."""
    pending = getattr(connection, "pending", None)
    return 0 if pending is None else int(pending())

"""Moves bytes between one socket and one MQTT client.

The client library's own loop waits in select(), which fails without a word for any file number above 1023; this one
waits in the platform's best selector.  It can also stop reading, which its own loop cannot.
"""

from __future__ import annotations

import selectors
import socket
from typing import Any, Protocol

_TURN_S = 0.5
_PAUSED_TURN_S = 0.02


class SocketClient(Protocol):
    """The part of an MQTT client that an external loop drives."""

    def socket(self) -> Any:
        """The open socket; None once the connection is gone."""

    def want_write(self) -> bool:
        """Whether bytes wait to be written."""

    def loop_read(self) -> object:
        """Read what is there."""

    def loop_write(self) -> object:
        """Write what can be written."""

    def loop_misc(self) -> object:
        """Keep-alive."""


class SocketLoop:
    """One connection's loop; `wake` may be called from any thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        for end in (self._bell, self._rope):
            end.settimeout(0)
        self._selector.register(self._bell, selectors.EVENT_READ)
        self._watched: Any = None
        self._events = 0
        self._rung = False

    def wake(self) -> None:
        """End the current wait: there is something to write, or it is time to go."""
        if self._rung:
            return  # once is enough for all that came since the last turn
        self._rung = True
        try:
            self._rope.send(b"!")
        except OSError:
            return  # the bell is ringing already, or the pump is closed

    def turn(self, client: SocketClient, *, reading: bool, most_s: float = _TURN_S) -> bool:
        """Wait for something to do, at most `most_s`, and do it; False once the connection is gone."""
        connection = client.socket()
        if connection is None:
            return False
        self._watch(connection, selectors.EVENT_READ * reading | selectors.EVENT_WRITE * client.want_write())
        if reading and _decrypted_bytes(connection):
            client.loop_read()
        else:
            self._wait(client, connection, min(most_s, _TURN_S if reading else _PAUSED_TURN_S))
        if client.want_write():
            client.loop_write()
        client.loop_misc()
        return client.socket() is not None

    def close(self) -> None:
        """Let go of everything but the client's own socket."""
        self._selector.close()
        self._bell.close()
        self._rope.close()

    def _wait(self, client: SocketClient, connection: Any, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            if key.fileobj is self._bell:
                self._bell.recv(4096)
                self._rung = False  # what came without ringing meanwhile is seen when this turn ends
            elif key.fileobj is connection and events & selectors.EVENT_READ:
                client.loop_read()

    def _watch(self, connection: Any, events: int) -> None:
        if connection is self._watched and events == self._events:
            return
        if self._events:
            self._selector.unregister(self._watched)
        if events:
            self._selector.register(connection, events)
        self._watched, self._events = connection, events


def _decrypted_bytes(connection: Any) -> int:
    """Bytes that TLS holds ready, of which the selector knows nothing."""
    pending = getattr(connection, "pending", None)
    return 0 if pending is None else int(pending())

"""paho's client, which reads its socket in large pieces."""

from __future__ import annotations

from typing import Any

from paho.mqtt.client import Client

PIECE_BYTES = 64 * 1024
"""The most that is read at once: a frame in one message, or hundreds of receipts."""


class ReadAheadClient(Client):
    """A client of paho that asks its socket once for many packets.

    paho asks for one byte, for each byte of a length, and for the rest of each packet: five calls of the system for
    each frame.  Here these are answered from what was read ahead.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """The parameters are those of paho's client."""
        super().__init__(*arguments, **settings)
        self._ahead, self._taken = b"", 0

    @property
    def unread_bytes(self) -> int:
        """The number of bytes that were read from the socket and not used yet; no selector tells of them."""
        return len(self._ahead) - self._taken

    def _sock_recv(self, bufsize: int) -> bytes:
        """Return up to this many bytes, as the socket does; the only place where paho reads."""
        if self._taken == len(self._ahead):
            if bufsize >= PIECE_BYTES:
                return super()._sock_recv(bufsize)
            self._ahead, self._taken = super()._sock_recv(PIECE_BYTES), 0
        found = self._ahead[self._taken : self._taken + bufsize]
        self._taken += len(found)
        return found

"""A broker that misbehaves on request: enough MQTT to test what a real one cannot be made to do."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress

CONNECT, PUBLISH, SUBSCRIBE, DISCONNECT = 1, 3, 8, 14

Answer = Callable[[int, bytes], bytes | None]
"""(level of the protocol, packet body) -> bytes to send; None: hang up."""


def connack(code: int, properties: bytes = b"", *, level: int) -> bytes:
    """CONNACK in MQTT 5 or 3.1.1."""
    body = bytes([0, code]) + (bytes([len(properties)]) + properties if level == 5 else b"")
    return bytes([0x20, len(body)]) + body


def accept(level: int, _body: bytes) -> bytes:
    """Let the client in."""
    return connack(0, level=level)


def suback(code: int, then: bytes = b"") -> Answer:
    """Answer a subscription to one pattern; then: further packets, right behind the answer."""

    def answer(level: int, body: bytes) -> bytes:
        return bytes([0x90, 4 if level == 5 else 3]) + body[:2] + b"\0" * (level == 5) + bytes([code]) + then

    return answer


def puback(_level: int, body: bytes) -> bytes:
    """Take a frame."""
    end = 2 + int.from_bytes(body[:2], "big")
    return b"\x40\x02" + body[end : end + 2]


class ScriptedBroker:
    """Listens on loopback and answers each kind of packet as told; what came in stands in `seen`."""

    def __init__(self, answers: dict[int, Answer], tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.connections = 0
        self._answers = {CONNECT: accept, SUBSCRIBE: suback(1), PUBLISH: puback} | answers
        self.seen: list[tuple[int, int]] = []
        """(type of packet, level of the protocol), in order."""
        self.qualities: list[int] = []
        """The quality of service of each PUBLISH, in order."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._connection: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"

    def levels(self) -> list[int]:
        """The protocol levels of the connections that came."""
        return [level for kind, level in self.seen if kind == CONNECT]

    def __enter__(self) -> ScriptedBroker:  # noqa: PYI034  Self is not in Python 3.10
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        if self._connection is not None:
            with suppress(OSError):
                # not SSLSocket's own: after it the serving thread would read the encrypted bytes as they are
                socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                self.connections += 1
                self._connection = self._secured(accepted)
                with self._connection, suppress(EOFError, ConnectionError, ssl.SSLError):
                    self._talk(self._connection)

    def _secured(self, connection: socket.socket) -> socket.socket:
        if self._tls is None:
            return connection
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)  # reading begins it

    def _talk(self, connection: socket.socket) -> None:
        level = 0
        while True:
            head, body = _packet(connection)
            kind, quality = head >> 4, head >> 1 & 3
            level = body[6] if kind == CONNECT else level
            self.seen.append((kind, level))
            if kind == PUBLISH:
                self.qualities.append(quality)
            answer = self._answers.get(kind, lambda _level, _body: b"")(level, body)
            if answer is None:
                return
            if kind != PUBLISH or quality:
                connection.sendall(answer)


def _packet(connection: socket.socket) -> tuple[int, bytes]:
    head, length, shift = _exactly(connection, 1)[0], 0, 0
    while True:
        byte = _exactly(connection, 1)[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return head, _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data

"""The amqtt broker as a process of its own: `python -m coordinator.broker.amqtt_child --port N`.

It listens on loopback only and ends when its standard input closes, that is, when its parent does.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.broker import Broker
from amqtt.session import Session

_REFUSE_VERSION = bytes((0x20, 0x02, 0x00, 0x01))
"""CONNACK of MQTT 3.1.1: unacceptable protocol version."""
_VERSION_BYTES = 7
_MQTT_3_1_1 = b"\x00\x04MQTT\x04"


class _Replay(StreamReaderAdapter):  # type: ignore[misc] # amqtt ships no types
    """A stream that first returns the bytes that were already read from it."""

    def __init__(self, seen: bytes, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._seen = seen

    async def read(self, n: int = -1) -> bytes:
        taken, self._seen = self._seen[:n], self._seen[n:]
        return taken + await super().read(n - len(taken)) if len(taken) < n else taken


class _Steady(dict[str, Any]):
    """A dict that tolerates changes during iteration: amqtt awaits within such loops and would drop the client."""

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(super().__iter__()))

    def items(self) -> Any:
        return tuple(super().items())


class _Unshown(bytes):
    """A payload with a short repr: amqtt formats its log lines even with logging off."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


class _OpenBroker(Broker):  # type: ignore[misc] # amqtt ships no types
    """The amqtt broker with workarounds for its faults, each measured in docs/adr/0002-embedded-broker.md."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._subscriptions = _Steady()

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """Refuse versions other than 3.1.1 with a CONNACK; amqtt misreads MQTT 5 properties and never answers."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            seen = await _connect_header(reader)
            if seen.endswith(_MQTT_3_1_1):
                await self.external_connected(_Replay(seen, reader), StreamWriterAdapter(writer), listener_name)
                return
            writer.write(_REFUSE_VERSION)
            await writer.drain()
        writer.close()

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Session
    ) -> None:
        """Publish only what the session subscribed to; amqtt would search every client's subscriptions."""
        if any(found is session for found, _qos in self._subscriptions.get(subscription[0], ())):
            await super()._publish_retained_messages_for_subscription(subscription, session)

    async def _broadcast_message(
        self, session: Session | None, topic: str | None, data: bytes | None, force_qos: int | None = None
    ) -> None:
        """Broadcast the payload with a repr that is cheap to log."""
        await super()._broadcast_message(session, topic, None if data is None else _Unshown(data), force_qos)


async def _connect_header(reader: asyncio.StreamReader) -> bytes:
    """The beginning of a CONNECT packet: type, remaining length of one to four bytes, protocol name and level."""
    seen = await reader.readexactly(2)
    while seen[-1] & 0x80 and len(seen) < 5:
        seen += await reader.readexactly(1)
    return seen + await reader.readexactly(_VERSION_BYTES)


def main() -> None:
    """Serve until the parent process ends."""
    parser = argparse.ArgumentParser(description="amqtt; ends with its standard input")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bind", required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(_serve(args.bind, args.port))


def _end_with_parent() -> None:
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


async def _serve(bind: str, port: int) -> None:
    broker = _OpenBroker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"{bind}:{port}", "max_connections": -1}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()

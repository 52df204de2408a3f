"""Stands between a link and whoever polls it: what came in chunks is handed on whole, or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.transport.base import Incoming, Rejected
from edge_sdk.transport.chunks import packets
from edge_sdk.transport.chunks.assembly import MissingChunks, Reassembly
from edge_sdk.transport.chunks.packets import ChunkRequest
from edge_sdk.transport.mqtt.send_queue import SendQueue


class ChunkedLink:
    """Puts long frames together, asks for what is missing of them, and answers those who ask."""

    def __init__(self, outbox: SendQueue, assembly: Reassembly) -> None:
        self._outbox, self._assembly = outbox, assembly

    def take(self, topic: str, payload: bytes, now_s: float) -> Incoming | Rejected | None:
        """Take in a packet: the frame that it completes, what is wrong with it, or None."""
        try:
            packet = packets.unpack(payload)
            if isinstance(packet, ChunkRequest):
                self._outbox.wanted(packet)
                return None
            result = self._assembly.take(topic, packet, now_s)
        except RemoteProtocolError as error:
            return Rejected(topic, error.kind, str(error))
        if isinstance(result, bytes):
            return Incoming(topic, result)
        if result is not None:
            self._ask(result)
        return None

    def look_after(self, now_s: float) -> Iterator[Rejected]:
        """Ask for what has not come for a while; what was given up."""
        for topic, reason in self._assembly.expired(now_s):
            yield Rejected(topic, "incomplete", reason)
        for missing in self._assembly.stalled(now_s):
            self._ask(missing)

    def _ask(self, missing: MissingChunks) -> None:
        answer = topics.answering(missing.topic)
        if answer is not None:
            self._outbox.put(answer, packets.pack_want(missing.shape, missing.ranges))

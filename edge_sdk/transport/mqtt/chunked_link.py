"""The receiving end of a connection: screens messages, puts long frames together, and answers requests for chunks."""

from __future__ import annotations

from collections.abc import Iterator

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.transport.base import Incoming, Rejected, Screen
from edge_sdk.transport.chunks import packets
from edge_sdk.transport.chunks.assembly import MissingChunks, Reassembly
from edge_sdk.transport.chunks.packets import ChunkRequest
from edge_sdk.transport.mqtt.send_queue import SendQueue


class ChunkedLink:
    """The receiving end for chunks and chunk requests of one MQTT connection."""

    def __init__(self, send_queue: SendQueue, assembly: Reassembly) -> None:
        self._send_queue, self._assembly = send_queue, assembly
        self.screen: Screen | None = None
        """Asked about every message before it is kept; None: every message may go on."""

    def passes(self, topic: str, payload: bytes, now_s: float, *, chunk: bool) -> bool:
        """Whether a message may go on; chunk: it is a packet of a long frame."""
        return self.screen is None or self.screen.passes(topic, payload, now_s, chunk=chunk)

    def receive(self, topic: str, payload: bytes, now_s: float) -> Incoming | Rejected | None:
        """Process a packet; returns the frame that it completes, or what is wrong with it, or None."""
        try:
            packet = packets.unpack_packet(payload)
            if isinstance(packet, ChunkRequest):
                self._send_queue.requeue_chunks(packet)
                return None
            result = self._assembly.take(topic, packet, now_s)
        except RemoteProtocolError as error:
            return Rejected(topic, error.kind, str(error))
        if isinstance(result, bytes):
            return Incoming(topic, result)
        if result is not None:
            self._request(result)
        return None

    def check_timeouts(self, now_s: float) -> Iterator[Rejected]:
        """Request chunks that are overdue; yields what was refused by the screen, and each chunk set given up."""
        if self.screen is not None:
            yield from self.screen.refused(now_s)
        for topic, reason in self._assembly.expired(now_s):
            yield Rejected(topic, "incomplete", reason)
        for missing in self._assembly.stalled(now_s):
            self._request(missing)

    def _request(self, missing: MissingChunks) -> None:
        topic = topics.chunk_request_topic(missing.topic)
        if topic is not None:
            self._send_queue.put(topic, packets.pack_request(missing.layout, missing.ranges))

"""The part of the MQTT transport that outlives a connection, and opens a new one whenever one ends."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport import chunks
from edge_sdk.transport.base import Incoming, Rejected, Screen, SendRefused, TransportEvent, Will
from edge_sdk.transport.chunks import MIN_CHUNK_BYTES, ChunkRequest, MissingChunks, Reassembly
from edge_sdk.transport.mqtt import reasons
from edge_sdk.transport.mqtt.hidden_limits import HiddenLimits
from edge_sdk.transport.mqtt.retry import ConnectionResult, Retry
from edge_sdk.transport.mqtt.send_queue import SendQueue
from edge_sdk.transport.mqtt.tls import NO_FILES, CertificateWatch, TlsFiles
from edge_sdk.transport.mqtt.url import BrokerAddress

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
DISCONNECT_S = 0.5
PACKET_OVERHEAD_BYTES = 1024
"""Room for the topic, the properties and the header of a chunk in one packet."""
LEAST_PACKET_BYTES = MIN_CHUNK_BYTES + PACKET_OVERHEAD_BYTES
"""The smallest usable Maximum Packet Size of a broker."""
_FLUSH_S = 1.0
_MAX_ANNOUNCED_BYTES = 512 * 1024 * 1024
"""The maximum bytes that all incomplete chunk sets together may announce."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The settings that all connections of one transport share."""

    address: BrokerAddress
    client_id: str
    clean: bool
    manual_ack: bool
    keepalive_s: int
    tls: TlsFiles = NO_FILES
    subscriptions: tuple[str, ...] = ()
    will: Will | None = None
    expires_s: int | None = None
    """Seconds after which the broker drops an undelivered frame (MQTT 5), or None to keep it."""
    broken: bool = False
    """Whether an earlier connection of this client has broken."""
    fresh: bool = False
    """Whether this is the client's first connection, and it wants no frames from an earlier session."""

    @property
    def clean_start(self) -> bool:
        """Whether the broker drops the session's frames when this client connects."""
        return self.clean or self.fresh


@dataclass(frozen=True, slots=True)
class LinkQueues:
    """The objects that all connections of one transport use, one connection after the other."""

    inbox: Inbox
    send_queue: SendQueue
    chunked_link: ChunkedLink
    hidden_limits: HiddenLimits
    certificates: CertificateWatch


class MqttLink(Protocol):
    """One MQTT connection, from CONNECT to its end."""

    @property
    def ready(self) -> bool:
        """Whether frames may be sent: connected and subscribed."""

    def wake(self) -> None:
        """Make the thread in `run` check its queues now; may be called from any thread."""

    def run(self, closing: threading.Event) -> ConnectionResult:
        """Connect, then send and receive until the connection ends; disconnect when `closing` is set."""


class OpenMqttLink(Protocol):
    """A function that makes a connection object."""

    def __call__(
        self,
        settings: LinkSettings,
        queues: LinkQueues,
        on_packet_limit: Callable[[int | None], None],
        *,
        version_5: bool,
    ) -> MqttLink:
        """Return a connection that is not open yet.

        on_packet_limit: called at each CONNACK with the largest packet in bytes that the broker accepts, or None.
        """


class ReconnectingTransport:
    """A Transport that runs one MQTT connection after the other in a thread of its own."""

    def __init__(
        self, settings: LinkSettings, open_link: OpenMqttLink, seed: int, max_frame_bytes: int, send_queue: SendQueue
    ) -> None:
        self._settings = settings
        self._open_link = open_link
        self._max_frame_bytes = max_frame_bytes
        self._packet_bytes: int | None = None
        self._inbox, self._hidden_limits, self._send_queue = Inbox(), HiddenLimits(), send_queue
        self._assembly = Reassembly(max_frame_bytes, _MAX_ANNOUNCED_BYTES)
        self._chunked_link = ChunkedLink(self._send_queue, self._assembly)
        self._retry = Retry(seed, self._hidden_limits, self._send_queue.shrink_chunks, client_id=settings.client_id)
        self._certificates = CertificateWatch(settings.tls, time.time)
        self._closing = threading.Event()
        self._link: MqttLink | None = None
        self._thread: threading.Thread | None = None

    @property
    def certificate_end_s(self) -> float | None:
        """When the first certificate of the link ends, in seconds since 1970, or None without certificates."""
        return self._certificates.first_end_s

    @property
    def version(self) -> str:
        """The version of MQTT in use, or to try next: "5" or "3.1.1"."""
        return "5" if self._retry.version_5 else "3.1.1"

    @property
    def broker_limit_bytes(self) -> int | None:
        """The largest MQTT packet that this broker accepts, in bytes, or None if it states no limit."""
        return self._packet_bytes

    def connect(self, subscriptions: Sequence[str], will: Will | None = None) -> None:
        """Start the thread that connects, and return at once; may be called again after `close`.

        Raises LocalProtocolError if this transport is connected, or is still closing.
        """
        if self._thread is not None:
            if self._thread.is_alive() or not self._closing.is_set():
                raise LocalProtocolError("connect was called twice on one transport; close it first, or make a new one")
            self._inbox = Inbox()
            self._retry.forget()
        self._closing.clear()
        self._settings = replace(self._settings, subscriptions=tuple(subscriptions), will=will)
        self._thread = threading.Thread(target=self._run, name=f"mqtt-{self._settings.client_id}", daemon=True)
        self._thread.start()

    def send(self, topic: str, frame: Frame, *, retain: bool = False, answered: bool = False) -> None:
        """Queue a frame for sending; without a connection it is dropped.

        It is sent with QoS 0 if it is `answered` and short, and the link is calm: on its first connection, or on one
        that has lasted for two minutes.  Other frames are sent with QoS 1.

        Raises LocalProtocolError for a frame above the maximum length, for a retained one that does not fit into one
        message, and for a topic that is empty or has a wildcard.
        """
        if not topic or "+" in topic or "#" in topic:
            raise LocalProtocolError(f"cannot send to topic {topic!r}: it is empty or has a wildcard")
        frame = bytes(frame)
        most_bytes = self._send_queue.chunk_bytes if retain else self._max_frame_bytes
        if len(frame) > most_bytes:
            kind = "retained frame" if retain else "frame"
            raise LocalProtocolError(
                f"a {kind} of {len(frame)} bytes for {topic} is above the limit of {most_bytes} bytes; send less"
            )
        link = self._link
        if link is None or not link.ready:
            return
        sent_bytes = len(frame) if retain else self._send_queue.message_bytes(len(frame))
        if self._hidden_limits.should_drop(topic, sent_bytes):
            _log.warning("dropped a frame of %d bytes for %s: the broker disconnected on it", len(frame), topic)
            if sent_bytes < len(frame):  # even the smallest chunk, because larger ones would have shrunk
                text = reasons.message_too_long(sent_bytes, LEAST_PACKET_BYTES, self._settings.address)
                self._inbox.put(SendRefused(topic, text, too_long=True))
        elif self._send_queue.put(topic, frame, retain=retain, answered=answered):
            link.wake()
        else:
            _log.warning("dropped a frame of %d bytes for %s: the send queue is full", len(frame), topic)

    def accept_up_to(self, frame_bytes: int) -> None:
        """Refuse longer frames from now on, at their first chunk."""
        self._assembly.frame_bytes = min(frame_bytes, self._max_frame_bytes)

    def screen_with(self, screen: Screen) -> None:
        """Ask this screen about every message from now on, in the thread of the connection."""
        self._chunked_link.screen = screen
        self._assembly.place_of = screen.place

    def poll(self, timeout_s: float) -> TransportEvent | None:
        """Return the next event, or None if none occurs within `timeout_s` seconds."""
        return self._inbox.get(timeout_s)

    def close(self) -> None:
        """Send what is queued for at most a second, then disconnect cleanly, so that the will is not published.

        May be called more than once.
        """
        link = self._link
        if link is not None and link.ready and not self._closing.is_set():
            self._send_queue.wait_until_idle(_FLUSH_S)
        self._closing.set()
        if link is not None:
            link.wake()
        if self._thread is not None:
            self._thread.join(CONNECT_TIMEOUT_S + DISCONNECT_S + 1.0)

    def _run(self) -> None:
        while not self._closing.is_set():
            result = self._attempt()
            if result.accepted:
                self._settings = replace(self._settings, fresh=False)
            if result.ready_s:
                self._settings = replace(self._settings, broken=True)
            if self._closing.is_set():
                return
            decision = self._retry.decide(result)
            if decision.report is not None:
                self._inbox.put(decision.report)
            if decision.pause_s is None:
                return
            self._closing.wait(decision.pause_s)

    def _attempt(self) -> ConnectionResult:
        """Run one connection; no exception ends this thread."""
        try:
            queues = LinkQueues(
                self._inbox, self._send_queue, self._chunked_link, self._hidden_limits, self._certificates
            )
            self._link = self._open_link(
                self._settings, queues, self._set_packet_limit, version_5=self._retry.version_5
            )
            return self._link.run(self._closing)
        except Exception as error:  # noqa: BLE001  reported in the event that follows
            return ConnectionResult(reasons.connection_failed(error, self._settings.address, CONNECT_TIMEOUT_S))
        finally:
            self._link = None

    def _set_packet_limit(self, packet_bytes: int | None) -> None:
        self._packet_bytes = packet_bytes


# The receiving end of a connection: screens messages, assembles long frames, and answers requests for chunks.


class ChunkedLink:
    """The receiving end for chunks and chunk requests of one MQTT connection."""

    def __init__(self, send_queue: SendQueue, assembly: Reassembly) -> None:
        self._send_queue, self._assembly = send_queue, assembly
        self.screen: Screen | None = None
        """Decides on every message before it is stored.  None accepts every message."""

    def passes(self, topic: str, payload: bytes, now_s: float, *, chunk: bool) -> bool:
        """Whether a message is accepted; chunk: whether it is a packet of a long frame."""
        return self.screen is None or self.screen.passes(topic, payload, now_s, chunk=chunk)

    def receive(self, topic: str, payload: bytes, now_s: float) -> Incoming | Rejected | None:
        """Process a packet; returns the frame that it completes, the reason for its refusal, or None."""
        try:
            packet = chunks.unpack_packet(payload)
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
        """Request overdue chunks; yields the screen's refusals, and each chunk set given up."""
        if self.screen is not None:
            yield from self.screen.refused(now_s)
        for topic, reason in self._assembly.expired(now_s):
            yield Rejected(topic, "incomplete", reason)
        for missing in self._assembly.stalled(now_s):
            self._request(missing)

    def _request(self, missing: MissingChunks) -> None:
        topic = topics.chunk_request_topic(missing.topic)
        if topic is not None:
            self._send_queue.put(topic, chunks.pack_request(missing.layout, missing.ranges))


# -- The queue of events from the network thread to the thread that polls the transport -------------------------------

_MAX_FRAMES = 4096
_MAX_BYTES = 64 * 1024 * 1024


class Inbox:
    """Events in the order of their arrival.

    While it is `full`, the network thread stops reading, so that frames wait in the broker and in TCP's buffers.  The
    limits hold the uploads of a large round; a single frame above the limit still passes.
    """

    def __init__(self, max_frames: int = _MAX_FRAMES, max_bytes: int = _MAX_BYTES) -> None:
        self._events: queue.SimpleQueue[TransportEvent] = queue.SimpleQueue()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._max_frames = max_frames
        self._max_bytes = max_bytes

    def put(self, event: TransportEvent) -> None:
        """Append an event; never blocks, and accepts the event even when full."""
        self._count(event, +1)
        self._events.put(event)

    def get(self, timeout_s: float) -> TransportEvent | None:
        """Return the oldest event, or None if none occurs within `timeout_s` seconds."""
        try:
            event = self._events.get(block=timeout_s > 0, timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None
        self._count(event, -1)
        return event

    @property
    def full(self) -> bool:
        """Whether the network thread should stop reading."""
        return self._events.qsize() >= self._max_frames or self._held_bytes >= self._max_bytes

    def _count(self, event: TransportEvent, sign: int) -> None:
        if isinstance(event, Incoming):
            with self._lock:
                self._held_bytes += sign * len(event.frame)

"""The MQTT transport: frames over any broker, over a new connection whenever one ends.

It outlives its connections (paho_link.py).  The layer above sends important frames again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge_sdk.errors import LocalProtocolError, UsageError
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport.base import Screen, SendRefused, TransportEvent, Will
from edge_sdk.transport.chunks import Reassembly
from edge_sdk.transport.mqtt import reasons
from edge_sdk.transport.mqtt.hidden_limits import HiddenLimits, KeptChunks
from edge_sdk.transport.mqtt.incoming import ChunkedLink, Inbox
from edge_sdk.transport.mqtt.paho_link import (
    CONNECT_TIMEOUT_S,
    DISCONNECT_S,
    LEAST_PACKET_BYTES,
    LinkQueues,
    LinkSettings,
    PahoLink,
)
from edge_sdk.transport.mqtt.retry import ConnectionResult, Retry
from edge_sdk.transport.mqtt.send_queue import Pace, SendQueue
from edge_sdk.transport.mqtt.tls import NO_FILES, CertificateWatch, TlsFiles, tls_context
from edge_sdk.transport.mqtt.url import BrokerAddress, parse_broker_url

_log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 240 * 1024 * 1024
_FLUSH_S = 1.0
_MAX_ANNOUNCED_BYTES = 512 * 1024 * 1024
"""The maximum bytes that all incomplete chunk sets together may announce."""


class MqttTransport:
    """The connection of one MQTT client.  It reconnects until closed, after random pauses of up to 0.2 s to 30 s.

    Frames longer than 64 KiB, or than the broker accepts in one message, are sent in chunks and arrive whole.  A frame
    is lost if the connection is down, or breaks before the broker has acknowledged it.  So send it again on each
    `Connected`; a long frame then continues where it was interrupted.

    Frames that the broker kept in its session may arrive before `Connected`.  Frames on topics without a subscription
    never arrive.

    clean: whether the broker forgets this client's session at a disconnect.
    fresh: whether the first connection drops the frames that the broker kept for an earlier process with this id.
    manual_ack: whether the broker keeps a frame, and delivers it again after a reconnect, until its `acknowledge` is
    called.  Chunks are always acknowledged at once, because brokers stop after a few unacknowledged messages.
    seed: for the random pauses.
    pace: limits the rate of publishing.
    expires_s: seconds after which a broker that speaks MQTT 5 drops an undelivered frame.
    chunk_file: remembers across processes that the broker accepts only short chunks.

    Raises UsageError for an invalid broker URL, and for unusable TLS files.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        *,
        username: str | None = None,
        password: str | None = None,
        tls: TlsFiles = NO_FILES,
        clean: bool = False,
        fresh: bool = False,
        manual_ack: bool = False,
        keepalive_s: int = 60,
        seed: int,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        pace: Pace | None = None,
        expires_s: int | None = None,
        chunk_file: Path | None = None,
    ) -> None:
        address = parse_broker_url(url)
        if username is not None:
            address = BrokerAddress(address.host, address.port, address.tls, username, password)
        if not client_id:
            raise UsageError(f"the client id for broker {address} is empty; give each device its own")
        tls_context(tls, address)  # reports unusable files now, before anything is sent
        self._settings = LinkSettings(
            address, client_id, clean, manual_ack, keepalive_s, tls.absolute(), expires_s=expires_s, fresh=fresh
        )
        self._max_frame_bytes = max_frame_bytes
        self._packet_bytes: int | None = None
        self._inbox, self._hidden_limits = Inbox(), HiddenLimits()
        self._send_queue = SendQueue(pace, kept=KeptChunks(chunk_file, str(address)))
        self._assembly = Reassembly(max_frame_bytes, _MAX_ANNOUNCED_BYTES)
        self._chunked_link = ChunkedLink(self._send_queue, self._assembly)
        self._retry = Retry(seed, self._hidden_limits, self._send_queue.shrink_chunks, client_id=client_id)
        self._certificates = CertificateWatch(self._settings.tls, time.time)
        self._closing = threading.Event()
        self._link: PahoLink | None = None
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
            self._link = PahoLink(self._settings, queues, self._set_packet_limit, version_5=self._retry.version_5)
            return self._link.run(self._closing)
        except Exception as error:  # noqa: BLE001  reported in the event that follows
            return ConnectionResult(reasons.connection_failed(error, self._settings.address, CONNECT_TIMEOUT_S))
        finally:
            self._link = None

    def _set_packet_limit(self, packet_bytes: int | None) -> None:
        self._packet_bytes = packet_bytes

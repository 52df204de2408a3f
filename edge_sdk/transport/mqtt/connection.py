"""Keeps one MQTT link at a time alive: the part of the transport that outlives any single connection."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from edge_sdk.errors import LocalProtocolError
from edge_sdk.transport.base import TransportEvent, Will
from edge_sdk.transport.chunks.assembly import Reassembly
from edge_sdk.transport.mqtt import reasons
from edge_sdk.transport.mqtt.chunked_link import ChunkedLink
from edge_sdk.transport.mqtt.hidden_limits import HiddenLimits
from edge_sdk.transport.mqtt.inbox import Inbox
from edge_sdk.transport.mqtt.pace import Pace
from edge_sdk.transport.mqtt.retry import ConnectionResult, Retry
from edge_sdk.transport.mqtt.send_queue import SendQueue
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles
from edge_sdk.transport.mqtt.url import BrokerAddress

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
LEAVE_S = 0.5
_FLUSH_S = 1.0
_HELD_BYTES = 512 * 1024 * 1024
"""Announced by all the chunk sets that are under way at once."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """What every connection of one transport has in common."""

    address: BrokerAddress
    client_id: str
    clean: bool
    manual_ack: bool
    keepalive_s: int
    tls: TlsFiles = NO_FILES
    subscriptions: tuple[str, ...] = ()
    will: Will | None = None


@dataclass(frozen=True, slots=True)
class LinkQueues:
    """What a connection finds when it begins, and leaves when it ends."""

    inbox: Inbox
    outbox: SendQueue
    porter: ChunkedLink
    suspect: HiddenLimits


class MqttLink(Protocol):
    """One connection."""

    @property
    def ready(self) -> bool:
        """Whether frames may be sent: connected and subscribed."""

    def wake(self) -> None:
        """Let the driving thread look around; from any thread."""

    def run(self, closing: threading.Event) -> ConnectionResult:
        """Connect and serve until the link ends, in order once `closing` is set."""


class OpenMqttLink(Protocol):
    """How a link is made."""

    def __call__(
        self,
        settings: LinkSettings,
        around: LinkQueues,
        on_packet_limit: Callable[[int | None], None],
        *,
        version_5: bool,
    ) -> MqttLink:
        """A link, not yet connected."""


class ReconnectingTransport:
    """Runs links one after the other in a thread of its own, and is the Transport that stands before them."""

    def __init__(
        self, settings: LinkSettings, open_link: OpenMqttLink, seed: int, max_frame_bytes: int, pace: Pace | None
    ) -> None:
        self._settings = settings
        self._open_link = open_link
        self._max_frame_bytes = max_frame_bytes
        self._packet_bytes: int | None = None
        self._inbox, self._suspect, self._outbox = Inbox(), HiddenLimits(), SendQueue(pace)
        self._assembly = Reassembly(max_frame_bytes, _HELD_BYTES)
        self._porter = ChunkedLink(self._outbox, self._assembly)
        self._retry = Retry(seed, self._suspect, self._outbox.shrink)
        self._closing = threading.Event()
        self._link: MqttLink | None = None
        self._thread: threading.Thread | None = None

    @property
    def version(self) -> str:
        """The version of MQTT that is spoken, or will be tried next: 5 or 3.1.1."""
        return "5" if self._retry.version_5 else "3.1.1"

    @property
    def broker_limit_bytes(self) -> int | None:
        """The longest MQTT packet that this broker takes; None where it states no limit."""
        return self._packet_bytes

    def connect(self, subscriptions: Sequence[str], will: Will | None = None) -> None:
        """Begin; returns at once.  `Connected` follows as an event when the subscriptions stand."""
        if self._thread is not None:
            raise LocalProtocolError("connect was called twice on one transport; make a new one")
        self._settings = replace(self._settings, subscriptions=tuple(subscriptions), will=will)
        self._thread = threading.Thread(target=self._run, name=f"mqtt-{self._settings.client_id}", daemon=True)
        self._thread.start()

    def send(self, topic: str, frame: bytes, *, retain: bool = False) -> None:
        """Hand a frame over with QoS 1; it is dropped while the link is down.

        Raises LocalProtocolError for a frame longer than a frame may be, for a retained one longer than one message,
        and for a topic that is no topic.
        """
        if not topic or "+" in topic or "#" in topic:
            raise LocalProtocolError(f"cannot send to topic {topic!r}: it is empty or has a wildcard")
        most_bytes = self._outbox.chunk_bytes if retain else self._max_frame_bytes
        if len(frame) > most_bytes:
            kind = "retained frame" if retain else "frame"
            raise LocalProtocolError(
                f"a {kind} of {len(frame)} bytes for {topic} is above the limit of {most_bytes} bytes; send less"
            )
        link = self._link
        if link is None or not link.ready:
            return
        if self._suspect.should_drop(topic, len(frame)):
            _log.warning("dropped a frame of %d bytes for %s: the broker hung up on it before", len(frame), topic)
        elif self._outbox.put(topic, frame, retain=retain):
            link.wake()
        else:
            _log.warning("dropped a frame of %d bytes for %s: too much waits to be sent", len(frame), topic)

    def accept_up_to(self, frame_bytes: int) -> None:
        """Refuse longer frames at their first chunk."""
        self._assembly.frame_bytes = min(frame_bytes, self._max_frame_bytes)

    def poll(self, timeout_s: float) -> TransportEvent | None:
        """The next event, or None after `timeout_s`."""
        return self._inbox.get(timeout_s)

    def close(self) -> None:
        """Flush for at most a second and leave cleanly, so that the will is not published; may be repeated."""
        link = self._link
        if link is not None and link.ready and not self._closing.is_set():
            self._outbox.wait_until_idle(_FLUSH_S)
        self._closing.set()
        if link is not None:
            link.wake()
        if self._thread is not None:
            self._thread.join(CONNECT_TIMEOUT_S + LEAVE_S + 1.0)

    def _run(self) -> None:
        while not self._closing.is_set():
            outcome = self._attempt()
            if self._closing.is_set():
                return
            verdict = self._retry.after(outcome)
            if verdict.report is not None:
                self._inbox.put(verdict.report)
            if verdict.pause_s is None:
                return
            self._closing.wait(verdict.pause_s)

    def _attempt(self) -> ConnectionResult:
        """One connection from beginning to end; this thread must outlive whatever it throws."""
        try:
            around = LinkQueues(self._inbox, self._outbox, self._porter, self._suspect)
            self._link = self._open_link(self._settings, around, self._limit, version_5=self._retry.version_5)
            return self._link.run(self._closing)
        except Exception as error:  # noqa: BLE001  told in the event that follows
            return ConnectionResult(reasons.failed(error, self._settings.address, CONNECT_TIMEOUT_S))
        finally:
            self._link = None

    def _limit(self, packet_bytes: int | None) -> None:
        """Take over what the broker states at each connection; None where it states nothing."""
        self._packet_bytes = packet_bytes

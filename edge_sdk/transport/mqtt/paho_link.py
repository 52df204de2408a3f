"""One MQTT connection with paho, with MQTT 5 if the broker speaks it, and 3.1.1 otherwise.

Every connection gets a new paho client.  So the library never resends messages or queues them while the broker is away,
and a frame on which the broker disconnects cannot block the next connection.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edge_sdk.protocol.entry_guard import EntryGuard
from edge_sdk.protocol.topics import LONGEST, is_coordinator_status, matches
from edge_sdk.transport.base import Connected, Incoming, LinkNotice, SendRefused, TransportEvent, Will
from edge_sdk.transport.chunks import MIN_CHUNK_BYTES, is_packet
from edge_sdk.transport.mqtt import reasons
from edge_sdk.transport.mqtt.hidden_limits import HiddenLimits
from edge_sdk.transport.mqtt.incoming import ChunkedLink, Inbox
from edge_sdk.transport.mqtt.paho_client import LeanClient, ReceivedMessage, SocketLoop
from edge_sdk.transport.mqtt.reasons import DisconnectReason
from edge_sdk.transport.mqtt.retry import ConnectionResult
from edge_sdk.transport.mqtt.send_queue import MAX_IN_FLIGHT, QueuedMessage, SendQueue
from edge_sdk.transport.mqtt.tls import NO_FILES, CertificateWatch, TlsFiles, tls_context
from edge_sdk.transport.mqtt.url import BrokerAddress

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
DISCONNECT_S = 0.5
PACKET_OVERHEAD_BYTES = 1024
"""Room for the topic, the properties and the header of a chunk in one packet."""
LEAST_PACKET_BYTES = MIN_CHUNK_BYTES + PACKET_OVERHEAD_BYTES
"""The smallest usable Maximum Packet Size of a broker."""
_MOST_REFUSED_TOPICS = 16
"""The maximum number of topics per connection whose refusal is reported."""
_WAIT_S = 0.25
_SESSION_EXPIRY_S = 3600
CALM_S = 120.0
"""After a link has broken, frames that could be sent with QoS 0 are sent with QoS 1 until it has lasted this long.  The
acknowledgements reveal the frame on which a broker disconnects, and the broker keeps frames for an unstable link."""
_ANSWER_TIMEOUT_S = 10.0


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


class PahoLink:
    """One MQTT connection, from CONNECT to its end, with paho; the thread that calls `run` does all the work."""

    def __init__(
        self,
        settings: LinkSettings,
        queues: LinkQueues,
        on_packet_limit: Callable[[int | None], None],
        *,
        version_5: bool,
    ) -> None:
        self.ready = False  # connected and subscribed, so that frames may be sent
        self._settings = settings
        self._inbox, self._send_queue, self._chunked_link = queues.inbox, queues.send_queue, queues.chunked_link
        self._hidden_limits, self._certificates = queues.hidden_limits, queues.certificates
        self._on_packet_limit = on_packet_limit
        self._chunk_bytes: int | None = None
        self._accepted = False
        self._silent = False
        self._version_refused = False
        self._ending: DisconnectReason | None = None
        self._oldest: QueuedMessage | None = None
        self._unacknowledged: set[int] = set()
        self._unwritten: deque[MQTTMessageInfo] = deque()
        """Messages with QoS 0 that may not have been written to the socket yet."""
        self._ready_since_s = 0.0
        self._refused_topics: set[str] = set()
        self._tls = tls_context(settings.tls, settings.address)
        self._guard = EntryGuard(f"broker {settings.address}")
        self._client = self._build(version_5=version_5)
        self._loop = SocketLoop()

    def wake(self) -> None:
        """Make the thread in `run` check its queues now; may be called from any thread."""
        self._loop.wake()

    def acknowledge(self, packet_id: int) -> None:
        """Let the broker delete a frame; may be called from any thread, and after the connection has ended."""
        with suppress(KeyError):
            self._unacknowledged.remove(packet_id)
            self._client.ack(packet_id, 1)
            self._loop.wake()

    def run(self, closing: threading.Event) -> ConnectionResult:
        """Connect, send and receive until the connection ends, and return the outcome."""
        try:
            self._connect()
            self._serve(closing)
        except Exception as error:  # noqa: BLE001  reported in the result
            here, advice = self._settings.address, self._settings.tls.advice
            self._end(reasons.connection_failed(error, here, CONNECT_TIMEOUT_S, advice))
        finally:
            self._release()
        return ConnectionResult(
            self._ending or DisconnectReason("broker closed the connection"),
            self._accepted,
            self._silent,
            self._version_refused,
            time.monotonic() - self._ready_since_s if self.ready else 0.0,
            self._oldest,
        )

    def _release(self) -> None:
        self._oldest = self._send_queue.oldest_in_flight()
        self._send_queue.link_lost()
        connection = self._client.socket()
        if connection is not None:
            connection.close()
        self._loop.close()

    def _build(self, *, version_5: bool) -> LeanClient:
        client = LeanClient(
            self._settings.client_id,
            clean_session=None if version_5 else self._settings.clean_start,
            protocol=MQTTProtocolVersion.MQTTv5 if version_5 else MQTTProtocolVersion.MQTTv311,
            take_message=self._take_message,
        )
        client.max_inflight_messages_set(MAX_IN_FLIGHT)
        client.connect_timeout = CONNECT_TIMEOUT_S
        address, will = self._settings.address, self._settings.will
        if address.username is not None:
            client.username_pw_set(address.username, address.password)
        if self._tls is not None:
            client.tls_set_context(self._tls)
        if will is not None:
            client.will_set(will.topic, will.frame, qos=1, retain=True)
        client.on_socket_open = _with_errors_logged(self._on_socket_open)
        client.on_socket_register_write = _do_not_write_here
        client.on_connect = _with_errors_logged(self._on_connect)
        client.on_subscribe = _with_errors_logged(self._on_subscribe)
        client.on_message = _with_errors_logged(self._on_message)  # malformed packets and QoS 2; see LeanClient
        client.on_publish = _with_errors_logged(self._on_publish)
        client.on_disconnect = _with_errors_logged(self._on_disconnect)
        return client

    def _connect(self) -> None:
        settings, address = self._settings, self._settings.address
        if self._client.protocol == MQTTProtocolVersion.MQTTv311:
            self._client.connect(address.host, address.port, settings.keepalive_s)
            return
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # paho left it untyped
        properties.SessionExpiryInterval = 0 if settings.clean else _SESSION_EXPIRY_S
        self._client.connect(
            address.host, address.port, settings.keepalive_s, clean_start=settings.clean_start, properties=properties
        )

    def _serve(self, closing: threading.Event) -> None:
        answer_by_s = time.monotonic() + _ANSWER_TIMEOUT_S
        while self._run_once():
            if closing.is_set():
                self._disconnect()
                return
            if not self.ready and time.monotonic() > answer_by_s:
                self._version_refused = not self._accepted  # some brokers never answer an MQTT 5 CONNECT
                self._end(DisconnectReason(f"{self._settings.address} does not answer (is it an MQTT broker?)"))
                return

    def _run_once(self) -> bool:
        """Send waiting messages, wait for the socket, and check for overdue chunks; returns whether it is open."""
        if self.ready:
            self._send_waiting()
        if self._client.want_write():  # now: the socket nearly always takes it, and need not be asked first
            self._client.loop_write()
        made_room = self._note_written()
        pause_s = self._send_queue.next_in_s()
        timeout_s = _WAIT_S if pause_s is None or (pause_s == 0.0 and not made_room) else min(pause_s, _WAIT_S)
        connected = self._loop.run_once(self._client, may_read=self._has_room, timeout_s=timeout_s)
        self._note_written()
        for rejected in self._chunked_link.check_timeouts(time.monotonic()):
            self._inbox.put(rejected)
        if self.ready and self._tls is not None:
            self._look_at_certificates()
        return connected

    def _look_at_certificates(self) -> None:
        connection = self._client.socket()
        broker = connection.getpeercert(binary_form=True) if isinstance(connection, ssl.SSLSocket) else None
        for line in self._certificates.lines(time.monotonic(), broker):
            _log.warning("%s", line)
            self._inbox.put(LinkNotice(line))

    def _note_written(self) -> bool:
        """Count the messages with QoS 0 that were written as acknowledged; returns whether there are any."""
        before = len(self._unwritten)
        while self._unwritten and self._unwritten[0].is_published():
            self._note_acknowledged(self._unwritten.popleft().mid)
        return len(self._unwritten) < before

    def _has_room(self) -> bool:
        """Whether the layer above keeps up: else frames wait in the broker.  Its answers to CONNECT cannot wait."""
        return not self.ready or not self._inbox.full

    def _send_waiting(self) -> None:
        while (message := self._send_queue.next()) is not None:
            quality = 0 if message.answered and self._calm else 1
            sent = self._client.publish(
                message.topic,
                message.payload,
                qos=quality,
                retain=message.retain,
                properties=self._publish_properties(),
            )
            if sent.rc == MQTTErrorCode.MQTT_ERR_SUCCESS:
                self._send_queue.note_sent(sent.mid, message)
                if not quality:
                    self._unwritten.append(sent)

    @property
    def _calm(self) -> bool:
        """Whether this link has not broken lately."""
        return not self._settings.broken or time.monotonic() - self._ready_since_s > CALM_S

    def _publish_properties(self) -> Properties | None:
        expires_s = self._settings.expires_s
        if expires_s is None or self._client.protocol == MQTTProtocolVersion.MQTTv311:
            return None
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call] # paho left it untyped
        properties.MessageExpiryInterval = expires_s
        return properties

    def _disconnect(self) -> None:
        self._client.disconnect()
        leave_by_s = time.monotonic() + DISCONNECT_S
        while self._loop.run_once(self._client, may_read=lambda: True) and time.monotonic() < leave_by_s:
            pass

    def _end(self, ending: DisconnectReason) -> None:
        """Remember why the connection ends: the first reason, because later ones follow from it."""
        self._ending = self._ending or ending

    def _on_socket_open(self, _client: Client, _data: object, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _on_connect(
        self, client: Client, _data: object, _flags: ConnectFlags, code: ReasonCode, properties: Properties | None
    ) -> None:
        settings = self._settings
        if code.is_failure:
            self._version_refused = code.value == reasons.UNSUPPORTED_VERSION
            self._end(reasons.connection_refused(code.value, code.getName(), settings.address, settings.client_id))
            return
        self._accepted = True
        if not self._fits(getattr(properties, "MaximumPacketSize", None)):
            client.disconnect()
        elif settings.subscriptions:
            client.subscribe([(pattern, 1) for pattern in settings.subscriptions])
        else:
            self._open()

    def _fits(self, packet_bytes: int | None) -> bool:
        """Whether the smallest chunk fits into the broker's largest packet in bytes, None if the broker states none."""
        self._on_packet_limit(packet_bytes)
        if packet_bytes is None:
            return True
        self._chunk_bytes = packet_bytes - PACKET_OVERHEAD_BYTES
        if self._chunk_bytes >= MIN_CHUNK_BYTES:
            return True
        self._end(reasons.packets_too_small(packet_bytes, LEAST_PACKET_BYTES, self._settings.address))
        return False

    def _on_subscribe(
        self, client: Client, _data: object, _mid: int, codes: list[ReasonCode], _properties: Properties | None
    ) -> None:
        for pattern, code in zip(self._settings.subscriptions, codes, strict=True):
            if code.is_failure:
                self._end(reasons.subscription_refused(pattern, self._settings.address))
                client.disconnect()
                return
        self._open()

    def _open(self) -> None:
        self._ready_since_s = time.monotonic()
        self._send_queue.link_up(self._chunk_bytes)
        self.ready = True
        self._inbox.put(Connected())

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        self._take_message(
            ReceivedMessage(message.topic, bytes(message.payload), message.mid, message.qos, bool(message.retain))
        )

    def _take_message(self, message: ReceivedMessage) -> None:
        """Pass on a frame, or a packet of a long one; only frames may wait for their acknowledgement.

        A broker stops after a few unacknowledged messages.  A coordinator's status from an earlier connection, kept in
        the session, is dropped: the current one is retained, and arrives with the subscription.
        """
        with self._guard.message(message.topic[:LONGEST]):
            self._pass_on(message)

    def _pass_on(self, message: ReceivedMessage) -> None:
        topic, payload, packet_id, quality, retained = message
        now_s, packet = time.monotonic(), is_packet(payload)
        event: TransportEvent | None = None
        waits = False
        try:
            if not any(matches(pattern, topic) for pattern in self._settings.subscriptions):
                return  # from an older subscription of this session, or a broker's mistake
            if not (self.ready or retained) and is_coordinator_status(topic):
                return
            if not self._chunked_link.passes(topic, payload, now_s, chunk=packet):
                return
            if packet:
                event = self._chunked_link.receive(topic, payload, now_s)
            elif self._settings.manual_ack and quality:
                waits = True
                self._unacknowledged.add(packet_id)
                event = Incoming(topic, payload, partial(self.acknowledge, packet_id))
            else:
                event = Incoming(topic, payload)
        finally:
            if quality and not waits:
                self._client.ack(packet_id, quality)
        if event is not None:
            self._inbox.put(event)

    def _on_publish(
        self, _client: Client, _data: object, mid: int, code: ReasonCode, _properties: Properties | None
    ) -> None:
        if mid in self._client.too_large:
            self._client.too_large.discard(mid)
            self._note_too_long(mid)
            return
        message = self._note_acknowledged(mid)
        if code.is_failure and message is not None:
            self._report_refusal(message.topic, code.getName())

    def _note_acknowledged(self, packet_id: int) -> QueuedMessage | None:
        message = self._send_queue.note_acknowledged(packet_id)
        if message is not None:
            self._hidden_limits.note_acknowledged(message)
        return message

    def _note_too_long(self, packet_id: int) -> None:
        """Shrink chunks after a message that was too long for the broker, or report that they cannot shrink further."""
        before_bytes = self._send_queue.chunk_bytes
        found = self._send_queue.note_too_long(packet_id)
        if found is None:
            return
        message, again = found
        if not again:
            text = reasons.message_too_long(message.size_bytes, LEAST_PACKET_BYTES, self._settings.address)
            self._report_refusal(message.topic, text, too_long=True)
        elif self._send_queue.chunk_bytes < before_bytes:
            text = reasons.smaller_chunks(message.size_bytes, self._send_queue.chunk_bytes)
            _log.warning("broker %s %s", self._settings.address, text)

    def _report_refusal(self, topic: str, reason: str, *, too_long: bool = False) -> None:
        """Report, once per topic and connection, that the broker refuses frames there."""
        if topic not in self._refused_topics and len(self._refused_topics) < _MOST_REFUSED_TOPICS:
            self._refused_topics.add(topic)
            _log.warning("broker %s refuses frames on %s: %s", self._settings.address, topic, reason)
            self._inbox.put(SendRefused(topic, reason, too_long))

    def _on_disconnect(
        self, _client: Client, _data: object, flags: DisconnectFlags, code: ReasonCode, _properties: Properties | None
    ) -> None:
        settings = self._settings
        if flags.is_disconnect_packet_from_server:
            self._end(reasons.closed_by_broker(code.value, code.getName(), settings.client_id))
        else:
            if self._tls is not None and self._tls.fault is not None and not self._accepted:
                self._end(reasons.tls_failed(self._tls.fault, settings.address, settings.tls.advice))
            self._silent = not self._accepted and self._ending is None
            self._end(reasons.connection_lost(code.getName(), settings.address, accepted=self._accepted))


def _do_not_write_here(_client: Client, _data: object, _connection: object) -> None:
    """No-op: while this callback is set, paho's publish leaves writing to the socket loop."""


def _with_errors_logged(handler: Callable[..., None]) -> Callable[..., None]:
    """Wrap a callback so that its exceptions are logged; one that escaped would end the network thread."""

    @wraps(handler)
    def call(*arguments: Any) -> None:
        try:
            handler(*arguments)
        except Exception:  # noqa: BLE001  logged with its trace; none may escape
            _log.exception("error while handling an MQTT event; the connection continues")

    return call

"""The MQTT transport: frames over any broker, MQTT 5 where it is spoken, 3.1.1 where not.

Every connection gets a new paho client.  So nothing is sent twice by the library, nothing waits in it while the
broker is away, and no frame that a broker hangs up on can block a reconnect: what matters is sent again from above.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, DisconnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edge_sdk.errors import UsageError
from edge_sdk.protocol.topics import matches
from edge_sdk.transport.base import Connected, Incoming
from edge_sdk.transport.chunks.packets import MIN_CHUNK_BYTES, is_packet
from edge_sdk.transport.mqtt import reasons
from edge_sdk.transport.mqtt.connection import (
    CONNECT_TIMEOUT_S,
    LEAVE_S,
    LinkQueues,
    LinkSettings,
    ReconnectingTransport,
)
from edge_sdk.transport.mqtt.pace import Pace
from edge_sdk.transport.mqtt.reasons import DisconnectReason
from edge_sdk.transport.mqtt.retry import ConnectionResult
from edge_sdk.transport.mqtt.send_queue import MAX_IN_FLIGHT, QueuedMessage
from edge_sdk.transport.mqtt.socket_loop import SocketLoop
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles, tls_context
from edge_sdk.transport.mqtt.url import BrokerAddress, parse_broker_url

_log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 240 * 1024 * 1024
_PACKET_OVERHEAD_BYTES = 1024
"""Topic, properties and the header of a chunk."""
_TURN_S = 0.25
_SESSION_EXPIRY_S = 3600
_ANSWER_TIMEOUT_S = 10.0


class MqttTransport(ReconnectingTransport):
    """One MQTT client's link; reconnects by itself until closed, with random pauses of up to 0.2 s, doubling to 30 s.

    Frames longer than 64 KiB, or than the broker takes at once, travel in chunks and arrive whole.  A sent frame is
    lost when the link is down or breaks before the broker has acknowledged it, so send again on each `Connected`: one
    that was cut off in the middle then goes on from there.  `pace` keeps within the limits of hosted brokers.

    Frames queued in the broker's session may arrive before `Connected`; topics that no subscription covers never do.
    With `manual_ack` the broker keeps a frame, and brings it again after a reconnect, until its `acknowledge` was
    called, from any thread; chunks are acknowledged at once, for brokers stop after a few that are not.

    Raises UsageError for a URL that names no broker, and for TLS files that cannot be used.
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
        manual_ack: bool = False,
        keepalive_s: int = 60,
        seed: int,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        pace: Pace | None = None,
    ) -> None:
        address = parse_broker_url(url)
        if username is not None:
            address = BrokerAddress(address.host, address.port, address.tls, username, password)
        if not client_id:
            raise UsageError(f"the client id for broker {address} is empty; give each device its own")
        tls_context(tls, address)  # complains before anything is sent
        settings = LinkSettings(address, client_id, clean, manual_ack, keepalive_s, tls)
        super().__init__(settings, _Link, seed, max_frame_bytes, pace)


class _Link:
    """One connection from CONNECT to its end, driven by the thread that calls `run`."""

    def __init__(
        self,
        settings: LinkSettings,
        around: LinkQueues,
        on_packet_limit: Callable[[int | None], None],
        *,
        version_5: bool,
    ) -> None:
        self.ready = False  # subscribed, and so open for sending
        self._settings = settings
        self._inbox, self._outbox, self._porter = around.inbox, around.outbox, around.porter
        self._suspect = around.suspect
        self._on_packet_limit = on_packet_limit
        self._chunk_bytes: int | None = None
        self._accepted = False
        self._silent = False
        self._version_refused = False
        self._ending: DisconnectReason | None = None
        self._oldest: QueuedMessage | None = None
        self._unacknowledged: set[int] = set()
        self._ready_since_s = 0.0
        self._warned = False
        self._tls = tls_context(settings.tls, settings.address)
        self._client = self._build(version_5=version_5)
        self._pump = SocketLoop()

    def wake(self) -> None:
        """Let the driving thread look around; from any thread."""
        self._pump.wake()

    def acknowledge(self, packet_id: int) -> None:
        """Let the broker forget a frame, once; from any thread, also after the link's end."""
        with suppress(KeyError):
            self._unacknowledged.remove(packet_id)
            self._client.ack(packet_id, 1)
            self._pump.wake()

    def run(self, closing: threading.Event) -> ConnectionResult:
        """Connect, serve until the link ends, and say how it went."""
        try:
            self._connect()
            self._drive(closing)
        except Exception as error:  # noqa: BLE001  told in the outcome
            self._end(reasons.failed(error, self._settings.address, CONNECT_TIMEOUT_S))
        finally:
            self._let_go()
        return ConnectionResult(
            self._ending or DisconnectReason("broker closed the connection"),
            self._accepted,
            self._silent,
            self._version_refused,
            time.monotonic() - self._ready_since_s if self.ready else 0.0,
            self._oldest,
        )

    def _let_go(self) -> None:
        self._oldest = self._outbox.oldest()
        self._outbox.link_lost()
        connection = self._client.socket()
        if connection is not None:
            connection.close()
        self._pump.close()

    def _build(self, *, version_5: bool) -> Client:
        client = Client(
            CallbackAPIVersion.VERSION2,
            self._settings.client_id,
            clean_session=None if version_5 else self._settings.clean,
            protocol=MQTTProtocolVersion.MQTTv5 if version_5 else MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
            manual_ack=self._settings.manual_ack,
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
        client.on_socket_open = _shielded(self._on_socket_open)
        client.on_socket_register_write = _leave_writing_to_the_pump
        client.on_connect = _shielded(self._on_connect)
        client.on_subscribe = _shielded(self._on_subscribe)
        client.on_message = _shielded(self._on_message)
        client.on_publish = _shielded(self._on_publish)
        client.on_disconnect = _shielded(self._on_disconnect)
        return client

    def _connect(self) -> None:
        settings, address = self._settings, self._settings.address
        if self._client.protocol == MQTTProtocolVersion.MQTTv311:
            self._client.connect(address.host, address.port, settings.keepalive_s)
            return
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call] # paho left it untyped
        properties.SessionExpiryInterval = 0 if settings.clean else _SESSION_EXPIRY_S
        self._client.connect(
            address.host, address.port, settings.keepalive_s, clean_start=settings.clean, properties=properties
        )

    def _drive(self, closing: threading.Event) -> None:
        answer_by_s = time.monotonic() + _ANSWER_TIMEOUT_S
        while self._turn(reading=not self._inbox.full):
            if closing.is_set():
                self._leave()
                return
            if not self.ready and time.monotonic() > answer_by_s:
                self._version_refused = not self._accepted  # some answer MQTT 5 with silence
                self._end(DisconnectReason(f"{self._settings.address} does not answer (is it an MQTT broker?)"))
                return

    def _turn(self, *, reading: bool) -> bool:
        """Send what may go, wait for news, look after what was left incomplete."""
        if self.ready:
            self._hand_over()
        pause_s = self._outbox.next_in_s()
        most_s = _TURN_S if pause_s is None or pause_s == 0.0 else min(pause_s, _TURN_S)
        connected = self._pump.turn(self._client, reading=reading, most_s=most_s)
        for rejected in self._porter.look_after(time.monotonic()):
            self._inbox.put(rejected)
        return connected

    def _hand_over(self) -> None:
        while (item := self._outbox.next()) is not None:
            receipt = self._client.publish(item.topic, item.payload, qos=1, retain=item.retain)
            if receipt.rc == MQTTErrorCode.MQTT_ERR_SUCCESS:
                self._outbox.handed(receipt.mid, item)

    def _leave(self) -> None:
        self._client.disconnect()
        leave_by_s = time.monotonic() + LEAVE_S
        while self._pump.turn(self._client, reading=True) and time.monotonic() < leave_by_s:
            pass

    def _end(self, ending: DisconnectReason) -> None:
        """Keep the first reason: the later ones are its echo."""
        self._ending = self._ending or ending

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s", text)

    def _on_socket_open(self, _client: Client, _data: object, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _on_connect(
        self, client: Client, _data: object, _flags: ConnectFlags, code: ReasonCode, properties: Properties | None
    ) -> None:
        settings = self._settings
        if code.is_failure:
            self._version_refused = code.value == reasons.UNSUPPORTED_VERSION
            self._end(reasons.refused(code.value, code.getName(), settings.address, settings.client_id))
            return
        self._accepted = True
        if not self._fits(getattr(properties, "MaximumPacketSize", None)):
            client.disconnect()
        elif settings.subscriptions:
            client.subscribe([(pattern, 1) for pattern in settings.subscriptions])
        else:
            self._open()

    def _fits(self, packet_bytes: int | None) -> bool:
        """Whether the smallest chunk fits into a packet as long as the broker says; None: it says nothing."""
        self._on_packet_limit(packet_bytes)
        if packet_bytes is None:
            return True
        self._chunk_bytes = packet_bytes - _PACKET_OVERHEAD_BYTES
        if self._chunk_bytes >= MIN_CHUNK_BYTES:
            return True
        least_bytes = MIN_CHUNK_BYTES + _PACKET_OVERHEAD_BYTES
        self._end(reasons.packets_too_small(packet_bytes, least_bytes, self._settings.address))
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
        self._outbox.link_up(self._chunk_bytes)
        self.ready = True
        self._inbox.put(Connected())

    def _on_message(self, client: Client, _data: object, message: MQTTMessage) -> None:
        payload = bytes(message.payload)
        wanted = any(matches(pattern, message.topic) for pattern in self._settings.subscriptions)
        if not wanted:  # left over from an older subscription of this session, or a broker's mistake
            client.ack(message.mid, message.qos)
        elif is_packet(payload):
            client.ack(message.mid, message.qos)  # a broker stops after a few unacknowledged ones
            event = self._porter.take(message.topic, payload, time.monotonic())
            if event is not None:
                self._inbox.put(event)
        elif self._settings.manual_ack and message.qos:
            self._unacknowledged.add(message.mid)
            acknowledge = partial(self.acknowledge, message.mid)
            self._inbox.put(Incoming(message.topic, payload, acknowledge))
        else:
            self._inbox.put(Incoming(message.topic, payload))

    def _on_publish(
        self, _client: Client, _data: object, mid: int, code: ReasonCode, _properties: Properties | None
    ) -> None:
        item = self._outbox.acknowledged(mid)
        if item is not None:
            self._suspect.acknowledged(item)
        if code.is_failure:
            self._warn_once(f"broker {self._settings.address} did not take a frame: {code.getName()}")

    def _on_disconnect(
        self, _client: Client, _data: object, flags: DisconnectFlags, code: ReasonCode, _properties: Properties | None
    ) -> None:
        settings = self._settings
        if flags.is_disconnect_packet_from_server:
            self._end(reasons.dismissed(code.value, code.getName(), settings.client_id))
        else:
            if self._tls is not None and self._tls.fault is not None and not self._accepted:
                self._end(reasons.tls_failed(self._tls.fault, settings.address))
            self._silent = not self._accepted and self._ending is None
            self._end(reasons.lost(code.getName(), settings.address, accepted=self._accepted))


def _leave_writing_to_the_pump(_client: Client, _data: object, _connection: object) -> None:
    """While this is set, publish does not write in the caller's thread beside the pump."""


def _shielded(handler: Callable[..., None]) -> Callable[..., None]:
    """A callback from which no exception escapes: it would end the network thread."""

    @wraps(handler)
    def call(*arguments: Any) -> None:
        try:
            handler(*arguments)
        except Exception:  # noqa: BLE001  logged with its trace; nothing may pass
            _log.exception("a fault while handling an MQTT event; the link goes on")

    return call

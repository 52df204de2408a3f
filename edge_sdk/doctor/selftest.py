"""Talks to a broker on topics of its own, fl/v1/NAME/..., and notes what it does."""

from __future__ import annotations

import random
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from edge_sdk.doctor.broker import Seen
from edge_sdk.errors import LocalProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import CONTROL_LIMITS
from edge_sdk.transport.base import Connected, Disconnected, Incoming
from edge_sdk.transport.mqtt import MAX_FRAME_BYTES, MqttTransport
from edge_sdk.transport.mqtt_url import BrokerAddress, parse_broker_url

ECHOES = 11
ECHO_BYTES = 1024
CONNECTIONS = 3


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what, in seconds."""

    link_s: float = 10.0
    frame_s: float = 5.0
    quiet_s: float = 0.3
    """For what should not come."""


def look_at(url: str, name: str, patience: Patience = Patience()) -> Seen:  # frozen value
    """All that a broker shows.  Raises UsageError for a URL that names none; leaves nothing behind."""
    address = parse_broker_url(url)
    echo = topics.down(name, "doctor", "echo")
    try:
        with _linked(url, f"{name}-echo", (echo,), patience) as link:
            seen = Seen(
                connect_s=_connect_s(address),
                version=link.version,
                limit_bytes=None if link.max_frame_bytes == MAX_FRAME_BYTES else link.max_frame_bytes,
                echo_s=_echo_s(link, echo, patience),
            )
            if seen.echo_s is None:
                return seen
            seen = replace(seen, large=_large(link, echo, patience))
        seen = _with_wildcards(seen, url, name, patience)
        return _with_retained(seen, url, name, patience)
    except _NoLinkError as error:
        return Seen(reason=str(error))


class _NoLinkError(Exception):
    """There is no link; the text says why."""


@contextmanager
def _linked(url: str, client_id: str, patterns: Sequence[str], patience: Patience) -> Iterator[MqttTransport]:
    transport = MqttTransport(url, client_id, clean=True, seed=random.SystemRandom().getrandbits(32))
    transport.connect(patterns)
    try:
        _await_link(transport, patience.link_s)
        yield transport
    finally:
        transport.close()


def _await_link(transport: MqttTransport, within_s: float) -> None:
    reason, end_s = f"no answer within {within_s:g} s", time.monotonic() + within_s
    while (left_s := end_s - time.monotonic()) > 0:
        event = transport.poll(left_s)
        if isinstance(event, Connected):
            return
        if isinstance(event, Disconnected):
            reason = event.reason
            break  # a first failure is an answer: whoever asks wants to hear it now
    raise _NoLinkError(reason)


def _connect_s(address: BrokerAddress) -> float:
    """The shortest of a few TCP connections: the network's own time there and back."""
    times_s = []
    for _ in range(CONNECTIONS):
        begun_s = time.perf_counter()
        with socket.create_connection((address.host, address.port), timeout=5.0):
            times_s.append(time.perf_counter() - begun_s)
    return min(times_s)


def _echo_s(link: MqttTransport, topic: str, patience: Patience) -> float | None:
    """The median time until a frame is back; None where the first is not."""
    times_s = []
    for number in range(ECHOES):
        frame = number.to_bytes(4, "little") * (ECHO_BYTES // 4)
        begun_s = time.perf_counter()
        link.send(topic, frame)
        if not _heard(link, [(topic, frame)], patience.frame_s):
            return None
        times_s.append(time.perf_counter() - begun_s)
    return statistics.median(times_s)


def _large(link: MqttTransport, topic: str, patience: Patience) -> bool:
    frame = bytes(CONTROL_LIMITS.frame_bytes)
    try:
        link.send(topic, frame)
    except LocalProtocolError:  # larger than the broker says that it takes
        return False
    return _heard(link, [(topic, frame)], patience.frame_s)


def _with_wildcards(seen: Seen, url: str, name: str, patience: Patience) -> Seen:
    """As the coordinator and a device subscribe."""
    patterns = (*topics.coordinator_subscriptions(name), topics.device_subscriptions(name, "doctor")[0])
    wanted = [(topics.up(name, "doctor", "hello"), b"up"), (topics.down(name, "doctor", "task"), b"down")]
    with _linked(url, f"{name}-plus", patterns, patience) as link:
        for topic, frame in (*wanted, (topics.down(name, "other", "task"), b"stray")):
            link.send(topic, frame)
        heard = _heard(link, wanted, patience.frame_s)
        return replace(seen, wildcards=heard, strays=_anything(link, patience.quiet_s))


def _with_retained(seen: Seen, url: str, name: str, patience: Patience) -> Seen:
    topic = topics.coordinator_status(name)
    with _linked(url, f"{name}-first", (), patience) as link:
        link.send(topic, b"kept", retain=True)
    with _linked(url, f"{name}-later", (topic,), patience) as link:
        seen = replace(seen, retained=_heard(link, [(topic, b"kept")], patience.frame_s))
        link.send(topic, b"", retain=True)
    with _linked(url, f"{name}-last", (topic,), patience) as link:
        return replace(seen, cleared=not _anything(link, patience.quiet_s))


def _heard(link: MqttTransport, wanted: Sequence[tuple[str, bytes]], within_s: float) -> bool:
    """Whether all of these frames come in time."""
    missing, end_s = list(wanted), time.monotonic() + within_s
    while missing and (left_s := end_s - time.monotonic()) > 0:
        event = link.poll(left_s)
        if isinstance(event, Incoming) and (event.topic, event.frame) in missing:
            missing.remove((event.topic, event.frame))
    return not missing


def _anything(link: MqttTransport, within_s: float) -> bool:
    """Whether a frame with something in it comes."""
    end_s = time.monotonic() + within_s
    while (left_s := end_s - time.monotonic()) > 0:
        event = link.poll(left_s)
        if isinstance(event, Incoming) and event.frame:
            return True
    return False

"""Talks to a broker on topics of its own, fl/v1/NAME/..., and notes what it does."""

from __future__ import annotations

import random
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from edge_sdk.errors import LocalProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.codec import CONTROL_LIMITS
from edge_sdk.tools.doctor.broker import BrokerObservation
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Transport
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles
from edge_sdk.transport.mqtt.url import BrokerAddress, parse_broker_url

ECHOES = 11
ECHO_BYTES = 1024
CONNECTIONS = 3


@dataclass(frozen=True, slots=True)
class SelftestTimeouts:
    """How long to wait for what, in seconds."""

    link_s: float = 10.0
    frame_s: float = 5.0
    quiet_s: float = 0.3
    """For what should not come."""


class SelftestLink(Transport, Protocol):
    """A transport that tells what it found out about its broker."""

    @property
    def version(self) -> str:
        """Of MQTT."""

    @property
    def broker_limit_bytes(self) -> int | None:
        """The largest frame that the broker takes, where it says so."""


OpenSelftestLink = Callable[[str, str], SelftestLink]
"""(url, client id) -> a link that is not connected yet."""


def open_mqtt(url: str, client_id: str, tls: TlsFiles = NO_FILES) -> SelftestLink:
    """The link that devices and coordinators use."""
    from edge_sdk.transport.mqtt.transport import MqttTransport

    return MqttTransport(url, client_id, tls=tls, clean=True, seed=random.SystemRandom().getrandbits(32))


def run_selftest(
    url: str, name: str, patience: SelftestTimeouts = SelftestTimeouts(), open_link: OpenSelftestLink = open_mqtt
) -> BrokerObservation:  # frozen
    """All that a broker shows.  Raises UsageError for a URL that names none; leaves nothing behind."""
    address = parse_broker_url(url)
    tester = _Tester(url, name, patience, open_link)
    try:
        seen = tester.echo(address)
        return seen if seen.echo_s is None else tester.retained(tester.wildcards(seen))
    except _NoLinkError as error:
        return BrokerObservation(reason=str(error))


def echo_times_s(
    url: str,
    name: str,
    *,
    size_bytes: int,
    count: int,
    patience: SelftestTimeouts = SelftestTimeouts(),  # frozen
    open_link: OpenSelftestLink = open_mqtt,
) -> list[float]:
    """Times of echoes of so many bytes between two links to one broker; empty where one does not come back.

    Raises UsageError for a URL that names none.
    """
    parse_broker_url(url)
    try:
        return _Tester(url, name, patience, open_link).echoes(size_bytes, count)
    except _NoLinkError:
        return []


class _NoLinkError(Exception):
    """There is no link; the text says why."""


@dataclass(frozen=True, slots=True)
class _Tester:
    """The self-test, step by step."""

    url: str
    name: str
    patience: SelftestTimeouts
    open_link: OpenSelftestLink

    def echo(self, address: BrokerAddress) -> BrokerObservation:
        """Frames to and fro between two links, as between a device and its coordinator, on exact topics."""
        there, back = topics.up(self.name, "doctor", "echo"), topics.down(self.name, "doctor", "echo")
        with self._linked("near", back) as near, self._linked("far", there) as far:
            seen = BrokerObservation(
                connect_s=_connect_s(address),
                version=near.version,
                limit_bytes=near.broker_limit_bytes,
                echo_s=_echo_s((near, there), (far, back), self.patience),
            )
            return seen if seen.echo_s is None else replace(seen, large=_large(near, there, far, self.patience))

    def echoes(self, size_bytes: int, count: int) -> list[float]:
        """Times of echoes; empty where one is lost."""
        there, back = topics.up(self.name, "doctor", "echo"), topics.down(self.name, "doctor", "echo")
        with self._linked("near", back) as near, self._linked("far", there) as far:
            return _echo_times_s((near, there), (far, back), self.patience, size_bytes, count)

    def wildcards(self, seen: BrokerObservation) -> BrokerObservation:
        """Subscribe as the coordinator and a device do."""
        patterns = (*topics.coordinator_subscriptions(self.name), topics.device_subscriptions(self.name, "doctor")[0])
        wanted = [(topics.up(self.name, "doctor", "hello"), b"up"), (topics.down(self.name, "doctor", "task"), b"down")]
        with self._linked("plus", *patterns) as link:
            for topic, frame in (*wanted, (topics.down(self.name, "other", "task"), b"stray")):
                link.send(topic, frame)
            heard = _heard(link, wanted, self.patience.frame_s)
            return replace(seen, wildcards=heard, strays=_anything(link, self.patience.quiet_s))

    def retained(self, seen: BrokerObservation) -> BrokerObservation:
        """Leave a frame for one who comes later, and take it away again."""
        topic = topics.coordinator_status(self.name)
        with self._linked("first") as link:
            link.send(topic, b"kept", retain=True)
        with self._linked("later", topic) as link:
            seen = replace(seen, retained=_heard(link, [(topic, b"kept")], self.patience.frame_s))
            link.send(topic, b"", retain=True)
        with self._linked("last", topic) as link:
            return replace(seen, cleared=not _anything(link, self.patience.quiet_s))

    @contextmanager
    def _linked(self, role: str, *patterns: str) -> Iterator[SelftestLink]:
        link = self.open_link(self.url, f"{self.name}-{role}")
        link.connect(patterns)
        try:
            _await_link(link, self.patience.link_s)
            yield link
        finally:
            link.close()


def _await_link(transport: SelftestLink, within_s: float) -> None:
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


def _echo_s(near: tuple[SelftestLink, str], far: tuple[SelftestLink, str], patience: SelftestTimeouts) -> float | None:
    """The median time until a frame is back; None where one is lost.  Each link comes with the topic that it sends to.

    It takes two links: the delay of a side without TCP_NODELAY shows only where a frame follows an acknowledgement.
    """
    times_s = _echo_times_s(near, far, patience, ECHO_BYTES, ECHOES)
    return statistics.median(times_s) if times_s else None


def _echo_times_s(
    near: tuple[SelftestLink, str],
    far: tuple[SelftestLink, str],
    patience: SelftestTimeouts,
    size_bytes: int,
    count: int,
) -> list[float]:
    """The time of each echo; empty where one is lost."""
    times_s = []
    for number in range(count):
        frame = number.to_bytes(4, "little") * (size_bytes // 4)
        begun_s = time.perf_counter()
        for (sender, topic), (listener, _) in ((near, far), (far, near)):
            sender.send(topic, frame)
            if not _heard(listener, [(topic, frame)], patience.frame_s):
                return []
        times_s.append(time.perf_counter() - begun_s)
    return times_s


def _large(sender: SelftestLink, topic: str, listener: SelftestLink, patience: SelftestTimeouts) -> bool:
    frame = bytes(CONTROL_LIMITS.frame_bytes)
    try:
        sender.send(topic, frame)
    except LocalProtocolError:  # larger than the broker says that it takes
        return False
    return _heard(listener, [(topic, frame)], patience.frame_s)


def _heard(link: SelftestLink, wanted: Sequence[tuple[str, bytes]], within_s: float) -> bool:
    """Whether all of these frames come in time."""
    missing, end_s = list(wanted), time.monotonic() + within_s
    while missing and (left_s := end_s - time.monotonic()) > 0:
        event = link.poll(left_s)
        if isinstance(event, Incoming) and (event.topic, event.frame) in missing:
            missing.remove((event.topic, event.frame))
    return not missing


def _anything(link: SelftestLink, within_s: float) -> bool:
    """Whether a frame with something in it comes."""
    end_s = time.monotonic() + within_s
    while (left_s := end_s - time.monotonic()) > 0:
        event = link.poll(left_s)
        if isinstance(event, Incoming) and event.frame:
            return True
    return False

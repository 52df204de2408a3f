"""Tests a broker with messages on separate topics, fl/v1/NAME/..., and records its behaviour."""

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
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS
from edge_sdk.tools.doctor.broker import BrokerObservation
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Transport
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles
from edge_sdk.transport.mqtt.url import BrokerAddress, parse_broker_url

ECHOES = 11
ECHO_BYTES = 1024
CONNECTIONS = 3


@dataclass(frozen=True, slots=True)
class SelftestTimeouts:
    """Waiting times in seconds."""

    link_s: float = 10.0
    """The wait for a connection."""
    frame_s: float = 5.0
    """The wait for a frame that should arrive."""
    quiet_s: float = 0.3
    """The wait for a frame that should not arrive."""


class SelftestLink(Transport, Protocol):
    """A transport that knows the MQTT version and the limit of its broker."""

    @property
    def version(self) -> str:
        """The version of MQTT in use."""

    @property
    def broker_limit_bytes(self) -> int | None:
        """The largest packet that the broker accepts, or None if it states no limit."""


OpenSelftestLink = Callable[[str, str], SelftestLink]
"""A function of the broker's URL and a client id that returns a link, not connected yet."""


def open_mqtt(url: str, client_id: str, tls: TlsFiles = NO_FILES) -> SelftestLink:
    """The link that devices and coordinators use."""
    from edge_sdk.transport.mqtt.transport import MqttTransport

    return MqttTransport(url, client_id, tls=tls, clean=True, seed=random.SystemRandom().getrandbits(32))


def run_selftest(
    url: str, name: str, timeouts: SelftestTimeouts = SelftestTimeouts(), open_link: OpenSelftestLink = open_mqtt
) -> BrokerObservation:  # frozen
    """Test a broker and return the observations; leaves no retained frame behind.

    name: an unused federation id.  Raises UsageError for a URL that is not one of a broker.
    """
    address = parse_broker_url(url)
    tester = _Tester(url, name, timeouts, open_link)
    try:
        observed = tester.echo(address)
        return observed if observed.echo_s is None else tester.retained(tester.wildcards(observed))
    except _NoLinkError as error:
        return BrokerObservation(reason=str(error))


def echo_times_s(
    url: str,
    name: str,
    *,
    size_bytes: int,
    count: int,
    timeouts: SelftestTimeouts = SelftestTimeouts(),  # frozen
    open_link: OpenSelftestLink = open_mqtt,
) -> list[float]:
    """Return the times of `count` echoes of `size_bytes` bytes between two links to one broker.

    An echo goes from one link to the other and back.  The list is empty if one does not come back.  Raises UsageError
    for a URL that is not one of a broker.
    """
    parse_broker_url(url)
    try:
        return _Tester(url, name, timeouts, open_link).echoes(size_bytes, count)
    except _NoLinkError:
        return []


class _NoLinkError(Exception):
    """Not connected; the message has the reason."""


@dataclass(frozen=True, slots=True)
class _Tester:
    """The steps of the self-test."""

    url: str
    name: str
    timeouts: SelftestTimeouts
    open_link: OpenSelftestLink

    def echo(self, address: BrokerAddress) -> BrokerObservation:
        """Send frames back and forth between two links, as between a device and its coordinator, without wildcards."""
        there, back = topics.up(self.name, "doctor", "echo"), topics.down(self.name, "doctor", "echo")
        with self._linked("near", back) as near, self._linked("far", there) as far:
            observed = BrokerObservation(
                connect_s=_connect_s(address),
                version=near.version,
                limit_bytes=near.broker_limit_bytes,
                echo_s=_echo_s((near, there), (far, back), self.timeouts),
            )
            return (
                observed
                if observed.echo_s is None
                else replace(observed, large=_large(near, there, far, self.timeouts))
            )

    def echoes(self, size_bytes: int, count: int) -> list[float]:
        """Return the times of echoes in seconds; empty if one is lost."""
        there, back = topics.up(self.name, "doctor", "echo"), topics.down(self.name, "doctor", "echo")
        with self._linked("near", back) as near, self._linked("far", there) as far:
            return _echo_times_s((near, there), (far, back), self.timeouts, size_bytes, count)

    def wildcards(self, observed: BrokerObservation) -> BrokerObservation:
        """Subscribe with wildcards, as the coordinator and a device do."""
        patterns = (*topics.coordinator_subscriptions(self.name), topics.device_subscriptions(self.name, "doctor")[0])
        wanted = [(topics.up(self.name, "doctor", "hello"), b"up"), (topics.down(self.name, "doctor", "task"), b"down")]
        with self._linked("plus", *patterns) as link:
            for topic, frame in (*wanted, (topics.down(self.name, "other", "task"), b"stray")):
                link.send(topic, frame)
            heard = _heard(link, wanted, self.timeouts.frame_s)
            return replace(observed, wildcards=heard, strays=_anything(link, self.timeouts.quiet_s))

    def retained(self, observed: BrokerObservation) -> BrokerObservation:
        """Publish a retained frame, check that a later subscriber receives it, and delete it."""
        topic = topics.coordinator_status(self.name)
        with self._linked("first") as link:
            link.send(topic, b"kept", retain=True)
        with self._linked("later", topic) as link:
            observed = replace(observed, retained=_heard(link, [(topic, b"kept")], self.timeouts.frame_s))
            link.send(topic, b"", retain=True)
        with self._linked("last", topic) as link:
            return replace(observed, cleared=not _anything(link, self.timeouts.quiet_s))

    @contextmanager
    def _linked(self, role: str, *patterns: str) -> Iterator[SelftestLink]:
        link = self.open_link(self.url, f"{self.name}-{role}")
        link.connect(patterns)
        try:
            _await_link(link, self.timeouts.link_s)
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
            break  # the first failure is the result; the transport would try again
    raise _NoLinkError(reason)


def _connect_s(address: BrokerAddress) -> float:
    """Return the time of the fastest of a few TCP connections, which is the round trip of the network."""
    times_s = []
    for _ in range(CONNECTIONS):
        begun_s = time.perf_counter()
        with socket.create_connection((address.host, address.port), timeout=5.0):
            times_s.append(time.perf_counter() - begun_s)
    return min(times_s)


def _echo_s(near: tuple[SelftestLink, str], far: tuple[SelftestLink, str], timeouts: SelftestTimeouts) -> float | None:
    """Return the median time of an echo, or None if one is lost.  Each link comes with the topic that it sends to.

    There are two links because the delay of a side without TCP_NODELAY occurs only if a frame follows an
    acknowledgement.
    """
    times_s = _echo_times_s(near, far, timeouts, ECHO_BYTES, ECHOES)
    return statistics.median(times_s) if times_s else None


def _echo_times_s(
    near: tuple[SelftestLink, str],
    far: tuple[SelftestLink, str],
    timeouts: SelftestTimeouts,
    size_bytes: int,
    count: int,
) -> list[float]:
    """Return the time of each echo; empty if one is lost."""
    times_s = []
    for number in range(count):
        frame = number.to_bytes(4, "little") * (size_bytes // 4)
        begun_s = time.perf_counter()
        for (sender, topic), (listener, _) in ((near, far), (far, near)):
            sender.send(topic, frame)
            if not _heard(listener, [(topic, frame)], timeouts.frame_s):
                return []
        times_s.append(time.perf_counter() - begun_s)
    return times_s


def _large(sender: SelftestLink, topic: str, listener: SelftestLink, timeouts: SelftestTimeouts) -> bool:
    frame = bytes(CONTROL_LIMITS.frame_bytes)
    try:
        sender.send(topic, frame)
    except LocalProtocolError:  # above the limit that the broker states
        return False
    return _heard(listener, [(topic, frame)], timeouts.frame_s)


def _heard(link: SelftestLink, wanted: Sequence[tuple[str, bytes]], within_s: float) -> bool:
    """Whether all of these frames arrive within `within_s` seconds."""
    missing, end_s = list(wanted), time.monotonic() + within_s
    while missing and (left_s := end_s - time.monotonic()) > 0:
        event = link.poll(left_s)
        if isinstance(event, Incoming) and (event.topic, event.frame) in missing:
            missing.remove((event.topic, event.frame))
    return not missing


def _anything(link: SelftestLink, within_s: float) -> bool:
    """Whether a frame that is not empty arrives within `within_s` seconds."""
    end_s = time.monotonic() + within_s
    while (left_s := end_s - time.monotonic()) > 0:
        event = link.poll(left_s)
        if isinstance(event, Incoming) and event.frame:
            return True
    return False

"""The parts of the MQTT transport that need no broker."""

from __future__ import annotations

import re
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.errors import UsageError
from edge_sdk.transport.base import Connected, Disconnected, Incoming
from edge_sdk.transport.mqtt import reasons
from edge_sdk.transport.mqtt.hidden_limits import HiddenLimits
from edge_sdk.transport.mqtt.incoming import Inbox
from edge_sdk.transport.mqtt.paho_client import SocketLoop
from edge_sdk.transport.mqtt.reasons import DisconnectReason
from edge_sdk.transport.mqtt.retry import ConnectionResult, Retry, RetryDecision
from edge_sdk.transport.mqtt.tls import OF_CLAIM, OF_DEVICE, OF_FILES, OF_LAB, CertificateAdvice
from edge_sdk.transport.mqtt.url import BrokerAddress, parse_broker_url

HERE = BrokerAddress("lab", 1883)


@dataclass(frozen=True)
class Sent:
    """A message that was handed over."""

    topic: str
    size_bytes: int


# --- URLs


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("mqtt://lab", BrokerAddress("lab", 1883)),
        ("mqtt://127.0.0.1:1884/", BrokerAddress("127.0.0.1", 1884)),
        ("mqtts://lab", BrokerAddress("lab", 8883, tls=True)),
        ("mqtt://[::1]:1884", BrokerAddress("::1", 1884)),
        ("mqtt://ann:p%40ss%3A@lab:9", BrokerAddress("lab", 9, username="ann", password="p@ss:")),
        ("mqtts://ann@lab", BrokerAddress("lab", 8883, tls=True, username="ann")),
    ],
)
def test_broker_urls(url: str, address: BrokerAddress) -> None:
    assert parse_broker_url(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "does not start with mqtt://"),
        ("lab:1883", "does not start with mqtt://"),
        ("http://lab", "does not start with mqtt://"),
        ("mqtt://", "names no host"),
        ("mqtt://my host", "names no host"),
        ("mqtt://:1883", "names no host"),
        ("mqtt://lab:port", "Port could not be cast"),
        ("mqtt://lab:99999", "Port out of range"),
        ("mqtt://lab:0", "port 0"),
        ("mqtt://[::1", "Invalid IPv6 URL"),
        ("mqtt://lab/topic", "nothing may follow the port"),
        ("mqtt://lab?x=1", "nothing may follow the port"),
        ("mqtt://:secret@lab", "password without a user name"),
    ],
)
def test_broker_urls_that_are_none(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        parse_broker_url(url)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    port = 1
    with suppress(UsageError):
        port = parse_broker_url("mqtt://" + text).port
    assert 0 < port < 65536


@pytest.mark.parametrize(
    "url", ["mqtt://ann:secret@lab/x", "mqtt://ann:secret@", "mqtt://a:b@c:secret@lab:x", "ftp://:secret@h"]
)
def test_a_password_is_never_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_broker_url(url)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(parse_broker_url("mqtt://ann:secret@lab"))


# --- reasons


def untrusted() -> ssl.SSLCertVerificationError:
    """As for a certificate that nobody signed."""
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = 18, "self-signed"
    return error


def alert(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "reason", "final"),
    [
        (
            untrusted(),
            r"certificate of lab:1883 .*self-signed; .*--ca",
            True,
        ),
        (
            alert("TLSV1_ALERT_PROTOCOL_VERSION"),
            r"lab:1883 .*no TLS .*tls_version tlsv1\.2",
            True,
        ),
        (
            alert("UNSUPPORTED_PROTOCOL"),
            r"lab:1883 .*no TLS .*tls_version tlsv1\.2",
            True,
        ),
        (
            alert("SSLV3_ALERT_CERTIFICATE_REVOKED"),
            r"lab:1883 .*our certificate .*revoked: .*--cert",
            True,
        ),
        (
            alert("WRONG_VERSION_NUMBER"),
            r"no TLS .*lab:1883: WRONG_VERSION_NUMBER.*port",
            False,
        ),
        (socket.gaierror(-2, "unknown"), r"name lab .*resolved", False),
        (ConnectionRefusedError(111, "no"), r"refused by lab:1883", False),
        (TimeoutError(), r"no answer .*lab:1883 .*5 s", False),
        (ConnectionResetError(), r"lab:1883 closed the connection", False),
        (OSError(113, "No route to host"), r"lab:1883 .*reached: No route", False),
        (KeyError("x"), r"lab:1883 failed: KeyError\('x'\)", False),
    ],
)
def test_errors_of_the_network_in_words(error: Exception, reason: str, final: bool) -> None:
    ending = reasons.connection_failed(error, HERE, 5.0)
    assert re.search(reason, ending.reason)
    assert (ending.final, ending.slow) == (final, False)


@pytest.mark.parametrize(
    ("advice", "own", "authority"),
    [
        (OF_FILES, "--cert, --key", "--ca FILE"),
        (OF_DEVICE, "new claim, and enrol again", "--identity"),
        (OF_CLAIM, "new claim", "of the lab that made this claim"),
        (OF_LAB, "the folder of the lab", "the folder of the lab"),
    ],
)
def test_what_to_do_about_a_certificate_depends_on_where_it_comes_from(
    advice: CertificateAdvice, own: str, authority: str
) -> None:
    """The owner of a device that enrolled gave no --cert, and has no other one to give."""
    assert authority in reasons.connection_failed(untrusted(), HERE, 5.0, advice).reason
    alerts = ("SSLV3_ALERT_CERTIFICATE_REVOKED", "TLSV1_ALERT_UNKNOWN_CA", "TLSV1_ALERT_DECRYPT_ERROR")
    for ending in (reasons.tls_failed(alert(each), HERE, advice) for each in alerts):
        assert own in ending.reason
        assert ("--cert" in ending.reason) is (advice is OF_FILES)
        assert ending.final


@pytest.mark.parametrize(
    ("code", "final"), [(133, True), (134, True), (135, True), (138, True), (136, False), (151, False), (128, False)]
)
def test_only_refusals_that_stay_are_final(code: int, final: bool) -> None:
    ending = reasons.connection_refused(code, "its name", HERE, "me")
    assert ending.final == final
    assert "lab:1883" in ending.reason


def test_silence_and_hang_ups_in_words() -> None:
    assert "keep-alive" in reasons.connection_lost("Keep alive timeout", HERE, accepted=True).reason
    assert reasons.connection_lost("Unspecified error", HERE, accepted=True).reason == "broker closed the connection"
    assert "an MQTT broker?" in reasons.connection_lost("Unspecified error", HERE, accepted=False).reason
    assert reasons.closed_by_broker(0, "Normal disconnection", "me").reason == "broker closed the connection"
    assert reasons.closed_by_broker(139, "Server shutting down", "me").reason.endswith("Server shutting down")


# --- retrying


def gone(reason: str = "gone", **more: object) -> ConnectionResult:
    return ConnectionResult(DisconnectReason(reason), **more)  # type: ignore[arg-type]


def test_a_reason_is_reported_again_only_when_it_changes_or_a_link_stood() -> None:
    retry = Retry(1, HiddenLimits())
    outcomes = [gone("a"), gone("a"), gone("b"), gone("b", ready_s=1.0, accepted=True), gone("b")]
    reports = [retry.decide(outcome).report for outcome in outcomes]
    assert reports == [Disconnected("a"), None, Disconnected("b"), Disconnected("b"), None]


def test_a_final_reason_ends_the_attempts() -> None:
    verdict = Retry(1, HiddenLimits()).decide(ConnectionResult(DisconnectReason("not authorised", final=True)))
    assert verdict == RetryDecision(Disconnected("not authorised", final=True), None)


@given(seed=st.integers(0, 2**32), failures=st.integers(1, 40))
def test_pauses_are_random_doubling_bounded_and_seeded(seed: int, failures: int) -> None:
    one, two = Retry(seed, HiddenLimits()), Retry(seed, HiddenLimits())
    pauses = [one.decide(gone()).pause_s for _ in range(failures)]
    assert pauses == [two.decide(gone()).pause_s for _ in range(failures)]
    for n, pause_s in enumerate(pauses, start=1):
        assert pause_s is not None
        assert 0.0 <= pause_s <= min(30.0, 0.2 * 2**n)


def test_pauses_use_their_whole_range() -> None:
    retry = Retry(7, HiddenLimits())
    late = [retry.decide(gone()).pause_s or 0.0 for _ in range(300)][20:]
    assert min(late) < 3.0
    assert 27.0 < max(late) <= 30.0


def test_a_link_that_stood_makes_the_pauses_short_again() -> None:
    retry = Retry(3, HiddenLimits())
    for _ in range(20):
        retry.decide(gone())
    assert (retry.decide(gone(accepted=True, ready_s=2.5)).pause_s or 0.0) <= 0.2


def test_the_version_changes_once_refused_or_twice_closed_and_stays_once_accepted() -> None:
    retry = Retry(1, HiddenLimits())
    assert retry.decide(gone(version_refused=True)) == RetryDecision(None, 0.0)
    assert not retry.version_5
    silent = Retry(1, HiddenLimits())
    versions = []
    for _ in range(5):
        silent.decide(gone(closed_without_answer=True))
        versions.append(silent.version_5)
    assert versions == [True, False, False, True, True]
    proven = Retry(1, HiddenLimits())
    proven.decide(gone(accepted=True, ready_s=1.0))
    for _ in range(5):
        proven.decide(gone(closed_without_answer=True, version_refused=True))
    assert proven.version_5


# --- frames on their way


def test_a_frame_is_dropped_after_three_disconnects_in_a_row() -> None:
    limits, big, other = HiddenLimits(), Sent("t", 9), Sent("u", 9)
    assert [limits.note_disconnect(sent) for sent in (big, big, other, big, big)] == [False] * 5
    assert not limits.should_drop("t", 9)
    assert limits.note_disconnect(big)
    assert not limits.should_drop("t", 8)
    assert [limits.should_drop("t", 9) for _ in range(2)] == [True, False]
    assert limits.note_disconnect(big)


def test_an_acknowledged_or_absent_frame_is_not_dropped() -> None:
    limits, sent = HiddenLimits(), Sent("t", 9)
    for _ in range(3):
        limits.note_disconnect(sent)
    limits.note_acknowledged(sent)
    assert not limits.should_drop("t", 9)
    assert [limits.note_disconnect(None) for _ in range(4)] == [False] * 4


def test_poison_is_told_in_the_reason() -> None:
    retry = Retry(1, HiddenLimits())
    outcome = gone(accepted=True, ready_s=1.0, oldest_unacknowledged=Sent("t/a", 77))
    reports = [retry.decide(outcome).report for _ in range(3)]
    assert reports[1] == Disconnected("gone")
    assert isinstance(reports[2], Disconnected)
    assert "77 bytes for t/a" in reports[2].reason


def test_a_broker_that_hangs_up_on_chunks_gets_smaller_ones() -> None:
    limits, asked = HiddenLimits(), []
    retry = Retry(1, limits, shrink_chunks=lambda size_bytes: asked.append(size_bytes) is None)
    outcome = gone(accepted=True, ready_s=1.0, oldest_unacknowledged=Sent("t/a", 70_000))
    reports = [retry.decide(outcome).report for _ in range(3)]
    assert isinstance(reports[2], Disconnected)
    assert "70000 bytes" in reports[2].reason
    assert asked == [70_000]
    assert not limits.should_drop("t/a", 70_000)


def test_long_answers_to_many_receivers_get_smaller_chunks_too() -> None:
    """The broker hangs up on each of them for its length; which one comes first is another one each time."""
    limits, asked = HiddenLimits(), []
    retry = Retry(1, limits, shrink_chunks=lambda size_bytes: asked.append(size_bytes) is None)

    def hangs_up(topic: str, size_bytes: int) -> None:
        retry.decide(gone(accepted=True, ready_s=1.0, oldest_unacknowledged=Sent(topic, size_bytes)))

    hangs_up("t/a", 61_000), hangs_up("t/b", 70_000)
    limits.note_acknowledged(Sent("t/c", 500))
    hangs_up("t/short", 500)
    assert asked == []
    hangs_up("t/c", 65_000)
    assert asked == [61_000]
    hangs_up("t/a", 30_000), hangs_up("t/b", 30_000)
    limits.note_acknowledged(Sent("t/c", 30_000))  # so it was not the length
    hangs_up("t/c", 30_000)
    assert asked == [61_000]
    for topic in "abcdef":
        hangs_up(topic, 500)
    assert asked == [61_000]


# --- the inbox and the socket loop


def test_an_inbox_is_full_by_frames_or_bytes_and_empties_in_order() -> None:
    inbox = Inbox(max_frames=3, max_bytes=10)
    inbox.put(Connected())
    inbox.put(Incoming("t", bytes(9)))
    assert not inbox.full
    inbox.put(Incoming("u", b"1"))
    assert inbox.full
    assert inbox.get(0) == Connected()
    assert inbox.full
    assert [event.topic for event in (inbox.get(0), inbox.get(-1.0)) if isinstance(event, Incoming)] == ["t", "u"]
    assert not inbox.full
    assert inbox.get(0.01) is None


class Line:
    """A client whose bytes a test sees."""

    def __init__(self, connection: socket.socket | None) -> None:
        self.connection, self.calls, self.waiting, self.has_packet = connection, [], False, False

    def socket(self) -> socket.socket | None:
        return self.connection

    def want_write(self) -> bool:
        return self.waiting

    def loop_read(self) -> None:
        assert self.connection is not None
        self.calls.append(self.connection.recv(100))

    def loop_write(self) -> None:
        self.calls.append("write")
        self.waiting = False

    def note_alive(self) -> None:
        self.calls.append("alive")

    def loop_misc(self) -> None:
        self.calls.append("misc")


def test_the_socket_loop_reads_writes_pauses_and_wakes() -> None:
    near, far = socket.socketpair()
    with near, far:
        loop, line = SocketLoop(), Line(near)
        far.sendall(b"1")
        assert loop.run_once(line, may_read=lambda: False)
        assert line.calls == ["alive", "misc"]
        assert loop.run_once(line, may_read=lambda: True)
        assert line.calls == ["alive", "misc", b"1", "misc"]
        line.waiting = True
        loop.run_once(line, may_read=lambda: False)
        assert line.calls[4:] == ["write", "alive", "misc"]
        loop.wake()
        loop.run_once(line, may_read=lambda: True)
        line.connection = None
        assert not loop.run_once(line, may_read=lambda: True)
        loop.close()
        loop.wake()


def test_the_socket_loop_reads_on_while_there_is_room_for_what_came_with_a_packet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    near, far = socket.socketpair()
    with near, far:
        loop, line = SocketLoop(), Line(near)
        left = iter((True, True, False))

        def read() -> None:
            line.calls.append("read")
            line.has_packet = next(left)

        monkeypatch.setattr(line, "loop_read", read)
        far.sendall(b"1")
        loop.run_once(line, may_read=lambda: len(line.calls) != 2)
        assert line.calls == ["read", "read", "misc"]
        near.recv(1)
        assert loop.run_once(line, may_read=lambda: False)
        assert line.calls[3:] == ["alive", "misc"]
        assert loop.run_once(line, may_read=lambda: True)  # from what was read ahead: nothing comes from the socket
        assert line.calls[5:] == ["read", "misc"]
        loop.close()


def test_a_turn_ends_when_the_connection_went_in_it() -> None:
    near, far = socket.socketpair()
    with near, far:
        loop, line = SocketLoop(), Line(near)
        line.loop_misc = lambda: setattr(line, "connection", None)  # type: ignore[method-assign]
        far.sendall(b"1")
        assert not loop.run_once(line, may_read=lambda: True)
        loop.close()

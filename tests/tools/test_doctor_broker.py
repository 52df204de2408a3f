"""The checks of a broker: judged from what a self-test saw, and the self-test against a real one, whole and broken."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace

import pytest

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.errors import UsageError
from edge_sdk.tools.doctor import broker as judging
from edge_sdk.tools.doctor.broker import BrokerObservation
from edge_sdk.tools.doctor.command import broker_checks
from edge_sdk.tools.doctor.finding import CheckTarget, Finding, Level, run_checks
from edge_sdk.tools.selftest import SelftestTimeouts, run_selftest
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.mqtt.transport import MqttTransport

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL
GOOD = BrokerObservation(
    connect_s=0.001, version="5", echo_s=0.003, large=True, wildcards=True, strays=False, retained=True, cleared=True
)
SHORT = SelftestTimeouts(frame_s=1.5, quiet_s=0.3)
"""For what does not come; a busy machine must still be in time with what does."""


def says(finding: Finding, level: Level, found: str, remedy: str = "") -> None:
    assert finding.level is level, finding
    assert re.search(found, finding.found), finding
    assert re.search(remedy, finding.remedy), finding
    assert bool(finding.remedy) == (level is not OK)


def test_the_link():
    says(judging.judge_link(GOOD), OK, "1.00 ms, speaks MQTT 5")
    says(judging.judge_link(BrokerObservation(reason="connection refused by lab:1883")), FAIL, "refused", "firewall")


@pytest.mark.parametrize(
    ("connect_s", "echo_s", "level"),
    [(0.0002, 0.0008, OK), (0.0002, 0.044, WARN), (0.05, 0.11, OK), (0.05, 0.145, WARN), (0.0, None, WARN)],
)
def test_latency_is_judged_against_the_networks_own(connect_s, echo_s, level):
    finding = judging.judge_latency(replace(GOOD, connect_s=connect_s, echo_s=echo_s))
    says(finding, level, "", "" if level is OK else "set_tcp_nodelay true|login")


def test_size():
    says(judging.judge_size(GOOD), OK, "states no limit; 196608 bytes arrived")
    says(judging.judge_size(replace(GOOD, limit_bytes=300_000)), OK, "up to 300000 bytes")
    says(
        judging.judge_size(replace(GOOD, large=False, limit_bytes=1000)),
        WARN,
        "1000 .* did not arrive",
        "max_packet_size",
    )


def test_wildcards():
    says(judging.judge_wildcards(GOOD), OK, "receive what they should")
    says(judging.judge_wildcards(replace(GOOD, wildcards=False)), FAIL, "received nothing", "another broker")
    says(judging.judge_wildcards(replace(GOOD, strays=True)), FAIL, "for others", "another broker")


def test_retained():
    says(judging.judge_retained(GOOD), OK, "kept")
    says(judging.judge_retained(replace(GOOD, retained=False)), WARN, "not kept", "retain_available")
    says(judging.judge_retained(replace(GOOD, cleared=False)), WARN, "does not delete", "by hand")


def test_without_a_link_there_is_one_line_and_not_five(tmp_path):
    names = [check.name for check in broker_checks(BrokerObservation(reason="gone"))]
    assert names == ["broker"]
    examined = run_checks(broker_checks(GOOD), CheckTarget(state=tmp_path))
    assert [each.finding.level for each in examined] == [OK] * 5


# -- the self-test --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with EmbeddedBroker() as running:
        yield running.url


@pytest.mark.broker
def test_a_good_broker_shows_all_and_is_left_clean(url):
    seen = run_selftest(url, "doctor-good")
    assert seen.reason == ""
    assert seen.version in ("5", "3.1.1")
    assert 0 < seen.echo_s < 1
    assert (seen.large, seen.wildcards, seen.strays, seen.retained, seen.cleared) == (True, True, False, True, True)
    again = run_selftest(url, "doctor-good")
    assert replace(again, connect_s=0, echo_s=0) == replace(seen, connect_s=0, echo_s=0)


def broken(**methods):
    """A way to open links that do something else."""
    kind = type("BrokenTransport", (MqttTransport,), methods)
    return lambda url, client_id: kind(url, client_id, clean=True, seed=1)


@pytest.mark.broker
def test_a_broker_that_keeps_nothing(url):
    def send(self, topic, frame, *, retain=False):
        MqttTransport.send(self, topic, frame, retain=retain and not frame)

    link = broken(send=send)
    seen = run_selftest(url, "doctor-forgets", SHORT, link)
    assert (seen.retained, seen.wildcards) == (False, True)


@pytest.mark.broker
def test_a_broker_that_cannot_clear(url):
    def send(self, topic, frame, *, retain=False):
        if frame:
            MqttTransport.send(self, topic, frame, retain=retain)

    link = broken(send=send)
    seen = run_selftest(url, "doctor-keeps", SHORT, link)
    assert (seen.retained, seen.cleared) == (True, False)
    assert run_selftest(url, "doctor-keeps", SHORT).cleared is True  # and takes its own leftovers away


@pytest.mark.broker
def test_a_broker_that_loses_large_frames(url):
    def send(self, topic, frame, *, retain=False):
        if len(frame) < 100_000:
            MqttTransport.send(self, topic, frame, retain=retain)

    link = broken(send=send)
    seen = run_selftest(url, "doctor-small", SHORT, link)
    assert (seen.large, seen.wildcards, seen.retained) == (False, True, True)


@pytest.mark.broker
def test_a_broker_that_states_a_small_limit(url):
    link = broken(broker_limit_bytes=property(lambda _self: 70_000))
    assert run_selftest(url, "doctor-limit", SHORT, link).limit_bytes == 70_000


@pytest.mark.broker
def test_a_broker_without_wildcards(url):
    def connect(self, subscriptions, will=None):
        MqttTransport.connect(self, [pattern for pattern in subscriptions if "+" not in pattern], will)

    link = broken(connect=connect)
    seen = run_selftest(url, "doctor-plain", SHORT, link)
    assert (seen.wildcards, seen.echo_s is not None) == (False, True)


@pytest.mark.broker
def test_a_broker_that_sends_everything_to_everybody(url):
    heard = []

    def poll(self, timeout_s):
        event = MqttTransport.poll(self, timeout_s)
        if isinstance(event, Incoming) and event.frame == b"down":
            heard.append(event)
        if event is None and heard:
            return Incoming(heard.pop().topic.replace("/doctor/", "/other/"), b"stray")
        return event

    link = broken(poll=poll)
    assert run_selftest(url, "doctor-leaks", SHORT, link).strays is True


@pytest.mark.broker
def test_a_login_that_hears_nothing_is_no_fault_of_the_broker(url):
    link = broken(send=lambda _self, _topic, _frame, **_options: None)
    seen = run_selftest(url, "doctor-mute", SHORT, link)
    assert (seen.reason, seen.echo_s, seen.wildcards, seen.retained) == ("", None, False, False)
    levels = [each.finding.level for each in run_checks(broker_checks(seen), CheckTarget(state=None))]
    assert levels == [OK, WARN]


def test_nobody_listens():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"mqtt://127.0.0.1:{probe.getsockname()[1]}"
    seen = run_selftest(url, "doctor-x")
    assert "connection refused" in seen.reason


def test_something_that_is_no_broker():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(1.0)

        def hang_up():
            with suppress(OSError):
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        seen = run_selftest(f"mqtt://127.0.0.1:{listener.getsockname()[1]}", "doctor-x")
    thread.join(10)
    assert "an MQTT broker?" in seen.reason


def test_an_address_that_names_no_broker():
    with pytest.raises(UsageError, match="mqtt://"):
        run_selftest("lab", "doctor-x")

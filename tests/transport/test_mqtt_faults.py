"""What goes wrong on an MQTT link, and what the user reads then."""

from __future__ import annotations

import logging
import os
import re
import resource
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scripted
from links import cut
from paho.mqtt.client import Client
from scripted import Answer, ScriptedBroker
from suite import frames, until

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.errors import LocalProtocolError, UsageError
from edge_sdk.protocol.topics import coordinator_status, down
from edge_sdk.transport.base import Connected, Disconnected, Incoming, SendRefused, TransportEvent
from edge_sdk.transport.mqtt import paho_client, paho_link, retry
from edge_sdk.transport.mqtt import transport as mqtt
from edge_sdk.transport.mqtt.incoming import Inbox
from edge_sdk.transport.mqtt.transport import MqttTransport

pytestmark = pytest.mark.broker

Opener = Callable[..., MqttTransport]


@pytest.fixture
def opened() -> Iterator[Opener]:
    """A factory of transports that are closed after the test."""
    made: list[MqttTransport] = []

    def make(url: str, client_id: str = "a", **options: Any) -> MqttTransport:
        made.append(MqttTransport(url, client_id, seed=len(made), **options))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


def reason(transport: MqttTransport) -> Disconnected:
    event = until(transport, Disconnected)
    assert isinstance(event, Disconnected)
    return event


# --- brokers that are not there, or go and come back


def test_a_broker_that_starts_late_is_found_without_help(opened: Opener, free_port: int) -> None:
    transport = opened(f"mqtt://127.0.0.1:{free_port}")
    transport.connect(["t/a"])
    assert f"connection refused by 127.0.0.1:{free_port}" in reason(transport).reason
    with EmbeddedBroker("amqtt", free_port):
        assert until(transport, Connected) == Connected()
        transport.send("t/a", b"1")
        assert frames(transport, 1) == [("t/a", b"1")]


def test_the_same_reason_is_told_once(opened: Opener, free_port: int) -> None:
    transport = opened(f"mqtt://127.0.0.1:{free_port}")
    transport.connect([])
    reason(transport)
    assert transport.poll(1.0) is None


def test_a_broker_killed_and_restarted_on_its_port_delivers_again(opened: Opener, broker: EmbeddedBroker) -> None:
    sender, receiver = opened(broker.url, "a"), opened(broker.url, "b")
    sender.connect([])
    receiver.connect(["t/b"])
    until(sender, Connected), until(receiver, Connected)
    os.kill(broker.pid, signal.SIGKILL)
    assert "closed the connection" in reason(receiver).reason
    sender.send("t/b", b"lost")
    broker.stop()
    with EmbeddedBroker(broker.kind, broker.port):
        until(sender, Connected), until(receiver, Connected)
        sender.send("t/b", b"after")
        assert frames(receiver, 1) == [("t/b", b"after")]


def test_an_unknown_host(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    transport = opened("mqtt://nowhere.invalid")
    transport.connect([])
    told = reason(transport)
    assert "nowhere.invalid cannot be resolved" in told.reason
    assert not told.final


def test_closing_while_the_broker_is_away_waits_for_nothing(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "_FLUSH_S", 60.0)
    before = set(threading.enumerate())
    transport = MqttTransport(f"mqtt://127.0.0.1:{free_port}", "a", seed=1)
    transport.connect(["t"])
    reason(transport)
    began_s = time.monotonic()
    transport.close()
    assert time.monotonic() - began_s < 30.0  # frames that wait to be sent get 60 s, and there are none
    assert set(threading.enumerate()) <= before


# --- brokers that refuse


@pytest.mark.parametrize(
    ("code_at_5", "code_at_3", "text"),
    [
        (134, 4, "wrong user name or password"),
        (135, 5, "the login is wrong or missing"),
    ],
)
def test_a_refused_login_is_final(opened: Opener, code_at_5: int, code_at_3: int, text: str) -> None:
    def refuse(level: int, _body: bytes) -> bytes:
        return scripted.connack(code_at_5 if level == 5 else code_at_3, level=level)

    with ScriptedBroker({scripted.CONNECT: refuse}) as fake:
        transport = opened(fake.url, username="u", password="wrong")
        transport.connect(["t"])
        told = reason(transport)
        assert fake.url[7:] in told.reason
        assert text in told.reason
        assert told.final
        assert transport.poll(0.5) is None
        assert len(fake.levels()) == 1


@pytest.mark.parametrize("code", [128, 135])
def test_a_refused_subscription_is_final(opened: Opener, code: int) -> None:
    with ScriptedBroker({scripted.SUBSCRIBE: scripted.suback(code)}) as fake:
        transport = opened(fake.url)
        transport.connect(["t/b"])
        told = reason(transport)
        assert fake.url[7:] in told.reason
        assert "not subscribe to t/b" in told.reason
        assert told.final


def test_mqtt_3_1_1_after_5_was_refused_and_it_is_remembered(opened: Opener) -> None:
    with ScriptedBroker({scripted.CONNECT: lambda level, _: scripted.connack(0 if level == 4 else 1, level=4)}) as fake:
        transport = opened(fake.url)
        transport.connect(["t"])
        assert transport.poll(5.0) == Connected()
        cut(transport)
        until(transport, Connected)
        assert fake.levels() == [5, 4, 4]


def test_mqtt_3_1_1_after_two_connections_closed_without_a_word(opened: Opener) -> None:
    with ScriptedBroker(
        {scripted.CONNECT: lambda level, _: scripted.connack(0, level=4) if level == 4 else None}
    ) as fake:
        transport = opened(fake.url)
        transport.connect(["t"])
        assert re.search(r"MQTT broker\? .*mqtts://", reason(transport).reason)
        until(transport, Connected)
        assert fake.levels() == [5, 5, 4]


def test_mqtt_3_1_1_after_silence(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paho_link, "_ANSWER_TIMEOUT_S", 0.2)
    with ScriptedBroker(
        {scripted.CONNECT: lambda level, _: scripted.connack(0, level=4) if level == 4 else b""}
    ) as fake:
        transport = opened(fake.url)
        transport.connect(["t"])
        assert transport.poll(5.0) == Connected()


def test_a_port_that_speaks_no_tls(opened: Opener, broker: EmbeddedBroker) -> None:
    transport = opened(broker.url.replace("mqtt:", "mqtts:"))
    transport.connect([])
    event = reason(transport)
    assert f"TLS? write {broker.url}" in event.reason
    assert not event.final


TAKEN_OVER = b"\xe0\x01\x8e"


@pytest.mark.parametrize("told", [TAKEN_OVER, b"\xe0\x02\x8e\x00", b"\xe0\x05\x8e\x03\x1f\x00\x00"])
def test_another_client_with_the_same_id(opened: Opener, told: bytes) -> None:
    """In each form that the reason may have; the broker closes the connection at once, after a last message."""
    answers: dict[int, scripted.Answer] = {
        scripted.SUBSCRIBE: scripted.suback(1, GOOD + told),
        scripted.PUBLISH: lambda _level, _body: None,
    }
    with ScriptedBroker(answers) as fake:
        transport = opened(fake.url, "me")
        transport.connect(["t/b"])
        assert frames(transport, 1) == [("t/b", b"!")]
        ended = reason(transport)
    assert ended.taken_over
    assert "'me'" in ended.reason


def test_what_the_broker_has_said_is_read_although_nothing_can_be_written(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acknowledgement of the first message fails; the second one, and why the broker closes, are read already."""
    monkeypatch.setattr(paho_client, "_AT_ONCE", 1)
    write = Client._sock_send

    def fail(client: Client, written: bytes) -> int:
        if written[0] & 0xF0 == 0x40:
            raise BrokenPipeError
        return write(client, written)

    monkeypatch.setattr(Client, "_sock_send", fail)
    acknowledged = b"\x32\x09\0\3t/b\0\1\0?"
    with ScriptedBroker({scripted.SUBSCRIBE: scripted.suback(1, acknowledged + GOOD + TAKEN_OVER)}) as fake:
        transport = opened(fake.url)
        transport.connect(["t/b"])
        assert [frame for _, frame in frames(transport, 2)] == [b"?", b"!"]
        assert reason(transport).taken_over


def test_two_clients_with_one_id_learn_of_each_other(
    opened: Opener, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the broker says why it closes a connection or not: mosquitto 2.0.11 does not."""
    if broker.kind == "amqtt":
        pytest.skip("amqtt keeps both connections")
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.02)
    both = [opened(broker.url, "me"), opened(broker.url, "me")]
    for transport in both:
        transport.connect(["t/b"])
    told: list[Disconnected] = []
    while not told:
        told += [event for each in both if isinstance(event := each.poll(0.01), Disconnected) and event.taken_over]
    assert "'me'" in told[0].reason


# --- frames that are too large, or deadly


def stating(packet_bytes: int, publish: Answer = scripted.puback) -> ScriptedBroker:
    """A broker that takes packets of at most so many bytes."""
    properties = b"\x27" + packet_bytes.to_bytes(4, "big")

    def connect(level: int, _body: bytes) -> bytes:
        return scripted.connack(0, properties, level=level)

    return ScriptedBroker({scripted.CONNECT: connect, scripted.PUBLISH: publish})


def test_a_frame_above_our_own_limit_is_never_sent(opened: Opener) -> None:
    with stating(100_000) as fake:
        transport = opened(fake.url, max_frame_bytes=2000)
        transport.connect([])
        until(transport, Connected)
        transport.send("t", bytes(2000))
        with pytest.raises(LocalProtocolError, match=r"2001 bytes .*limit of 2000"):
            transport.send("t", bytes(2001))


def test_chunks_fit_the_packets_that_the_broker_takes(opened: Opener) -> None:
    sizes: list[int] = []

    def take(level: int, body: bytes) -> bytes:
        sizes.append(len(body))
        return scripted.puback(level, body)

    with stating(20_000, take) as fake:
        transport = opened(fake.url)
        transport.connect([])
        until(transport, Connected)
        transport.send("t/short", bytes(18_000))
        transport.send("t/long", bytes(50_000))
        while len(sizes) < 4:
            time.sleep(0.001)
    assert max(sizes) < 20_000
    assert sum(sizes) > 68_000


def test_a_retained_frame_cannot_be_cut(opened: Opener) -> None:
    with stating(20_000) as fake:
        transport = opened(fake.url)
        transport.connect([])
        until(transport, Connected)
        with pytest.raises(LocalProtocolError, match=r"retained .*19000 bytes .*18976"):
            transport.send("t", bytes(19_000), retain=True)


def test_a_packet_limit_below_the_smallest_chunk_is_said_at_connect(opened: Opener) -> None:
    with stating(8192) as fake:
        transport = opened(fake.url)
        transport.connect([])
        told = reason(transport)
        assert fake.url.removeprefix("mqtt://") in told.reason
        assert re.search("8192 bytes; .*limit to 17408", told.reason)
        assert told.final


def test_a_frame_that_kills_the_link_three_times_is_left_out_once(
    opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[bytes] = []

    def take_small(level: int, body: bytes) -> bytes | None:
        taken.append(body)
        return scripted.puback(level, body) if len(body) < 1000 else None

    with ScriptedBroker({scripted.PUBLISH: take_small}) as fake:
        transport = opened(fake.url)
        transport.connect([])
        for _ in range(3):
            until(transport, Connected)
            transport.send("t/big", bytes(2000))
            told = reason(transport)
        assert re.search("2000 bytes .*t/big: not sent", told.reason)
        until(transport, Connected)
        taken.clear()
        transport.send("t/big", bytes(2000))
        transport.send("t/small", b"1")
        transport.close()
        assert [body[2:9] for body in taken] == [b"t/small"]
        assert "broker disconnected on it" in caplog.text


@pytest.mark.parametrize("topic", ["", "t/+", "#"])
def test_a_topic_that_is_none(opened: Opener, topic: str) -> None:
    with pytest.raises(LocalProtocolError, match=r"topic .*has a wildcard"):
        opened("mqtt://127.0.0.1").send(topic, b"1")


# --- acknowledging by hand


def reconnected(receiver: MqttTransport, other: MqttTransport) -> Incoming:
    """Cut the link once the broker has read all, and take the one frame that comes back with the next.

    other: is subscribed to t/other, where it is sent what the broker reads last.
    """
    receiver.send("t/other", b"last")
    until(other, Incoming)
    cut(receiver)
    events = [reason(receiver), receiver.poll(5.0), receiver.poll(5.0)]
    assert Connected() in events
    return next(event for event in events if isinstance(event, Incoming))


def test_an_unacknowledged_frame_comes_back_after_a_reconnect(opened: Opener, broker: EmbeddedBroker) -> None:
    if broker.kind == "amqtt":
        pytest.skip("amqtt forgets what was not acknowledged when a client goes; receipts and re-sending mend that")
    sender, receiver = opened(broker.url, "a"), opened(broker.url, "b", manual_ack=True)
    receiver.connect(["t/b"])
    sender.connect(["t/other"])
    until(sender, Connected), until(receiver, Connected)
    for frame in (b"kept", b"done"):
        sender.send("t/b", frame)
    kept, done = until(receiver, Incoming), until(receiver, Incoming)
    done.acknowledge()
    done.acknowledge()
    kept_again = reconnected(receiver, sender)
    kept.acknowledge()  # it belongs to the old connection: no effect
    kept_still = reconnected(receiver, sender)
    assert [event.frame for event in (kept, kept_again, kept_still)] == [b"kept"] * 3
    kept_still.acknowledge()
    sender.send("t/b", b"next")
    until(receiver, Incoming)
    assert reconnected(receiver, sender).frame == b"next"
    assert receiver.poll(0.2) is None


def test_without_manual_ack_nothing_comes_twice(opened: Opener, broker: EmbeddedBroker) -> None:
    sender, receiver = opened(broker.url, "a"), opened(broker.url, "b")
    receiver.connect(["t/b"])
    sender.connect([])
    until(sender, Connected), until(receiver, Connected)
    sender.send("t/b", b"1")
    until(receiver, Incoming).acknowledge()
    cut(receiver)
    until(receiver, Connected)
    assert receiver.poll(0.3) is None


def test_an_older_subscription_of_the_session_is_not_heard(opened: Opener, broker: EmbeddedBroker) -> None:
    before = opened(broker.url, "me")
    before.connect(["t/old/+"])
    until(before, Connected)
    before.close()
    now = opened(broker.url, "me", manual_ack=True)
    now.connect(["t/new/+"])
    until(now, Connected)
    now.send("t/old/1", b"1")
    now.send("t/new/1", b"2")
    assert frames(now, 1) == [("t/new/1", b"2")]


def test_of_a_status_only_the_newest_one_comes_after_a_reconnect(opened: Opener) -> None:
    if shutil.which("mosquitto") is None:
        pytest.skip("mosquitto is not on PATH")
    status, task = coordinator_status("fed"), down("fed", "me", "task")
    with EmbeddedBroker("mosquitto") as broker:
        device, coordinator = opened(broker.url, "me"), opened(broker.url, "coordinator")
        device.connect([status, task])
        coordinator.connect([])
        until(device, Connected), until(coordinator, Connected)
        coordinator.send(status, b"running", retain=True)
        assert frames(device, 1) == [(status, b"running")]
        device.close()
        for state in (b"finished", b"ready"):
            coordinator.send(status, state, retain=True)
        coordinator.send(task, b"1")
        watcher = opened(broker.url, "watcher")
        watcher.connect([status])
        while frames(watcher, 1) != [(status, b"ready")]:  # the broker has them all
            pass
        back = opened(broker.url, "me")
        back.connect([status, task])
        assert sorted(frames(back, 2)) == [(status, b"ready"), (task, b"1")]
        assert back.poll(0.3) is None


def test_a_frame_that_expires_does_not_wait_for_its_receiver(opened: Opener) -> None:
    if shutil.which("mosquitto") is None:
        pytest.skip("mosquitto is not on PATH")
    with EmbeddedBroker("mosquitto") as broker:
        away = opened(broker.url, "me")
        away.connect(["t/+"])
        until(away, Connected)
        away.close()
        for name, expires_s in (("short", 1), ("long", None)):
            sender = opened(broker.url, name, expires_s=expires_s)
            sender.connect(["echo"])
            until(sender, Connected)
            sender.send(f"t/{name}", b"1")
            sender.send("echo", b"1")
            until(sender, Incoming)
        time.sleep(3.0)  # mosquitto counts whole seconds, and drops a frame in the second after it has expired
        back = opened(broker.url, "me")
        back.connect(["t/+"])
        assert frames(back, 1) == [("t/long", b"1")]


# --- the network thread


def test_a_fault_while_handling_a_frame_does_not_end_the_thread(
    opened: Opener, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter([ZeroDivisionError("planted")])
    honest = paho_link.matches

    def fails_once(pattern: str, topic: str) -> bool:
        for fault in faults:
            raise fault
        return honest(pattern, topic)

    transport = opened(broker.url)
    transport.connect(["t/a"])
    until(transport, Connected)
    monkeypatch.setattr(paho_link, "matches", fails_once)
    with caplog.at_level(logging.DEBUG):
        transport.send("t/a", b"1")
        transport.send("t/a", b"2")
        assert frames(transport, 1) == [("t/a", b"2")]
    assert "planted" in caplog.text


def test_a_fault_in_the_library_ends_the_link_not_the_thread(
    opened: Opener, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = opened(broker.url)
    transport.connect(["t/a"])
    until(transport, Connected)

    def fail_once(_client: Client) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Client, "loop_misc", fail_once)
    transport.send("t/a", b"1")
    assert "failed: ZeroDivisionError('planted')" in reason(transport).reason
    until(transport, Connected)


@pytest.mark.parametrize("piece_bytes", [1, 7, 300])
def test_frames_arrive_whole_and_in_order_however_the_socket_is_read(
    opened: Opener, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(paho_client, "PIECE_BYTES", piece_bytes)
    sender, receiver = opened(broker.url, "a"), opened(broker.url, "b")
    receiver.connect(["t/b"])
    sender.connect([])
    until(sender, Connected), until(receiver, Connected)
    sent = [bytes([n]) * length for n, length in enumerate((1, 2, 290, 300, 310, 5_000, 1, 40_000, 3))]
    for frame in sent:
        sender.send("t/b", frame)
    assert [frame for _, frame in frames(receiver, len(sent))] == sent


GOOD = b"\x30\x07\0\3t/b\0!"
"""A message with QoS 0 in MQTT 5."""


@pytest.mark.parametrize(
    "malformed",
    [
        b"\x30\xff\xff\xff\xff\x01",  # a length without end
        b"\x30\x04\0\x09t/",  # a topic that is longer than its packet
        b"\x30\x07\0\3t/b\x09!",  # properties that are
        b"\x32\x05\0\3t/b",  # no packet id
        b"\x30\x07\0\3t/b\xff\xff",  # a number without end
        b"\x36\x09\0\3t/b\0\1\0!",  # both bits of the quality of service
    ],
)
def test_a_malformed_message_is_no_frame_and_ends_at_most_the_link(opened: Opener, malformed: bytes) -> None:
    answers = iter((malformed + GOOD, GOOD))

    def answer(level: int, body: bytes) -> bytes | None:
        return scripted.suback(1, next(answers, b""))(level, body)

    with ScriptedBroker({scripted.SUBSCRIBE: answer}) as fake:
        transport = opened(fake.url)
        transport.connect(["t/b"])
        assert [frame for _, frame in frames(transport, 1)] == [b"!"]


def test_a_topic_that_is_no_text_is_passed_over(opened: Opener) -> None:
    with ScriptedBroker({scripted.SUBSCRIBE: scripted.suback(1, b"\x30\x07\0\3t/\xff\0?" + GOOD)}) as fake:
        transport = opened(fake.url)
        transport.connect(["t/b"])
        assert [frame for _, frame in frames(transport, 1)] == [b"!"]
        assert fake.connections == 1


class SmallInbox(Inbox):
    """Holds ten events, and counts the frames that came."""

    def __init__(self) -> None:
        super().__init__(max_frames=10)
        self.events = self.frames = 0

    def put(self, event: TransportEvent) -> None:
        self.events += 1
        self.frames += isinstance(event, Incoming)
        super().put(event)


def test_a_full_inbox_stops_reading_and_loses_nothing(
    opened: Opener, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, inbox = opened(broker.url, "a"), SmallInbox()
    monkeypatch.setattr(mqtt, "Inbox", lambda: inbox)
    receiver = opened(broker.url, "b")
    receiver.connect(["t/b"])
    sender.connect([])
    until(sender, Connected), until(receiver, Connected)
    sent = [n.to_bytes(2, "big") for n in range(200)]
    for frame in sent:
        sender.send("t/b", frame)
    time.sleep(0.3)
    assert inbox.frames == 10
    assert [frame for _, frame in frames(receiver, 200)] == sent


def test_a_link_whose_reading_pauses_beyond_the_keep_alive_time_is_kept(
    opened: Opener, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, inbox = opened(broker.url, "a"), SmallInbox()
    monkeypatch.setattr(mqtt, "Inbox", lambda: inbox)
    receiver = opened(broker.url, "b", keepalive_s=1)
    receiver.connect(["t/b"])
    sender.connect([])
    until(sender, Connected), until(receiver, Connected)
    sent = [n.to_bytes(2, "big") for n in range(30)]
    for frame in sent:
        sender.send("t/b", frame)
    time.sleep(2.5)  # the answers to two pings wait behind frames that nobody reads
    events = [receiver.poll(5.0) for _ in sent]
    assert [event.frame for event in events if isinstance(event, Incoming)] == sent, events


def test_a_link_opens_while_the_inbox_is_full(
    opened: Opener, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = SmallInbox()
    for _ in range(10):
        inbox.put(Incoming("t/b", b""))
    monkeypatch.setattr(mqtt, "Inbox", lambda: inbox)
    receiver = opened(broker.url, "b")
    receiver.connect(["t/b"])
    deadline_s = time.monotonic() + 5.0
    while inbox.events < 11 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert [receiver.poll(0.0) for _ in range(11)][10] == Connected()


def test_more_than_1023_open_files(opened: Opener, broker: EmbeddedBroker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    assert files[-1] > 1023  # and so is what is opened next
    try:
        transport = opened(broker.url)
        transport.connect(["t/a"])
        until(transport, Connected)
        transport.send("t/a", b"1")
        assert frames(transport, 1) == [("t/a", b"1")]
        transport.close()
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connecting_twice(opened: Opener, free_port: int) -> None:
    transport = opened(f"mqtt://127.0.0.1:{free_port}")
    transport.connect([])
    with pytest.raises(LocalProtocolError, match="connect was called twice"):
        transport.connect([])


def test_an_empty_client_id(opened: Opener) -> None:
    with pytest.raises(UsageError, match=r"client id .* empty"):
        opened("mqtt://127.0.0.1", "")


def test_the_embedded_amqtt_is_spoken_to_in_3_1_1_and_mosquitto_in_5(opened: Opener, broker: EmbeddedBroker) -> None:
    transport = opened(broker.url)
    transport.connect([])
    assert transport.poll(5.0) == Connected()
    assert transport.version == {"amqtt": "3.1.1", "mosquitto": "5"}[broker.kind]


def test_a_frame_that_the_broker_refuses_is_told_once_for_each_topic(opened: Opener) -> None:
    def refuse(_level: int, body: bytes) -> bytes:
        end = 2 + int.from_bytes(body[:2], "big")
        return b"\x40\x03" + body[end : end + 2] + b"\x87"  # Not authorized

    with ScriptedBroker({scripted.PUBLISH: refuse}) as broker:
        transport = opened(broker.url)
        transport.connect(["t/a"])
        until(transport, Connected)
        for topic in ("t/1", "t/1", "t/2"):
            transport.send(topic, b"frame")
        told = [until(transport, SendRefused) for _ in range(2)]
        assert {event.topic for event in told if isinstance(event, SendRefused)} == {"t/1", "t/2"}
        assert all("Not authorized" in event.reason for event in told if isinstance(event, SendRefused))
        assert transport.poll(0.0) is None

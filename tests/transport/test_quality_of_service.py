"""Which frames a broker must acknowledge, and what happens to those that it need not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import scripted
from scripted import ScriptedBroker
from suite import until

from edge_sdk.transport.base import Connected, Disconnected
from edge_sdk.transport.chunks import CHUNK_BYTES
from edge_sdk.transport.mqtt import paho_link
from edge_sdk.transport.mqtt.transport import MqttTransport

pytestmark = pytest.mark.broker

DEADLY = b"t/deadly"


def hang_up_on_deadly(level: int, body: bytes) -> bytes | None:
    return None if DEADLY in body else scripted.puback(level, body)


@pytest.fixture
def fake() -> Iterator[ScriptedBroker]:
    with ScriptedBroker({scripted.PUBLISH: hang_up_on_deadly}) as running:
        yield running


@pytest.fixture
def transport(fake: ScriptedBroker) -> Iterator[MqttTransport]:
    made = MqttTransport(fake.url, "a", seed=1)
    made.connect([])
    until(made, Connected)
    yield made
    made.close()


def arrived(fake: ScriptedBroker, count: int) -> list[int]:
    """Wait until the broker has read so many frames; return their quality."""
    while len(fake.qualities) < count:
        time.sleep(0.005)
    return fake.qualities


def test_only_short_frames_that_are_answered_go_without_acknowledgement(
    fake: ScriptedBroker, transport: MqttTransport
) -> None:
    transport.send("t/a", b"1", answered=True)
    transport.send("t/a", b"2")
    transport.send("t/a", b"3", retain=True)
    transport.send("t/a", bytes(2 * CHUNK_BYTES), answered=True)
    assert arrived(fake, 5) == [0, 1, 1, 1, 1]


def test_many_frames_without_acknowledgement_arrive(fake: ScriptedBroker, transport: MqttTransport) -> None:
    """More than the broker's buffers hold: the queue waits for the socket."""
    for _ in range(400):
        transport.send("t/a", bytes(40_000), answered=True)
    assert arrived(fake, 400) == [0] * 400


def test_after_a_break_everything_is_acknowledged_until_the_link_has_stood(
    fake: ScriptedBroker, transport: MqttTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.send("t/deadly", b"1")
    until(transport, Disconnected), until(transport, Connected)
    fake.qualities.clear()
    transport.send("t/a", b"2", answered=True)
    while not fake.qualities:
        transport.poll(0.01)
    monkeypatch.setattr(paho_link, "CALM_S", 0.0)
    transport.send("t/a", b"3", answered=True)
    assert arrived(fake, 2) == [1, 0]


def test_a_frame_on_which_the_broker_disconnects_blocks_nothing(fake: ScriptedBroker, transport: MqttTransport) -> None:
    for _ in range(4):  # the first time nobody knows which frame it was
        transport.send("t/deadly", bytes(2000), answered=True)
        until(transport, Disconnected), until(transport, Connected)
    fake.qualities.clear()
    transport.send("t/deadly", bytes(2000), answered=True)
    transport.send("t/a", b"1", answered=True)
    assert arrived(fake, 1) == [1]

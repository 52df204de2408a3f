"""The MQTT transport keeps the transport contract, on each broker that is here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import pytest
from links import cut
from suite import LinkFactory, TransportSuite, frames, until

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.transport.base import Connected, Transport
from edge_sdk.transport.mqtt.send_queue import Pace
from edge_sdk.transport.mqtt.transport import MqttTransport

pytestmark = pytest.mark.broker


class TestMqtt(TransportSuite):
    limit_bytes = 5_000_000

    @pytest.fixture
    def link(self, broker: EmbeddedBroker) -> Iterator[LinkFactory]:
        opened: list[MqttTransport] = []
        seeds = count()

        def make(client_id: str) -> MqttTransport:
            opened.append(MqttTransport(broker.url, client_id, seed=next(seeds), max_frame_bytes=5_000_000))
            return opened[-1]

        yield make
        for transport in opened:
            transport.close()

    def sever(self, transport: Transport) -> None:
        assert isinstance(transport, MqttTransport)
        cut(transport)


def test_a_paced_link_takes_its_time_and_loses_nothing(broker: EmbeddedBroker) -> None:
    receiver = MqttTransport(broker.url, "b", seed=1)
    sender = MqttTransport(broker.url, "a", seed=2, pace=Pace(publishes_per_s=20.0))
    receiver.connect(["t/b"])
    sender.connect([])
    until(sender, Connected), until(receiver, Connected)
    begun_s = time.monotonic()
    for n in range(30):
        sender.send("t/b", bytes([n]))
    assert frames(receiver, 30) == [("t/b", bytes([n])) for n in range(30)]
    assert time.monotonic() - begun_s > 0.4
    sender.close()
    receiver.close()


def test_a_new_process_hears_nothing_that_the_broker_kept_for_an_earlier_one(broker: EmbeddedBroker) -> None:
    earlier = MqttTransport(broker.url, "b", seed=1)
    earlier.connect(["t/b"])
    until(earlier, Connected)
    earlier.close()
    sender = MqttTransport(broker.url, "a", seed=2)
    sender.connect([])
    until(sender, Connected)
    sender.send("t/b", b"queued")
    sender.close()
    later = MqttTransport(broker.url, "b", fresh=True, seed=3)
    later.connect(["t/b"])
    until(later, Connected)
    later.send("t/b", b"new")
    assert frames(later, 1) == [("t/b", b"new")]
    cut(later)
    until(later, Connected)  # with its session, which is no longer fresh
    later.send("t/b", b"again")
    assert frames(later, 1) == [("t/b", b"again")]
    later.close()

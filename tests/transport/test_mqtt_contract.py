"""The MQTT transport keeps the transport contract, on each broker that is here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from links import cut
from suite import LinkFactory, TransportSuite

from coordinator.broker import EmbeddedBroker
from edge_sdk.transport.base import Transport
from edge_sdk.transport.mqtt import MqttTransport

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

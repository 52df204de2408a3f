"""A transport with a screen: what it refuses is never kept, and is told of in one event."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import pytest

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.transport.base import Connected, Incoming, Place, Rejected, TransportEvent
from edge_sdk.transport.mqtt.transport import MqttTransport

pytestmark = pytest.mark.broker
LONG = bytes(200_000)
PATIENCE_S = 20.0


class Gate:
    """Lets `good` pass, and long frames on `short` not."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, bool]] = Counter()
        self._refused = 0

    def passes(self, topic: str, payload: bytes, now_s: float, *, chunk: bool) -> bool:
        del payload, now_s
        self.seen[topic, chunk] += 1
        self._refused += topic == "bad"
        return topic != "bad"

    def place(self, topic: str) -> Place:
        return Place(0 if topic == "short" else len(LONG), 0)

    def refused(self, now_s: float) -> Sequence[Rejected]:
        del now_s
        count, self._refused = self._refused, 0
        return (Rejected("bad", "rate", "too many", count),) if count else ()


def wait_for(link: MqttTransport, kind: type) -> TransportEvent:
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        event = link.poll(0.1)
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__}")


def test_what_the_screen_refuses_is_not_kept(broker: EmbeddedBroker) -> None:
    gate = Gate()
    receiver = MqttTransport(broker.url, "receiver", clean=True, manual_ack=True, seed=1)
    receiver.screen_with(gate)
    receiver.connect(["good", "bad", "short"])
    sender = MqttTransport(broker.url, "sender", clean=True, seed=2)
    sender.connect([])
    try:
        for link in (receiver, sender):
            wait_for(link, Connected)
        for _ in range(40):
            sender.send("bad", b"?")
        sender.send("bad", LONG)
        sender.send("short", LONG)
        sender.send("good", LONG)
        events = Counter[str]()
        while "good" not in events or gate.seen["bad", False] < 40 or events["rate"] < 44 or "limit" not in events:
            event = wait_for(receiver, object)
            if isinstance(event, Incoming):
                events[event.topic] += 1
                event.acknowledge()
            elif isinstance(event, Rejected):
                events[event.kind] += event.count
    finally:
        sender.close()
        receiver.close()
    assert events["good"] == 1
    assert events["rate"] == 44
    assert "bad" not in events
    assert gate.seen["good", True] == 4

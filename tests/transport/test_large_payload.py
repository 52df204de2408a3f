"""The weights of a ResNet18, 45 MB, to and fro over each broker, with a device that has little memory to spare."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from large_device import LIMITS, WEIGHTS, digest, model
from suite import until

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Assign, Upload
from edge_sdk.transport.base import Connected, Incoming
from edge_sdk.transport.mqtt.transport import MqttTransport

DEVICE = Path(__file__).with_name("large_device.py")
PAYLOAD_BYTES = 4 * WEIGHTS


@pytest.mark.broker
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux' /proc")
def test_45_megabytes_cross_in_twice_their_size(broker: EmbeddedBroker) -> None:
    transport = MqttTransport(broker.url, "coordinator", manual_ack=True, seed=2)
    transport.connect(topics.coordinator_subscriptions("fed"))
    until(transport, Connected)
    with subprocess.Popen([sys.executable, DEVICE, broker.url], stdout=subprocess.PIPE, text=True) as device:
        arrived = until(transport, Incoming, timeout_s=60.0)
        assert isinstance(arrived, Incoming)
        upload = codec.decode(arrived.frame, LIMITS).message
        assert isinstance(upload, Upload)
        weights = upload.knowledge["weights"]
        assert isinstance(weights, Weights)
        transport.send(topics.down("fed", "dev", "rcpt"), b"it is here")
        until(transport, Incoming, timeout_s=60.0)
        assign = Assign(federation="fed", device="dev", round=1, exchange=0, common={"weights": weights})
        transport.send(topics.down("fed", "dev", "task"), codec.encode(assign))
        out, _ = device.communicate(timeout=60)
    transport.close()
    found = [line.split() for line in out.splitlines()]
    assert [(way, name) for way, _, name in found] == [("up", digest(model())), ("down", digest(model()))]
    for way, peak_bytes, _ in found:
        assert PAYLOAD_BYTES / 2 < int(peak_bytes) <= 2 * PAYLOAD_BYTES, way

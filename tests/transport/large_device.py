"""A device that sends its 11.2 million weights and takes as many back; prints its peak memory for each, in bytes.

Run as: large_device.py URL
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Assign, Upload
from edge_sdk.transport.base import Connected, Incoming
from edge_sdk.transport.mqtt.transport import MqttTransport

WEIGHTS = 11_200_000
LIMITS = Limits(frame_bytes=4 * WEIGHTS + 4096, tensor_bytes=4 * WEIGHTS)


def model() -> Weights:
    """The weights of a ResNet18, all random."""
    return Weights(values=np.random.default_rng(1).random(WEIGHTS, dtype=np.float32), layout=bytes(16))


def digest(weights: Weights) -> str:
    return hashlib.sha256(weights.values).hexdigest()


def _status_bytes(name: str) -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return 1024 * int(line.split()[1])


def _restart_peak() -> int:
    """Forget the peak so far; what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status_bytes("VmRSS")


def main(url: str) -> None:
    """Up, then down."""
    weights = model()
    transport = MqttTransport(url, "dev", seed=1)
    transport.connect(topics.device_subscriptions("fed", "dev"))
    while transport.poll(10.0) != Connected():
        pass
    before_bytes = _restart_peak()
    upload = Upload(federation="fed", device="dev", round=0, exchange=0, knowledge={"weights": weights})
    transport.send(topics.up("fed", "dev", "upd"), codec.encode(upload))
    while not isinstance(transport.poll(60.0), Incoming):  # the coordinator's word that it has it
        pass
    print("up", _status_bytes("VmHWM") - before_bytes, digest(weights), flush=True)  # noqa: T201  read by the test
    transport.send(topics.up("fed", "dev", "bye"), b"now you")
    before_bytes = _restart_peak()
    while not isinstance(event := transport.poll(60.0), Incoming):
        pass
    assign = codec.decode(event.frame, LIMITS).message
    assert isinstance(assign, Assign)
    received = assign.common["weights"]
    assert isinstance(received, Weights)
    print("down", _status_bytes("VmHWM") - before_bytes, digest(received), flush=True)  # noqa: T201  read by the test
    transport.close()


if __name__ == "__main__":
    main(sys.argv[1])

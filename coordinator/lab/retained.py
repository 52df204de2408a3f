"""Clears devices' retained messages on a lab's broker, which otherwise keeps them until they are replaced."""

from __future__ import annotations

import queue
import secrets
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from coordinator.lab import owner
from coordinator.lab.broker_settings import SWEEPER
from edge_sdk.identity import key_files
from edge_sdk.identity.folder import AUTHORITY, crypto_keys
from edge_sdk.protocol.topics import ROOT
from edge_sdk.transport.base import Connected, Place, Rejected
from edge_sdk.transport.mqtt.tls import OF_LAB, TlsFiles
from edge_sdk.transport.mqtt.transport import MqttTransport

CONNECT_S, MOST_S, QUIET_S = 5.0, 30.0, 0.5
"""Maximum wait for the broker and for clearing; silence for this long means that nothing is left."""


class _Topics:
    """A screen that keeps only the topic of each message."""

    def __init__(self) -> None:
        self.found = queue.SimpleQueue[tuple[str, bool]]()
        """Topics, and whether each has a retained message."""

    def passes(self, topic: str, payload: bytes, _now_s: float, *, chunk: bool) -> bool:  # noqa: ARG002  # a Screen's
        """Note a message's topic and drop the message."""
        self.found.put((topic, bool(payload)))
        return False

    def place(self, _topic: str) -> Place:
        """Leave no room for long frames."""
        return Place(0, 0)

    def refused(self, _now_s: float) -> tuple[Rejected, ...]:
        """Report nothing."""
        return ()


def clear_retained(lab: Path, devices: Iterable[str]) -> int:
    """Clear all retained messages of these devices on this machine's broker; returns their number.

    Clears none if the broker does not answer: a restarted broker has no retained messages anyway.
    """
    certificates, topics = crypto_keys("a certificate"), _Topics()
    filters = [f"{ROOT}/+/{part}" for each in devices for part in (f"up/+/{each}/#", f"st/{each}")]
    with tempfile.TemporaryDirectory(prefix="edge-sdk-lab-") as own:  # accessible to its owner only
        files = TlsFiles(lab / AUTHORITY, Path(own) / "tls.pem", Path(own) / "tls.key", OF_LAB)
        key = certificates.new_tls_key()
        key_files.write_whole(Path(own) / "tls.pem", owner.authority_of(lab).issue_for_key(SWEEPER, key))
        key_files.write_whole(Path(own) / "tls.key", key, key_files.PRIVATE)
        transport = MqttTransport(owner.local_broker(lab), SWEEPER, tls=files, clean=True, seed=secrets.randbits(32))
        transport.screen_with(topics)
        with closing(transport):
            transport.connect(filters)
            return _cleared(transport, topics)


def _cleared(transport: MqttTransport, topics: _Topics) -> int:
    cleared, left, end_s = 0, set[str](), time.monotonic() + CONNECT_S
    while not isinstance(transport.poll(QUIET_S), Connected):
        if time.monotonic() > end_s:
            return 0
    end_s = time.monotonic() + MOST_S
    while time.monotonic() < end_s:
        try:
            topic, stands = topics.found.get(timeout=QUIET_S)
        except queue.Empty:
            break
        if stands and topic not in left:
            left.add(topic)
            transport.send(topic, b"", retain=True)
        elif not stands:
            cleared += topic in left
            left.discard(topic)
    return cleared

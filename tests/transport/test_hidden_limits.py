"""Brokers that state no limit and have one: it is found in seconds, kept, and said where no chunk is short enough."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import scripted
from scripted import ScriptedBroker
from suite import until

from coordinator.broker import embedded
from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.transport.base import Connected, Disconnected, Incoming, SendRefused
from edge_sdk.transport.chunks import CHUNK_BYTES, HEADER_BYTES, MIN_CHUNK_BYTES
from edge_sdk.transport.mqtt.hidden_limits import KeptChunks
from edge_sdk.transport.mqtt.transport import MqttTransport

FRAME = bytes(range(256)) * 1000
UP = "fl/v1/lab/up/1/device/upd"

Limited = Callable[[int], EmbeddedBroker]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Limited]:
    """A function that starts mosquitto with a message_size_limit in bytes."""
    if shutil.which("mosquitto") is None:
        pytest.skip("mosquitto is not on PATH")
    running: list[EmbeddedBroker] = []

    def start(limit_bytes: int) -> EmbeddedBroker:
        settings = tmp_path / "mosquitto.conf"
        plain = embedded.MOSQUITTO_CONF.read_text(encoding="utf-8")
        kept = [line for line in plain.splitlines() if not line.startswith(("message_size_limit", "max_packet_size"))]
        settings.write_text("\n".join([*kept, f"message_size_limit {limit_bytes}"]), encoding="utf-8")
        monkeypatch.setattr(embedded, "MOSQUITTO_CONF", settings)
        running.append(EmbeddedBroker("mosquitto").start())
        return running[-1]

    yield start
    for broker in running:
        broker.stop()


@pytest.fixture
def opened() -> Iterator[Callable[..., MqttTransport]]:
    """A factory of connected transports that are closed after the test."""
    made: list[MqttTransport] = []

    def make(url: str, client_id: str, *patterns: str, chunk_file: Path | None = None) -> MqttTransport:
        made.append(MqttTransport(url, client_id, seed=len(made), chunk_file=chunk_file))
        made[-1].connect(patterns)
        until(made[-1], Connected)
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@pytest.mark.broker
@pytest.mark.parametrize("limit_bytes", [64_000, 33_000, MIN_CHUNK_BYTES + HEADER_BYTES])
@pytest.mark.parametrize("frame", [FRAME, FRAME[: CHUNK_BYTES - 1]], ids=["in chunks", "in one message"])
def test_a_limit_that_is_not_stated_is_found_on_the_same_connection(
    limited: Limited, opened: Callable[..., MqttTransport], limit_bytes: int, frame: bytes, tmp_path: Path
) -> None:
    broker, kept = limited(limit_bytes), tmp_path / "broker.chunks"
    receiver, sender = opened(broker.url, "b", UP), opened(broker.url, "a", chunk_file=kept)
    sender.send(UP, frame)
    came = until(receiver, Incoming)
    assert isinstance(came, Incoming)
    assert came.frame == frame
    assert sender.poll(0.0) is None  # the link stood
    found_bytes = KeptChunks(kept, broker.url.removeprefix("mqtt://")).chunk_bytes()
    assert limit_bytes // 2 - HEADER_BYTES <= found_bytes <= limit_bytes - HEADER_BYTES


@pytest.mark.broker
def test_below_the_least_chunk_it_is_said_what_to_change_and_short_frames_pass(
    limited: Limited, opened: Callable[..., MqttTransport]
) -> None:
    broker = limited(10_000)
    receiver, sender = opened(broker.url, "b", UP), opened(broker.url, "a")
    sender.send(UP, FRAME)
    told = until(sender, SendRefused)
    assert isinstance(told, SendRefused)
    assert told.too_long
    assert "takes no message of 16424 bytes" in told.reason
    assert "limit to 17408 or more (mosquitto: message_size_limit)" in told.reason
    sender.send(UP, b"short")
    came = until(receiver, Incoming)
    assert isinstance(came, Incoming)
    assert came.frame == b"short"


def takes(limit_bytes: int) -> dict[int, scripted.Answer]:
    """Acknowledge messages up to this length, and hang up on longer ones."""
    return {
        scripted.PUBLISH: lambda level, body: scripted.puback(level, body) if len(body) <= limit_bytes else None,
    }


@pytest.mark.broker
def test_a_broker_that_hangs_up_is_found_out_in_seconds_and_once_for_all_starts(
    opened: Callable[..., MqttTransport], tmp_path: Path
) -> None:
    kept = tmp_path / "broker.chunks"
    with ScriptedBroker(takes(17_000)) as broker:
        sender, since_s = opened(broker.url, "a", chunk_file=kept), time.monotonic()
        sender.send(UP, FRAME)
        hung_up = 0
        event: object = None
        while event or not sender._send_queue._idle() or sender._send_queue.chunk_bytes > MIN_CHUNK_BYTES:
            event = sender.poll(0.05)
            hung_up += isinstance(event, Disconnected)
            if isinstance(event, Connected):
                sender.send(UP, FRAME)
        assert time.monotonic() - since_s < 10
        assert hung_up == 6
        sender.close()
        again = opened(broker.url, "a", chunk_file=kept)
        again.send(UP, FRAME)
        assert again.poll(0.3) is None


@pytest.mark.broker
def test_a_broker_that_hangs_up_on_the_smallest_chunk_too_is_told_of(opened: Callable[..., MqttTransport]) -> None:
    with ScriptedBroker(takes(10_000)) as broker:
        sender = opened(broker.url, "a")
        sender._send_queue.chunk_bytes = MIN_CHUNK_BYTES
        told, until_s = None, time.monotonic() + 10
        sender.send(UP, FRAME)
        while not isinstance(told, SendRefused) and time.monotonic() < until_s:
            told = sender.poll(0.05)
            if isinstance(told, Connected):
                sender.send(UP, FRAME)
        assert isinstance(told, SendRefused)
        assert told.too_long


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"broker": "lab:1883", "chunk_bytes": 1}', b"[" * 100_000])
def test_what_was_kept_and_does_not_read_is_found_out_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broker.chunks"
    path.write_bytes(content)
    kept = KeptChunks(path, "lab:1883")
    assert kept.chunk_bytes() == CHUNK_BYTES
    kept.keep(MIN_CHUNK_BYTES)
    assert kept.chunk_bytes() == MIN_CHUNK_BYTES
    assert KeptChunks(path, "other:1883").chunk_bytes() == CHUNK_BYTES

"""Measures the least that a frame can cost a coordinator in Python: reading it with paho, and its row in the ledger.

A thread of its own takes the place of the broker: it sends the same bytes as fast as they are read.  Times are
processor time of the reading thread alone, which other work on the machine disturbs less than time on the clock.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from coordinator.ledger import Ledger, Row
from edge_sdk.protocol import topics
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.transport.base import Connected, Incoming
from edge_sdk.transport.mqtt.transport import MqttTransport

NAME, FRAMES, GROUP = "floor", 3000, 40
PATIENCE_S = 60.0
_SUBSCRIPTIONS = topics.coordinator_subscriptions(NAME)


def read_alone_us(frame_bytes: int) -> float:
    """Processor time in us in which paho reads a frame, and nobody does anything with it."""
    seen = [0]
    done = threading.Event()
    spent = [0.0, 0.0]

    def take(_client: Client, _data: object, _message: object) -> None:
        seen[0] += 1
        if seen[0] == 1:
            spent[0] = time.thread_time()
        if seen[0] == FRAMES:
            spent[1] = time.thread_time()
            done.set()

    with _source(frame_bytes) as (port, go):
        client = Client(CallbackAPIVersion.VERSION2, NAME, protocol=MQTTProtocolVersion.MQTTv5)
        client.on_message = take
        client.on_connect = lambda *_: client.subscribe([(pattern, 1) for pattern in _SUBSCRIPTIONS])
        client.on_subscribe = lambda *_: go.set()
        client.connect("127.0.0.1", port)
        client.loop_start()
        done.wait(PATIENCE_S)
        client.disconnect()
        client.loop_stop()
    return (spent[1] - spent[0]) / (FRAMES - 1) * 1e6


def read_us(frame_bytes: int) -> float:
    """Processor time in us in which our connection reads a frame and puts it in its queue."""
    screen = _Stopwatch()
    with _source(frame_bytes) as (port, go):
        transport = MqttTransport(f"mqtt://127.0.0.1:{port}", NAME, fresh=True, manual_ack=True, seed=1)
        transport.screen_with(screen)
        transport.connect(_SUBSCRIPTIONS)
        while not isinstance(transport.poll(PATIENCE_S), Connected):
            pass
        go.set()
        left = FRAMES
        while left:
            left -= isinstance(transport.poll(PATIENCE_S), Incoming)
        transport.close()
    return (screen.last_s - screen.first_s) / (FRAMES - 1) * 1e6


def row_us(frame_bytes: int) -> float:
    """Processor time in us of a frame's durable row, with its digest, in groups of GROUP."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.db")
        began_s = time.thread_time()
        for round_ in range(FRAMES // GROUP):
            place = ExchangeId(round_, 0)
            ledger.commit(Row(place, f"d-{number}", os.urandom(frame_bytes)) for number in range(GROUP))
        spent_s = time.thread_time() - began_s
        began_s = time.thread_time()
        for _ in range(FRAMES):
            os.urandom(frame_bytes)
        spent_s -= time.thread_time() - began_s
        ledger.close()
    return spent_s / FRAMES * 1e6


class _Stopwatch:
    """A screen that lets all pass, and notes the time of the thread that asks it."""

    first_s = last_s = 0.0

    def passes(self, _topic: str, _payload: bytes, _now_s: float, *, chunk: bool) -> bool:  # noqa: ARG002  # of Screen
        self.last_s = time.thread_time()
        self.first_s = self.first_s or self.last_s
        return True

    def place(self, _topic: str) -> Any:
        raise NotImplementedError

    def refused(self, _now_s: float) -> tuple[()]:
        return ()


@contextmanager
def _source(frame_bytes: int) -> Any:
    """Yield a port, and an event after which each connected client is sent FRAMES frames."""
    go = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve, args=(listener, go, _packet(frame_bytes)), daemon=True)
        thread.start()
        yield listener.getsockname()[1], go


def _serve(listener: socket.socket, go: threading.Event, packet: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)  # CONNECT
        connection.sendall(b"\x20\x03\0\0\0")
        subscribe = connection.recv(4096)
        codes = b"\1" * len(_SUBSCRIPTIONS)
        connection.sendall(bytes([0x90, 3 + len(codes)]) + subscribe[2:4] + b"\0" + codes)
        go.wait(PATIENCE_S)
        for _ in range(FRAMES):
            connection.sendall(packet)
        connection.recv(4096)  # until it disconnects


def _packet(frame_bytes: int) -> bytes:
    """Return an MQTT 5 PUBLISH with QoS 0."""
    topic = topics.up(NAME, "d-1", "upd").encode()
    body = struct.pack(">H", len(topic)) + topic + b"\0" + bytes(frame_bytes)
    length, left = b"", len(body)
    while left or not length:
        left, digit = divmod(left, 128)
        length += bytes([digit | 0x80 * bool(left)])
    return b"\x30" + length + body


def smallest(measure: Callable[[int], float], frame_bytes: int, times: int = 3) -> float:
    """Return the smallest of several measurements."""
    return min(measure(frame_bytes) for _ in range(times))


if __name__ == "__main__":
    sys.exit("run: python -m benchmarks.reliability.foundation floor")

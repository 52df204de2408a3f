"""Measures the transport over the embedded broker: `python -m benchmarks.messages.embedded_broker [amqtt|mosquitto]`.

Prints round trip times between two clients, how floods of frames arrive, and how long a fleet takes to join.
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack

from coordinator.broker.embedded import EmbeddedBroker
from edge_sdk.transport.base import Connected, Incoming, TransportEvent
from edge_sdk.transport.mqtt.transport import MqttTransport

PATIENCE_S = 20.0


def until(transport: MqttTransport, wanted: type[TransportEvent]) -> TransportEvent | None:
    """Return the next event of a kind, or None when it does not come."""
    end_s = time.monotonic() + PATIENCE_S
    while (left_s := end_s - time.monotonic()) > 0:
        event = transport.poll(left_s)
        if isinstance(event, wanted):
            return event
    return None


def open_link(leaving: ExitStack, broker: EmbeddedBroker, name: str, seed: int) -> MqttTransport:
    """Open a link that connects and listens to its own topic."""
    link = MqttTransport(broker.url, name, seed=seed)
    leaving.callback(link.close)
    link.connect([f"bench/{name}"])
    return link


def round_trips_ms(ping: MqttTransport, pong: MqttTransport, size_bytes: int, count: int) -> list[float]:
    """Return the sorted times from ping over the broker to pong and back."""
    times_ms, frame = [], os.urandom(size_bytes)
    for _ in range(count):
        began_s = time.perf_counter()
        ping.send("bench/pong", frame)
        until(pong, Incoming)
        pong.send("bench/ping", frame)
        until(ping, Incoming)
        times_ms.append((time.perf_counter() - began_s) * 1e3)
    return sorted(times_ms)


def flood(ping: MqttTransport, pong: MqttTransport, size_bytes: int, count: int) -> str:
    """Send without waiting; report how many frames arrive, in which order, and how fast."""
    began_s = time.perf_counter()
    for n in range(count):
        ping.send("bench/pong", n.to_bytes(4, "big") + bytes(size_bytes - 4))
    found: list[bytes] = []
    while len(found) < count and isinstance(event := until(pong, Incoming), Incoming):
        found.append(event.frame[:4])
    took_s = time.perf_counter() - began_s
    order = "in order" if found == sorted(found) else "out of order"
    return f"{len(found)} arrived {order} in {took_s * 1e3:.0f} ms, {count * size_bytes / took_s / 1e6:.1f} MB/s"


def main() -> None:
    """Measure one broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", default="auto", choices=["auto", "amqtt", "mosquitto"])
    parser.add_argument("--fleet", type=int, default=150, help="clients that join at once")
    arguments = parser.parse_args()
    began_s = time.perf_counter()
    with ExitStack() as leaving:
        broker = leaving.enter_context(EmbeddedBroker(arguments.kind))
        print(f"{broker.kind} {broker.version}: up after {(time.perf_counter() - began_s) * 1e3:.0f} ms")
        ping, pong = (open_link(leaving, broker, name, seed) for seed, name in enumerate(("ping", "pong")))
        until(ping, Connected)
        until(pong, Connected)
        for size_bytes in (100, 1500, 40_000, 200_000, 1_000_000):
            times_ms = round_trips_ms(ping, pong, size_bytes, 300 if size_bytes < 100_000 else 60)
            p50, p99 = times_ms[len(times_ms) // 2], times_ms[int(len(times_ms) * 0.99)]
            print(f"round trip of {size_bytes} bytes: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
        for size_bytes, count in ((2000, 100), (2000, 10_000), (40_000, 2000)):
            print(f"flood of {count} x {size_bytes} bytes: {flood(ping, pong, size_bytes, count)}")
        began_s = time.perf_counter()
        fleet = [open_link(leaving, broker, f"d{n}", n) for n in range(arguments.fleet)]
        joined = sum(until(link, Connected) is not None for link in fleet)
        print(f"fleet: {joined} of {arguments.fleet} joined in {(time.perf_counter() - began_s) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()

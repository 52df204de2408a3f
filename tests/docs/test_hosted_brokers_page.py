"""docs/how-to/hosted-brokers.md says what the code keeps to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edge_sdk.protocol import topics
from edge_sdk.protocol.frames.schema import ID
from edge_sdk.transport import chunks
from edge_sdk.transport.mqtt import paho_link, send_queue
from edge_sdk.transport.mqtt.send_queue import cloud_safe

PAGE = (Path(__file__).parents[2] / "docs/how-to/hosted-brokers.md").read_text()
LONGEST = "x" * ID.most


def sentence(before: str) -> str:
    [line] = [line for line in PAGE.splitlines() if line.startswith(f"| {before} |")]
    return line.split("|")[2].strip()


def test_lengths_of_messages() -> None:
    longest_bytes = chunks.CHUNK_BYTES + chunks.HEADER_BYTES
    assert sentence("length of a message").startswith(f"{longest_bytes / 1000:.0f} KB;")
    assert sentence("length of a message").endswith(f"down to {paho_link.LEAST_PACKET_BYTES / 1000:.0f} KB")


def test_topics_and_subscriptions() -> None:
    every = [
        topics.up(LONGEST, LONGEST, "hello"),
        topics.down(LONGEST, LONGEST, "want"),
        topics.device_status(LONGEST, LONGEST),
        topics.coordinator_status(LONGEST),
    ]
    most = max(topic.count("/") for topic in every)
    assert sentence("topic") == f"{most} slashes"
    assert max(map(len, every)) <= 256
    device, coordinator = topics.device_subscriptions("f", "d"), topics.coordinator_subscriptions("f")
    assert re.findall(r"\d+", sentence("subscriptions")) == [str(len(device)), str(len(coordinator))]
    assert sentence("messages not yet acknowledged") == str(send_queue.MAX_IN_FLIGHT)


@pytest.mark.parametrize(
    ("row", "size_bytes", "per_s"),
    [("messages a second, each client", 1, 10), ("bytes a second, each client", 64_000, 8)],
)
def test_the_pace(row: str, size_bytes: int, per_s: int) -> None:
    pace, now_s, count = cloud_safe(), 0.0, 0
    while now_s < 100.0:
        now_s += pace.wait_s(now_s)
        pace.spend(size_bytes)
        count += 1
    assert count / 100.0 == pytest.approx(per_s, rel=0.15)
    assert sentence(row).replace(",", "").startswith(f"{per_s}" if size_bytes == 1 else f"{per_s * size_bytes}")

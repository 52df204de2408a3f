"""A Hello that repeats what the ledger holds is answered without another write, which takes a sync of the disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from one_world import World

from coordinator.ledger import Ledger
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.messages import Hello, Welcome


def test_only_what_is_new_is_written_and_every_hello_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    enrol = Ledger.enrol

    def counted(ledger: Ledger, device: str, number: int | None, hello: bytes) -> int:
        written.append(device)
        return enrol(ledger, device, number, hello)

    monkeypatch.setattr(Ledger, "enrol", counted)
    world = World(tmp_path, devices=2)
    world.device()
    world.until(lambda: "attic" in world.server.hellos, computing=False)
    topic, frame = world.last(Hello)
    said = codec.decode(frame)
    hello, stamp = said.message, said.stamp
    assert isinstance(hello, Hello)

    def again(hello: Hello, stamp: Stamp) -> tuple[int, int]:
        """Say hello; return how many writes and how many Welcomes follow."""
        writes, welcomes = len(written), sum(isinstance(message, Welcome) for _, message in world.sent)
        world.publish(topic, codec.encode(hello, stamp))
        world.turn(computing=False, hearing=False)
        return len(written) - writes, sum(isinstance(message, Welcome) for _, message in world.sent) - welcomes

    assert again(hello, replace(stamp, sequence=100)) == (0, 1)
    assert again(replace(hello, samples=9), replace(stamp, sequence=101)) == (1, 1)
    assert again(replace(hello, samples=9), replace(stamp, sequence=102)) == (0, 1)
    assert again(replace(hello, samples=9), replace(stamp, boot_epoch=stamp.boot_epoch + 1)) == (1, 1)
    world.server.ledger.forget("attic")
    assert again(replace(hello, samples=9), replace(stamp, boot_epoch=stamp.boot_epoch + 1, sequence=9)) == (1, 1)

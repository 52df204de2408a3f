"""Frames that no broker acknowledges: each is sent again, acknowledged, until it is answered."""

from __future__ import annotations

from pathlib import Path

import fleets
import pytest

from edge_sdk.protocol.frames import codec, storage
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.messages import Assign, Receipt, Upload
from edge_sdk.transport.memory.hub import MemoryTransport

LIMITS = Limits(2**24, 2**24)


def outcome(run: fleets.Run) -> tuple[bytes, ...]:
    models = (device.agent.bench.model.state_bytes() for device in run.devices)
    return (storage.serialise(run.server.method_state), *models)


@pytest.mark.parametrize("lost", [(Assign,), (Upload,), (Receipt,), (Assign, Upload, Receipt)])
def test_a_run_survives_the_loss_of_all_that_is_not_acknowledged(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, lost: tuple[type, ...]
) -> None:
    clean = fleets.Run(fleets.built(pictures, "fedmd")).finished()
    send, dropped = MemoryTransport.send, list[type]()

    def drop(self: MemoryTransport, topic: str, frame: bytes, *, retain: bool = False, answered: bool = False) -> None:
        kind = type(codec.decode(frame, LIMITS).message)
        if answered and kind in lost:
            dropped.append(kind)
        else:
            send(self, topic, frame, retain=retain, answered=answered)

    monkeypatch.setattr(MemoryTransport, "send", drop)
    run = fleets.Run(fleets.built(pictures, "fedmd")).finished()
    assert outcome(run) == outcome(clean)
    assert set(dropped) == set(lost)


def test_nothing_else_goes_without_acknowledgement(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send, sent = MemoryTransport.send, set[type]()

    def note(self: MemoryTransport, topic: str, frame: bytes, *, retain: bool = False, answered: bool = False) -> None:
        if answered:
            sent.add(type(codec.decode(frame, LIMITS).message))
        send(self, topic, frame, retain=retain, answered=answered)

    monkeypatch.setattr(MemoryTransport, "send", note)
    fleets.Run(fleets.built(pictures, "fedmd")).finished()
    assert sent == {Assign, Upload, Receipt}

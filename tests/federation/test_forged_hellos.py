"""Without signatures anybody can say Hello for a device: that neither ends the device nor the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fleets
import pytest

from edge_sdk.device.session import SessionPhase
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.records import replace
from edge_sdk.protocol.messages import Hello, Refusal
from edge_sdk.transport.base import Incoming

FED, OWN = "tiny", "device-00"
NEWER = Stamp(boot_epoch=9, sequence=9)


def begun(pictures: Path) -> fleets.Run:
    """A run in which both devices compute."""
    run = fleets.Run(fleets.built(pictures, devices=2, rounds=3))
    run.slow_down(OWN, 30.0)
    run.server.connect()
    for device in run.devices:
        device.agent.instance = device.device.kit.id.encode()
        device.connect()
    while run.devices[0].agent.session.phase is not SessionPhase.WORKING:
        assert run.clock.step()
    return run


def without_instance(hello: Hello) -> bytes:
    """As a stranger says it who does not know the field."""
    return codec.encode(replace(hello, classes=99, instance=None), NEWER)


def of_another(hello: Hello) -> bytes:
    """As another process says it."""
    return codec.encode(replace(hello, classes=99, instance=b"forged"), NEWER)


def with_its_own(hello: Hello) -> bytes:
    """As a stranger says it who listens on the broker."""
    return codec.encode(replace(hello, classes=99), NEWER)


def of_another_version(hello: Hello) -> bytes:
    """A frame that nobody can read."""
    frame = codec.encode(hello, NEWER)
    return frame[:4] + b"\x63" + frame[5:]


@pytest.mark.parametrize("forged", [without_instance, of_another, with_its_own, of_another_version])
@pytest.mark.parametrize("times", [1, 5])
def test_forged_hellos_end_neither_a_device_nor_the_run(
    pictures: Path, forged: Callable[[Hello], bytes], times: int
) -> None:
    clean = fleets.Run(fleets.built(pictures, devices=2, rounds=3)).finished()
    run = begun(pictures)
    for device in run.devices:
        name = device.device.kit.id
        for _ in range(times):
            frame = forged(run.server.hellos[name])
            run.server.handle(Incoming(topics.up(FED, name, "hello"), frame), run.clock.now_s)
    run.finished()
    assert [device.agent.refusal for device in run.devices] == [None, None]
    assert run.result.completed
    assert run.model_bytes == clean.model_bytes


def refuse(run: fleets.Run, instance: bytes | None) -> None:
    refusal = Refusal(federation=FED, device=OWN, reason="classes", message="no", remedy="none", instance=instance)
    topic = topics.down(FED, OWN, "join")
    run.devices[0].agent.handle(Incoming(topic, codec.encode(refusal)), run.clock.now_s)


@pytest.mark.parametrize("named", [True, False])
def test_a_joined_device_asks_again_and_obeys_what_names_its_start(pictures: Path, named: bool) -> None:
    run = begun(pictures)
    agent = run.devices[0].agent
    agent.instance = b"this one"
    instance = agent.instance if named else None
    sent = run.tap()
    refuse(run, instance)
    assert [type(message) for message in sent] == [Hello]
    assert agent.refusal is None
    due_s = agent.next_due_s()
    assert due_s is not None
    agent.tick(due_s)  # no answer is no refusal: it asks once more
    assert agent.refusal is None
    assert [type(message) for message in sent] == [Hello] * 2
    refuse(run, instance)
    assert agent.refusal is None
    agent.tick(2 * due_s)
    assert (agent.refusal is not None) == named


def test_a_device_that_has_not_joined_obeys_at_once_also_an_old_coordinator(pictures: Path) -> None:
    run = fleets.Run(fleets.built(pictures, devices=2, rounds=3))
    refuse(run, None)
    assert run.devices[0].agent.refusal is not None


def test_every_refusal_of_a_hello_names_an_instance(pictures: Path) -> None:
    run = begun(pictures)
    sent = run.tap()
    for forged in (without_instance, of_another, with_its_own):
        frame = forged(run.server.hellos[OWN])
        run.server.handle(Incoming(topics.up(FED, OWN, "hello"), frame), run.clock.now_s)
    told = [message.instance for message in sent if isinstance(message, Refusal)]
    assert told == [b"\0", b"forged", run.server.hellos[OWN].instance]

"""Devices with other versions of edge-sdk: an older one takes part with the bytes that it has, a newer major is refused."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import fleets
import pytest
from notes import Notes
from one_world import STATUS, World

from coordinator.serving import membership
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.frames.schema import tag_of
from edge_sdk.protocol.messages import CoordinatorStatus, Hello, Message, Refusal
from edge_sdk.transport.base import Connected, Incoming
from edge_sdk.transport.memory.hub import MemoryTransport

OLD = "device-01"
OLD_TAGS = {"welcome", "assign", "receipt", "refusal", "coordinator-status", "public-block"}
"""The messages for devices of the first version; a device of that version refuses the tags of all others."""
FIRST = {
    "hello": frozenset({"test_samples", "encodings", "weight_count", "layout", "inert_terms", "fetches_public"}),
    "upload": frozenset({"personal_metrics", "personal_round", "instruments", "withheld"}),
}
"""Fields that were added after the first golden frames, and that the last minor version had."""


def older(message: Message) -> Message:
    """The message as the last minor version sends it: without the fields that were added since."""
    had = FIRST.get(tag_of(type(message)), frozenset())
    added = [f for f in dataclasses.fields(message) if f.metadata.get("later") and f.name not in had]
    defaults = {
        f.name: f.default if f.default is not dataclasses.MISSING else f.default_factory()  # type: ignore[misc]  # one of both is there
        for f in added
    }
    return dataclasses.replace(message, **defaults)


def with_old_device(run: fleets.Run, change: Callable[[Message], Message] = older) -> set[str]:
    """Let one device send what an older version would; returns the tags that are sent to it."""
    publish, sent = run.hub.publish, set()

    def listen(sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> None:
        envelope = codec.decode(bytes(frame), Limits(2**24, 2**24))
        if topics.origin(topic).device == OLD:
            frame = codec.encode(change(envelope.message), envelope.stamp)
        elif f"/dn/{OLD}/" in topic:
            sent.add(tag_of(type(envelope.message)))
        publish(sender, topic, frame, retain=retain)

    run.hub.publish = listen  # type: ignore[method-assign]  # what a tap is
    return sent


def hello_of(version: str) -> Callable[[Message], Message]:
    return lambda message: dataclasses.replace(message, sdk=version) if isinstance(message, Hello) else message


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the version of the coordinator."""

    def set_version(version: str) -> None:
        for name in ("version_refusal", "version_remark"):
            real = getattr(membership, name)
            monkeypatch.setattr(membership, name, lambda hello, real=real: real(hello, version))

    return set_version


@pytest.mark.parametrize("method", ["fedmd", "fedal", "local"])
def test_one_minor_version_behind_takes_part_with_the_same_bits(
    pictures: Path, method: str, ours: Callable[[str], None]
) -> None:
    now = fleets.Run(fleets.built(pictures, method, 3)).finished()
    ours("0.2.0")
    notes = Notes()
    mixed = fleets.Run(fleets.built(pictures, method, 3), observer=notes)
    sent = with_old_device(mixed)
    mixed.finished()
    assert mixed.result.completed
    assert mixed.coordinator_bytes == now.coordinator_bytes
    assert mixed.model_bytes == now.model_bytes
    assert sent <= OLD_TAGS
    assert not any("edge-sdk" in line for line in notes.lines)


@pytest.mark.parametrize("version", ["0.3.0", "0.7.1"])
def test_more_than_one_minor_version_apart_is_said(pictures: Path, version: str, ours: Callable[[str], None]) -> None:
    ours("0.5.0")
    notes = Notes()
    run = fleets.Run(fleets.built(pictures, "fedmd", 3), observer=notes)
    with_old_device(run, hello_of(version))
    run.finished()
    assert run.result.completed
    assert sum(OLD in line and version in line for line in notes.lines) == 1


def test_it_is_said_of_a_device_that_comes_back_upgraded(pictures: Path, ours: Callable[[str], None]) -> None:
    whole = fleets.Run(fleets.built(pictures, "fedmd", 3)).finished()
    ours("0.5.0")
    notes, hellos = Notes(), itertools.count()
    run = fleets.Run(fleets.built(pictures, "fedmd", 3), observer=notes)

    def upgraded(message: Message) -> Message:
        return hello_of("0.7.0" if next(hellos) else "0.5.0")(message) if isinstance(message, Hello) else message

    with_old_device(run, upgraded)
    run.power_cut(OLD, at_s=0.5 * whole.clock.now_s, for_s=0.1)
    run.finished()
    assert sum(f"{OLD} has edge-sdk 0.7.0" in line for line in notes.lines) == 1


@pytest.mark.parametrize(("version", "remedy"), [("1.0.0", "coordinator"), ("0.9.0", "device")])
def test_another_major_version_is_refused_with_the_remedy(
    pictures: Path, version: str, remedy: str, ours: Callable[[str], None]
) -> None:
    ours("0.9.0" if version == "1.0.0" else "1.0.0")
    run = fleets.Run(fleets.config(pictures, devices=3, quorum=1))
    sent = run.tap()
    with_old_device(run, hello_of(version))
    run.server.connect()
    for each in run.devices:
        if each.device.kit.id == OLD:
            each.connect()
    while not any(isinstance(message, Refusal) for message in sent):
        assert run.clock.step()
    (refusal,) = (message for message in sent if isinstance(message, Refusal))
    assert (refusal.device, refusal.reason) == (OLD, "version")
    assert remedy in refusal.remedy


def test_a_device_that_speaks_no_version_of_the_protocol_that_we_do(pictures: Path) -> None:
    run = fleets.Run(fleets.config(pictures, devices=3, quorum=1))
    later = bytearray(codec.encode(Hello(federation="tiny", device=OLD, classes=fleets.CLASSES)))
    later[4] = 3  # the version of the frame
    link = run.hub.link("later")
    link.connect([topics.down("tiny", OLD, "join")])
    run.server.connect()
    run.clock.at(1.0, lambda: link.send(topics.up("tiny", OLD, "hello"), bytes(later)))
    refusals: list[Message] = []
    while not refusals and run.clock.step():
        while (event := link.poll(0.0)) is not None:
            refusals += [codec.decode(event.frame).message] if isinstance(event, Incoming) else []
    assert isinstance(refusals[0], Refusal)
    assert refusals[0].reason == "version"
    assert refusals[0].message == f"{OLD}: frame version 3, this coordinator speaks 1"
    assert refusals[0].remedy == "upgrade the coordinator's edge-sdk"
    assert run.server.record.refused_frames == {OLD: {"version": 1}}


@pytest.mark.parametrize(("version", "older"), [(3, "device"), (0, "coordinator")])
def test_the_owner_of_a_device_that_cannot_read_its_coordinator_is_told_which_side_to_upgrade(
    tmp_path: Path, version: int, older: str
) -> None:
    device, lines = World(tmp_path).device(), []
    device.on_link(lines.append)
    device.participant.handle(Connected(), 0.0)
    lines.clear()
    status = bytearray(codec.encode(CoordinatorStatus(federation="app", state="ready", epoch=1)))
    status[len(codec.MAGIC)] = version
    for _ in range(2):  # its status comes again with each connection
        device.participant.handle(Incoming(STATUS, bytes(status)), 0.0)
    (line,) = lines
    assert f"frame version {version}, this device speaks 1" in line
    assert line.endswith(f"upgrade the {older}'s edge-sdk")
    for at_s in range(1, 1000):
        device.participant.tick(float(at_s))
    assert lines == [line, line]  # once more after some Hellos, and not that no coordinator answers


def test_the_version_of_another_implementation_is_not_judged() -> None:
    hello = Hello(federation="tiny", device=OLD, classes=2, sdk="edge-c 7")
    assert membership.version_refusal(hello, "0.1.0") is None
    assert membership.version_remark(hello, "0.1.0") == ""

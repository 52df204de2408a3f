"""What a hostile broker, and devices with keys of their own, can do to a federation whose frames are signed: delay it.

The broker here drops, repeats, holds back and alters frames, gives old ones to anybody, also those of an earlier run,
and puts them on other topics.  Whatever it does, the run ends with the bits of a run that nobody disturbed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import fleets
import labs
import pytest

from coordinator.ledger import Ledger
from edge_sdk.identity.crypto_keys import new_signing_key
from edge_sdk.identity.signatures import FrameSigner, Role
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import HEADER_BYTES, SIGNATURE_BYTES, Limits
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.transport.memory.hub import MemoryTransport

Sent = tuple[str, bytes]
WIDE = Limits(2**24, 2**24)
ROGUE = "rogue"
CALM_AFTER_S = 40.0
"""Virtual seconds after which the broker disturbs no more, so that the run can end."""


class Secured:
    """A lab, its devices, and everything that was sent in an earlier run."""

    def __init__(self, folder: Path, pictures: Path) -> None:
        self.folder, self.fleet = folder, fleets.built(pictures, devices=2, rounds=2)
        labs.enrolled(labs.made(folder), *self.fleet.federation.roster)
        self._runs = 0
        run = self.run()
        self.earlier: list[Sent] = record(run)
        self.clean = run.finished()

    def run(self) -> fleets.Run:
        """A new run, with an id of its own, of the same coordinator and devices."""
        self._runs += 1
        run = fleets.Run(self.fleet, secured=self.folder, ledger=Ledger(self.folder / f"ledger{self._runs}.db"))
        for device in self.fleet.federation.roster:
            run.slow_down(device, 1.0)
        return run

    def check(self, run: fleets.Run) -> None:
        """Let it end, and compare with the undisturbed one."""
        run.finished()
        assert run.result.completed
        assert run.model_bytes == self.clean.model_bytes
        assert run.coordinator_bytes == self.clean.coordinator_bytes
        assert run.result.updates["accepted"] == self.clean.result.updates["accepted"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Secured:
    return Secured(tmp_path_factory.mktemp("hostile"), pictures)


def record(run: fleets.Run) -> list[Sent]:
    """A list that fills with what honest clients send from now on."""
    sent: list[Sent] = []
    publish = run.hub.publish

    def listen(sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> None:
        if sender.client_id != ROGUE:
            sent.append((topic, bytes(frame)))
        publish(sender, topic, frame, retain=retain)

    run.hub.publish = listen  # type: ignore[method-assign]  # as a tap
    return sent


def flipped(frame: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(8 * len(frame))
    return bytes([*frame[: place // 8], frame[place // 8] ^ 1 << place % 8, *frame[place // 8 + 1 :]])


def stripped(frame: bytes, _rng: random.Random) -> bytes:
    """The same message without a signature."""
    return codec.encode(codec.decode(frame, WIDE).message, codec.decode(frame, WIDE).stamp)


def restamped(frame: bytes, rng: random.Random) -> bytes:
    """The same message and signature in a header that looks newer."""
    found = codec.decode(frame, WIDE)
    newer = codec.Stamp(found.stamp.boot_epoch + rng.randrange(3), found.stamp.sequence + 1000, found.stamp.key_id)
    return codec.encode(found.message, newer, lambda _: frame[HEADER_BYTES : HEADER_BYTES + SIGNATURE_BYTES])


def resigned(role: Role) -> Callable[[bytes, random.Random], bytes]:
    """The same message, signed with a key that the lab does not know."""

    def forge(frame: bytes, rng: random.Random) -> bytes:
        signer = FrameSigner(new_signing_key(), role, start=rng.randrange(1, 100))
        return codec.encode(codec.decode(frame, WIDE).message, signer.stamp(), signer.sign)

    return forge


def same(frame: bytes, _rng: random.Random) -> bytes:
    return frame


def cut(frame: bytes, rng: random.Random) -> bytes:
    return frame[: rng.randrange(len(frame))]


TAMPERED: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": flipped,
    "cut": cut,
    "strip": stripped,
    "restamp": restamped,
    "foreign device": resigned(Role.DEVICE),
    "foreign coordinator": resigned(Role.COORDINATOR),
    "replay": same,
    "elsewhere": same,
}


def elsewhere(topic: str, rng: random.Random, devices: tuple[str, ...]) -> str:
    """A topic of another device, or of the other direction."""
    device = rng.choice(devices)
    kind = topic.rpartition("/")[2]
    ways = [topics.coordinator_status("tiny"), topics.device_status("tiny", device), topics.control("tiny")]
    if kind in topics.UP_KINDS | {"join", "task", "rcpt", "pub"}:
        ways += [topics.up("tiny", device, kind), topics.down("tiny", device, kind)]
    return rng.choice(ways)


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_tampered_frames_change_nothing(secured: Secured, count: int) -> None:
    rng, run = random.Random(count), secured.run()
    now, kinds = record(run), Counter[str]()
    rogue = run.hub.link(ROGUE)
    rogue.connect([])

    def tamper() -> None:
        for _ in range(count // 100):
            kind = rng.choice([*TAMPERED])
            topic, frame = rng.choice(secured.earlier if rng.random() < 0.5 or not now else now[-200:])
            kinds[kind] += 1
            where = elsewhere(topic, rng, secured.fleet.federation.roster) if kind == "elsewhere" else topic
            rogue.send(where, TAMPERED[kind](frame, rng))

    for moment in range(100):
        run.clock.at(0.02 * moment, tamper)
    secured.check(run)
    assert sum(kinds.values()) == count // 100 * 100
    assert set(kinds) == set(TAMPERED)
    refused = run.result.refused_frames
    assert {"signature", "replayed"} <= {word for words in refused.values() for word in words}


class HostileBroker:
    """Disturbs what it carries, by a seed."""

    def __init__(self, run: fleets.Run, earlier: list[Sent], seed: int) -> None:
        self._run, self._rng = run, random.Random(seed)
        self._old = list(earlier)
        self._publish = run.hub.publish
        self._devices = run.fleet.federation.roster
        run.hub.publish = self.publish  # type: ignore[method-assign]  # the broker is hostile

    def publish(self, sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> None:
        rng, clock = self._rng, self._run.clock
        if clock.now_s > CALM_AFTER_S:
            self._publish(sender, topic, frame, retain=retain)
            return
        what = rng.random()
        if what > 0.15:
            self._publish(sender, topic, frame, retain=retain)
        if 0.15 < what < 0.25:  # once more, later
            clock.at(clock.now_s + rng.uniform(0, 10), lambda: self._publish(sender, topic, frame, retain=retain))
        if what > 0.6:
            old_topic, old = rng.choice(self._old)
            make = rng.choice([*TAMPERED.values()])
            where = elsewhere(old_topic, rng, self._devices) if rng.random() < 0.3 else old_topic
            self._publish(sender, where, make(old, rng), retain=rng.random() < 0.3)
        self._old.append((topic, bytes(frame)))


@pytest.mark.parametrize(
    ("first", "seeds"), [(0, 3), *(pytest.param(n, 100, marks=pytest.mark.long) for n in range(3, 1_003, 100))]
)
def test_a_hostile_broker_can_only_delay(secured: Secured, first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        run = secured.run()
        HostileBroker(run, secured.earlier, seed)
        secured.check(run)

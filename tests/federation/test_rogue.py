"""A client that breaks every rule it can: each frame is counted under its name, and no bit of the run changes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fleets
import msgpack
import numpy as np
import pytest

from coordinator.record import run_record
from coordinator.results.report.summary import summary
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec, schema
from edge_sdk.protocol.frames.codec import HEADER_BYTES
from edge_sdk.protocol.frames.frame_parts import Frame
from edge_sdk.protocol.knowledge import ClassRows, PublicLogits
from edge_sdk.protocol.messages import Assign, Bye, CoordinatorStatus, DeviceStatus, FederationSpec, Upload
from edge_sdk.protocol.operator_messages import Control
from edge_sdk.protocol.public_batch import batch_digest, batch_indices

VICTIM = "device-03"
SLOW_S = 10.0
"""An exchange takes this long on the victim, so that everything below arrives while its upload is awaited."""


@pytest.fixture(scope="module")
def clean(pictures: Path) -> fleets.Run:
    run = fleets.Run(fleets.built(pictures))
    run.slow_down(VICTIM, SLOW_S)
    return run.finished()


class Rogue:
    """Publishes on the victim's topics."""

    def __init__(self, pictures: Path) -> None:
        self.run = fleets.Run(fleets.built(pictures))
        self.run.slow_down(VICTIM, SLOW_S)
        self._link = self.run.hub.link("rogue")
        self._link.connect([])
        self.spec: FederationSpec = self.run.fleet.federation.spec

    def say(self, frame: bytes | Callable[[], bytes], at_s: float = 5.0, topic: str | None = None) -> None:
        """Send a frame, twice; on the victim's upload topic by default."""
        where = topics.up("tiny", VICTIM, "upd") if topic is None else topic

        def send() -> None:
            content = frame if isinstance(frame, bytes) else frame()
            self._link.send(where, content)
            self._link.send(where, content)

        self.run.clock.at(at_s, send)

    def upload(self, round_: int = 0, exchange: int = 0, **changes: object) -> Upload:
        """What the victim could send itself, but for the changes."""
        indices = batch_indices(self.spec, round_, 0, 8)
        logits = PublicLogits(
            values=np.full((8, fleets.CLASSES), 9, np.float32), batch=batch_digest(self.spec, indices)
        )
        honest = Upload(
            federation="tiny", device=VICTIM, round=round_, exchange=exchange, knowledge={"logits": logits}, samples=1
        )
        return replace(honest, **changes)

    def counted(self, clean: fleets.Run) -> dict[str, dict[str, int]]:
        """Run, check that nothing changed, and tell the refused frames."""
        self.run.finished()
        assert self.run.result.completed
        assert self.run.coordinator_bytes == clean.coordinator_bytes
        assert self.run.model_bytes == clean.model_bytes
        assert self.run.result.updates["accepted"] == clean.result.updates["accepted"]
        found: dict[str, dict[str, int]] = summary(self.run.result)["refused_frames"]
        return found


@pytest.fixture
def rogue(pictures: Path) -> Rogue:
    return Rogue(pictures)


def raw_upload(upload: Upload, values: np.ndarray) -> bytes:
    """A frame that our own encoder would refuse to make: other numbers in the tensor."""
    plain = schema.to_plain(upload)
    tensor = plain["knowledge"]["logits"][1]["values"]
    old = next(part for part in tensor if isinstance(part, bytes))
    tensor[tensor.index(old)] = values.astype("<f4").tobytes()
    return framed(msgpack.packb(["upload", plain], use_bin_type=True))


def framed(body: bytes) -> bytes:
    """A body with a correct header."""
    fields = [codec.MAGIC, codec.VERSION, 0, 0, len(body), 0, codec.UNSIGNED, 0, 0]
    fields[5] = zlib.crc32(codec.HEADER.pack(*fields) + body)
    return codec.HEADER.pack(*fields) + body


def test_the_forger_here_can_make_honest_frames(rogue: Rogue) -> None:
    """Else what follows would be refused for its wrapping alone."""
    honest = rogue.upload()
    values = honest.knowledge["logits"].values
    assert codec.decode(raw_upload(honest, values)).message == honest


@pytest.mark.parametrize(
    ("number", "kind"), [(np.nan, "nonfinite"), (np.inf, "nonfinite"), (-np.inf, "nonfinite"), (1e30, "knowledge")]
)
def test_numbers_that_ruin_a_mean(rogue: Rogue, clean: fleets.Run, number: float, kind: str) -> None:
    values = np.zeros((8, fleets.CLASSES), np.float32)
    values[3, 2] = number
    rogue.say(raw_upload(rogue.upload(), values))
    assert rogue.counted(clean) == {VICTIM: {kind: 2} | ({"refused": 2} if kind == "knowledge" else {})}


def test_a_wrong_shape(rogue: Rogue, clean: fleets.Run) -> None:
    batch = rogue.upload().knowledge["logits"].batch
    for shape in ((8, fleets.CLASSES + 1), (7, fleets.CLASSES), (1, 1)):
        logits = PublicLogits(values=np.zeros(shape, np.float32), batch=batch)
        rogue.say(codec.encode(rogue.upload(knowledge={"logits": logits})))
    assert rogue.counted(clean) == {VICTIM: {"knowledge": 6, "refused": 6}}


def test_logits_of_another_batch(rogue: Rogue, clean: fleets.Run) -> None:
    other = batch_digest(rogue.spec, batch_indices(rogue.spec, 1, 0, 8))
    logits = PublicLogits(values=np.zeros((8, fleets.CLASSES), np.float32), batch=other)
    rogue.say(codec.encode(rogue.upload(knowledge={"logits": logits})))
    assert rogue.counted(clean) == {VICTIM: {"knowledge": 2, "refused": 2}}


def test_the_wrong_knowledge(rogue: Rogue, clean: fleets.Run) -> None:
    rows = ClassRows(classes=np.array([0], "i4"), rows=np.ones((1, 4), "f4"), counts=np.array([1], "i4"))
    honest = rogue.upload().knowledge["logits"]
    for knowledge in ({}, {"logits": rows}, {"gradients": honest}, {"logits": honest, "more": honest}):
        rogue.say(codec.encode(rogue.upload(knowledge=knowledge)))
    assert rogue.counted(clean) == {VICTIM: {"knowledge": 8, "refused": 8}}


def test_a_closing_flag_out_of_place(rogue: Rogue, clean: fleets.Run) -> None:
    rogue.say(codec.encode(rogue.upload(closing=True, knowledge={})))
    assert rogue.counted(clean) == {VICTIM: {"knowledge": 2, "refused": 2}}


def test_speaking_for_somebody_else(rogue: Rogue, clean: fleets.Run) -> None:
    rogue.say(codec.encode(rogue.upload()), topic=topics.up("tiny", "device-05", "upd"))
    rogue.say(codec.encode(rogue.upload()), topic=topics.up("tiny", "nobody", "upd"))
    rogue.say(codec.encode(rogue.upload(federation="other")))
    assert rogue.counted(clean) == {"device-05": {"topic": 2}, "nobody": {"stranger": 2}, VICTIM: {"topic": 2}}


def test_a_stranger_who_never_joined(rogue: Rogue, clean: fleets.Run) -> None:
    rogue.say(codec.encode(rogue.upload(device="nobody")), topic=topics.up("tiny", "nobody", "upd"))
    assert rogue.counted(clean) == {"nobody": {"stranger": 2}}


def test_topics_that_no_device_has(rogue: Rogue, clean: fleets.Run) -> None:
    """A legal upload under a made-up shard or kind is not used: each device has one topic of each kind."""
    right = topics.up("tiny", VICTIM, "upd")
    wrong = topics.shard(VICTIM) + 1
    rogue.say(codec.encode(rogue.upload()), topic=right.replace(f"/up/{topics.shard(VICTIM)}/", f"/up/{wrong}/"))
    rogue.say(codec.encode(rogue.upload()), topic=right.replace("/upd", "/more"))
    assert rogue.counted(clean) == {VICTIM: {"topic": 4}}


def test_garbage(rogue: Rogue, clean: fleets.Run) -> None:
    honest = codec.encode(rogue.upload())
    damaged = bytearray(honest)
    damaged[-1] ^= 1
    later = bytearray(honest)
    later[4] = 9
    frames = {
        "magic": [b"", b"\x00" * 100, b"EDG", np.random.default_rng(0).bytes(500)],
        "length": [honest[:-1], honest + b"\x00", honest[:HEADER_BYTES]],
        "checksum": [bytes(damaged)],
        "version": [bytes(later)],
        "limit": [b"EDGK" + bytes(2**20), framed(b"\x91" * 20)],
        "msgpack": [framed(b""), framed(b"\xc1")],
        "schema": [framed(msgpack.packb(["nothing", {}])), framed(msgpack.packb([1, 2]))],
    }
    for each in (frame for some in frames.values() for frame in some):
        rogue.say(each)
    assert rogue.counted(clean) == {VICTIM: {kind: 2 * len(some) for kind, some in frames.items()}}


def test_garbage_under_no_name(rogue: Rogue, clean: fleets.Run) -> None:
    rogue.say(b"?", topic=topics.control("tiny"))
    assert rogue.counted(clean) == {"unknown": {"magic": 2}}


def test_under_ever_new_names(rogue: Rogue, clean: fleets.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither illegal frames nor refused strangers fill the memory."""
    monkeypatch.setattr(run_record, "MAX_REFUSED", 3)
    monkeypatch.setattr(run_record, "MAX_STRANGERS", 3)
    honest = fleets.Run(rogue.run.fleet).hello(0)
    for i in range(6):
        rogue.say(b"?", topic=topics.up("tiny", f"name-{i}", "upd"))
        hello = replace(honest, device=f"name-{i}")
        rogue.say(codec.encode(hello), topic=topics.up("tiny", f"name-{i}", "hello"))
    rogue.say(b"?", at_s=6.0)
    counted = rogue.counted(clean)
    assert counted == {f"name-{i}": {"stranger": 2} for i in range(3)} | {
        "others": {"stranger": 6},
        VICTIM: {"magic": 2},
    }
    assert len(rogue.run.result.refused_devices) == 3


def test_messages_that_are_not_for_the_coordinator(rogue: Rogue, clean: fleets.Run) -> None:
    status = topics.device_status("tiny", VICTIM)
    rogue.say(codec.encode(CoordinatorStatus(federation="tiny", state="failed", epoch=1)), topic=status)
    rogue.say(codec.encode(Assign(federation="tiny", device=VICTIM, round=0, exchange=0)))
    command = Control(federation="tiny", operation="drain", operator="rogue", request=bytes(16))
    rogue.say(codec.encode(command))
    rogue.say(codec.encode(command), topic=topics.control("other"))
    rogue.say(codec.encode(replace(command, federation="other")), topic=topics.control("tiny"))
    rogue.say(codec.encode(Control(federation="tiny", operation="drain")), topic=topics.control("tiny"))
    rogue.say(codec.encode(Bye(federation="tiny", device=VICTIM)), topic=topics.control("tiny"))
    assert rogue.counted(clean) == {VICTIM: {"topic": 6}, "unknown": {"topic": 4, "knowledge": 2}}


def test_an_old_upload_again(rogue: Rogue, clean: fleets.Run) -> None:
    """In the same round it is a duplicate, in a later one it is late; both times it has no effect."""
    heard: list[bytes] = []
    publish = rogue.run.hub.publish

    def listen(sender, topic: str, frame: Frame, *, retain: bool) -> None:
        if topic == topics.up("tiny", "device-00", "upd"):
            heard.append(bytes(frame))
        publish(sender, topic, frame, retain=retain)

    rogue.run.hub.publish = listen
    where = topics.up("tiny", "device-00", "upd")
    rogue.say(lambda: heard[0], at_s=5.0, topic=where)
    rogue.say(lambda: heard[0], at_s=15.0, topic=where)
    assert rogue.counted(clean) == {"device-00": {"duplicate": 2, "stale": 2}}
    before, after = clean.result.updates, rogue.run.result.updates
    assert after["duplicate"] == before["duplicate"] + 2
    assert after["stale"] == before["stale"] + 2


def test_an_upload_ahead_of_its_time(rogue: Rogue, clean: fleets.Run) -> None:
    rogue.say(codec.encode(rogue.upload(round_=2)))
    rogue.say(codec.encode(rogue.upload(exchange=1)))
    assert rogue.counted(clean) == {VICTIM: {"refused": 4}}
    assert rogue.run.result.updates["refused"] == 4


def test_false_news_of_a_loss(rogue: Rogue, clean: fleets.Run) -> None:
    """A will is a hint: the device is waited for, and its upload counts."""
    lost = DeviceStatus(federation="tiny", device=VICTIM, state="lost", boot=1)
    rogue.say(codec.encode(lost), topic=topics.device_status("tiny", VICTIM))
    assert rogue.counted(clean) == {}


def test_to_devices(rogue: Rogue, clean: fleets.Run) -> None:
    """On a device's own topics: it counts what is not legal, and what cannot be used is as if it had never come."""
    other = batch_digest(rogue.spec, batch_indices(rogue.spec, 3, 0, 8))
    mean = PublicLogits(values=np.zeros((8, fleets.CLASSES), np.float32), batch=other, contributors=6)
    task = topics.down("tiny", "device-00", "task")
    rogue.say(b"?", topic=task)
    rogue.say(codec.encode(Assign(federation="tiny", device=VICTIM, round=1, exchange=0)), topic=task)
    now = codec.Stamp(1, 99)
    rogue.say(codec.encode(Assign(federation="tiny", device="device-00", round=9, exchange=0), now), topic=task)
    rogue.say(codec.encode(Assign(federation="tiny", device="device-00", round=1, exchange=7), now), topic=task)
    poisoned = Assign(federation="tiny", device="device-00", round=2, exchange=0, common={"mean": mean})
    rogue.say(codec.encode(poisoned, now), topic=task)
    assert rogue.counted(clean) == {}
    assert rogue.run.devices[0].participant.incoming.refused == {"magic": 2, "topic": 2, "knowledge": 5}
    told = summary(rogue.run.result)["refused_by_devices"]
    assert told == {"device-00": {"magic": 2, "topic": 2, "knowledge": 5}}


def test_a_farewell_of_nobody(rogue: Rogue, clean: fleets.Run) -> None:
    """It does not count against the quorum."""
    for i in range(4):
        bye = Bye(federation="tiny", device=f"name-{i}")
        rogue.say(codec.encode(bye, codec.Stamp(1, 1)), topic=topics.up("tiny", f"name-{i}", "bye"))
    assert rogue.counted(clean) == {}


def test_a_farewell_that_was_recorded_earlier(rogue: Rogue, clean: fleets.Run) -> None:
    """Whoever has said hello since is not gone."""
    bye = codec.encode(Bye(federation="tiny", device=VICTIM), codec.Stamp(1, 0))
    rogue.say(bye, topic=topics.up("tiny", VICTIM, "bye"))
    assert rogue.counted(clean) == {VICTIM: {"replayed": 2}}


def test_a_hello_in_a_devices_name(rogue: Rogue, clean: fleets.Run) -> None:
    """As the device itself would say it: welcomed again, and nothing else."""
    hello = fleets.Run(rogue.run.fleet).hello(3)
    rogue.say(codec.encode(hello), topic=topics.up("tiny", VICTIM, "hello"))
    assert rogue.counted(clean) == {}

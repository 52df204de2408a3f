"""Common knowledge that is decoded once gives the messages that decoding each frame gives."""

import dataclasses
import zlib

import numpy as np
import pytest

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import CommonKnowledge, Limits, Stamp
from edge_sdk.protocol.frames.frame_parts import FrameParts
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Assign, Receipt

LIMITS = Limits(2**24, 2**23)
SIZES = (20, 100_000, 600_000)
"""Weights of some bytes, of a body that is decoded as a whole, and of one whose tensors are not copied."""


def weights(seed, size):
    values = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    return Weights(values=values, layout=bytes(16))


def assign(device, size, *, seed=0, personal=None, **fields):
    return Assign(
        federation="f",
        device=device,
        round=1,
        exchange=0,
        common={"w": weights(seed, size)},
        personal={} if personal is None else {"own": personal},
        **fields,
    )


def same(one, other):
    plain = [dataclasses.replace(each.message, common={}, personal={}) for each in (one, other)]
    assert plain[0] == plain[1]
    assert one.stamp == other.stamp
    for field in ("common", "personal"):
        mine, theirs = getattr(one.message, field), getattr(other.message, field)
        assert mine.keys() == theirs.keys()
        for role in mine:
            assert mine[role].values.tobytes() == theirs[role].values.tobytes()
            assert not mine[role].values.flags.writeable


@pytest.mark.parametrize("size", SIZES)
def test_each_device_gets_its_message_and_all_share_the_knowledge(size):
    known = CommonKnowledge()
    messages = [assign("a", size), assign("bcd", size, run=b"12345678"), assign("e", size, personal=weights(9, 30))]
    found = []
    for number, message in enumerate(messages):
        frame = codec.encode(message, Stamp(3, number))
        found.append(known.decode(frame, LIMITS, "a"))
        same(found[-1], codec.decode(frame, LIMITS))
    assert all(each.message.common is found[0].message.common for each in found)


@pytest.mark.parametrize("size", SIZES)
def test_other_knowledge_is_decoded_anew(size):
    known = CommonKnowledge()
    for seed in (0, 1, 0):
        frame = codec.encode(assign("a", size, seed=seed))
        same(known.decode(frame, LIMITS, "a"), codec.decode(frame, LIMITS))


def test_other_messages_are_decoded_as_ever():
    known = CommonKnowledge()
    receipt = Receipt(federation="f", device="d", round=1, exchange=0, verdict="accepted")
    for message in (assign("a", 50), receipt, Assign(federation="f", device="a", round=1, exchange=0)):
        frame = codec.encode(message)
        assert type(known.decode(frame, LIMITS, "a").message) is type(message)


@pytest.mark.parametrize("at", [4, 14, 30, 60, 200, -1])
def test_damage_is_noticed_in_every_frame(at):
    known = CommonKnowledge()
    frames = [codec.encode(assign(device, 5000)) for device in ("a", "b")]
    known.decode(frames[0], LIMITS, "a")
    damaged = bytearray(frames[1])
    damaged[at] ^= 1
    with pytest.raises(RemoteProtocolError):
        known.decode(bytes(damaged), LIMITS, "b")
    known.decode(frames[1], LIMITS, "b")


def checked(frame):
    """Give a frame whose body was changed the checksum that fits."""
    header, rest = frame[: codec.HEADER_BYTES], frame[codec.HEADER_BYTES :]
    blank = header[: codec._CRC_AT] + bytes(4) + header[codec._CRC_AT + 4 :]
    crc = zlib.crc32(rest, zlib.crc32(blank))
    return blank[: codec._CRC_AT] + crc.to_bytes(4, "little") + blank[codec._CRC_AT + 4 :] + rest


def test_a_broken_end_with_its_checksum_is_refused_as_in_every_frame():
    known = CommonKnowledge()
    frames = [codec.encode(assign(device, 5000)) for device in ("a", "b")]
    known.decode(frames[0], LIMITS, "a")
    at = frames[1].rindex(b"personal") + len(b"personal")
    broken = checked(frames[1][:at] + b"\xc1" + frames[1][at + 1 :])  # a byte that is no value of msgpack
    for decode in (codec.decode, lambda *given: known.decode(*given, "b")):
        with pytest.raises(RemoteProtocolError):
            decode(broken, LIMITS)
    assert known.decode(checked(frames[1]), LIMITS, "b").message.device == "b"


def test_personal_knowledge_that_looks_like_a_field_name_misleads_nobody():
    known = CommonKnowledge()
    name = np.frombuffer(b"\xa8personal\xa6common\x80", np.uint8)
    values = np.resize(name, 4 * 4096).view(np.float32).copy()
    values[~np.isfinite(values)] = 0
    for device in ("a", "b", "c"):
        frame = codec.encode(assign(device, 4096, personal=Weights(values=values, layout=bytes(16))))
        same(known.decode(frame, LIMITS, "a"), codec.decode(frame, LIMITS))


# -- frames in parts ------------------------------------------------------------------------------------------------

CALLED = ("a", "device", "device-" + "7" * 29)


def in_parts(size=5000, *, seed=0, federation="f", ids=CALLED, **fields):
    message = dataclasses.replace(assign("x", size, seed=seed), federation=federation, **fields)
    circular = codec.Circular(dataclasses.replace(message, common={}), {"common": codec.pack_field(message, "common")})
    return [circular.frame(device, Stamp(7, number)) for number, device in enumerate(ids)]


@pytest.mark.parametrize("federation", ["f", "device"])
def test_a_frame_in_parts_gives_the_message_of_its_bytes(federation, monkeypatch):
    known, whole, decode = CommonKnowledge(), [], CommonKnowledge._decode
    monkeypatch.setattr(CommonKnowledge, "_decode", lambda *given: whole.append(given) or decode(*given))
    for seed in (0, 1):
        frames = in_parts(seed=seed, federation=federation)
        found = [known.decode(frame, LIMITS, device) for frame, device in zip(frames, CALLED, strict=True)]
        for envelope, frame in zip(found, frames, strict=True):
            same(envelope, codec.decode(bytes(frame), LIMITS))
        assert all(each.message.common is found[0].message.common for each in found)
        assert known.decoded is found[0].message.common
    assert len(whole) == 2 if federation == "f" else 6  # the last one's name does not tell where the id stands


def changed(frame, part, at):
    """Return the frame with a bit of one part changed."""
    damaged = bytearray(getattr(frame, part))
    damaged[at] ^= 1
    return dataclasses.replace(frame, **{part: bytes(damaged)})


@pytest.mark.parametrize(
    ("part", "at"), [("head", each) for each in (4, 5, 8, 14, 50, 70, -1)] + [("middle", 99), ("tail", -1)]
)
def test_damage_is_noticed_in_every_part(part, at):
    known, frames = CommonKnowledge(), in_parts()
    known.decode(frames[0], LIMITS, CALLED[0])
    with pytest.raises(RemoteProtocolError):
        known.decode(changed(frames[1], part, at), LIMITS, CALLED[1])
    assert known.decode(frames[1], LIMITS, CALLED[1]).message.device == CALLED[1]


def test_a_frame_to_another_device_stays_one_to_another_device():
    known, frames = CommonKnowledge(), in_parts()
    known.decode(frames[0], LIMITS, CALLED[0])
    assert known.decode(frames[1], LIMITS, CALLED[2]).message.device == CALLED[1]
    cut = FrameParts(frames[2].head[:-3], frames[2].head[-3:] + frames[2].middle, frames[2].tail)
    assert known.decode(cut, LIMITS, CALLED[2]).message.device == CALLED[2]


def test_a_frame_in_parts_obeys_the_limits():
    known, frames = CommonKnowledge(), in_parts(ids=("a", "b" * 30))
    limits = Limits(len(frames[0]), 2**23)
    known.decode(frames[0], limits, "a")
    with pytest.raises(RemoteProtocolError):
        known.decode(frames[1], limits, "b" * 30)

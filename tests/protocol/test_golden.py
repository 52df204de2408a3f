"""Version 1 as bytes: what is in golden/*.hex decodes to the sample of that name, and the sample encodes to it, for ever.

A new message or payload kind gets its file by running

    EDGE_GOLDEN=write pytest tests/protocol/test_golden.py

which writes the files that are missing and never touches one that is there.  A file that no longer fits is not to be
written anew: devices in the field speak it.  What has to give way is the change (docs/reference/protocol.md, "Evolution").
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

import msgpack
import pytest
from protocol_samples import FRAMES, MESSAGES, PAYLOADS, STAMP, body_of, seal

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.knowledge import kinds
from edge_sdk.protocol.messages import Message

GOLDEN = Path(__file__).parent / "golden"
SIGNED = codec.encode(MESSAGES["control"], STAMP, sign=lambda _signed: bytes(range(64)))
ALL = {**FRAMES, "signed": SIGNED}


def golden(name: str) -> bytes:
    path = GOLDEN / f"{name}.hex"
    if os.environ.get("EDGE_GOLDEN") == "write" and not path.exists():
        path.write_text("\n".join(textwrap.wrap(ALL[name].hex(), 96)) + "\n")
    return bytes.fromhex(path.read_text())


@pytest.mark.parametrize("name", ALL)
def test_version_1_never_changes(name):
    assert ALL[name] == golden(name)
    envelope = codec.decode(golden(name))
    assert envelope.message == MESSAGES["control" if name == "signed" else name]
    assert envelope.stamp == STAMP


def test_every_message_and_every_payload_kind_is_golden():
    assert {type(message) for message in MESSAGES.values()} == set(Message.__args__)
    assert {type(payload) for payload in PAYLOADS.values()} == set(kinds().values())
    assert {path.stem for path in GOLDEN.glob("*.hex")} == set(ALL)


def test_the_layout_of_the_header_is_the_documented_one():
    frame = golden("signed")
    assert frame[:4] == b"EDGK"
    assert frame[4:8] == bytes([1, 1, 0, 0])  # version, flags: signed, reserved
    assert int.from_bytes(frame[8:12], "little") == len(frame) - 48 - 64
    assert frame[16:32] == STAMP.key_id
    assert int.from_bytes(frame[32:40], "little") == STAMP.boot_epoch
    assert int.from_bytes(frame[40:48], "little") == STAMP.sequence
    assert frame[48:112] == bytes(range(64))
    assert msgpack.unpackb(frame[112:]) == ["control", {"federation": "lab", "operation": "revoke", "device": "cam-07"}]


# -- evolution ------------------------------------------------------------------------------------------------------


def changed(name: str, **fields: object) -> bytes:
    """A golden frame with other fields; None leaves one out."""
    tag, known = msgpack.unpackb(body_of(golden(name)))
    merged = {**known, **fields}
    return seal(msgpack.packb([tag, {key: value for key, value in merged.items() if value is not None}]))


def refusal(frame: bytes) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        codec.decode(frame)
    return caught.value


@pytest.mark.parametrize("name", FRAMES)
def test_a_field_of_a_later_version_is_skipped(name):
    later = {"of": ["any", {"legal": 1.5}], "kind": b"\x00"}
    assert codec.decode(changed(name, a_later_field=later)).message == MESSAGES[name]


def test_a_field_of_a_later_version_is_skipped_inside_a_payload():
    knowledge = msgpack.unpackb(body_of(golden("upload-logits")))[1]["knowledge"]
    knowledge["logits"][1]["calibrated"] = True
    assert codec.decode(changed("upload-logits", knowledge=knowledge)).message == MESSAGES["upload-logits"]


def test_a_missing_optional_field_takes_its_default():
    hello = codec.decode(changed("hello", versions=None, capabilities=None, board=None, public_sha256=None)).message
    assert (hello.versions, hello.capabilities, hello.board, hello.public_sha256) == ((1,), (), "", None)
    upload = codec.decode(changed("upload-logits", knowledge=None, metrics=None)).message
    assert (dict(upload.knowledge), dict(upload.metrics)) == ({}, {})


def test_a_field_that_came_later_is_left_out_at_its_default():
    """So the bytes of before it stand, and an old receiver is not shown what it does not know."""
    assert "inert_terms" not in msgpack.unpackb(body_of(golden("hello")))[1]
    assert msgpack.unpackb(body_of(golden("hello-inert")))[1]["inert_terms"] == ["prototype-pull"]


def test_encodings_are_left_out_where_all_is_f32():
    assert "encodings" not in msgpack.unpackb(body_of(golden("hello")))[1]
    assert "encoding" not in msgpack.unpackb(body_of(golden("welcome")))[1]["spec"]
    told = msgpack.unpackb(body_of(golden("welcome-encoding")))[1]["spec"]["encoding"]
    assert (told["logits"], told["class_rows"], told["weights"]) == ("int8-row", "f32", "f16")


def test_defaults_are_not_shared():
    frame = changed("upload-logits", metrics=None)
    first, second = codec.decode(frame).message, codec.decode(frame).message
    assert first.metrics is not second.metrics
    with pytest.raises(TypeError, match="cannot change"):
        first.metrics["accuracy"] = 1.0


def test_a_missing_required_field_is_named():
    assert str(refusal(changed("hello", classes=None))) == "Hello.classes: missing"


def test_an_unknown_message_says_which_side_to_upgrade():
    error = refusal(seal(msgpack.packb(["hello2", {}])))
    assert error.kind == "schema"
    assert "unknown message tag" in str(error)
    assert "upgrade this side" in str(error)


def test_an_unknown_payload_kind_says_what_is_known():
    error = refusal(changed("upload-logits", knowledge={"x": ["sketches", {}]}))
    assert error.kind == "schema"
    assert "Upload.knowledge.x: unknown tag" in str(error)
    assert "scalars | weights: upgrade" in str(error)


@pytest.mark.parametrize(("version", "older"), [(0, "the sender"), (3, "this side"), (255, "this side")])
def test_another_frame_version_says_which_side_to_upgrade(version, older):
    error = refusal(seal(body_of(golden("hello")), version=version))
    assert error.kind == "version"
    assert re.match(rf"frame version {version}, .*1: .*{older}$", str(error))


def test_a_later_version_is_recognised_whatever_its_header_looks_like():
    for length in range(5, 60):
        assert refusal((b"EDGK\x03" + bytes(60))[:length]).kind == "version"


@pytest.mark.parametrize("flag", range(1, 8))
def test_reserved_flags_are_refused(flag):
    error = refusal(seal(body_of(golden("hello")), flags=1 << flag))
    assert error.kind == "version"
    assert "upgrade this side" in str(error)


@pytest.mark.parametrize("bit", range(16))
def test_reserved_bytes_are_refused(bit):
    error = refusal(seal(body_of(golden("hello")), reserved=1 << bit))
    assert error.kind == "version"
    assert "upgrade this side" in str(error)

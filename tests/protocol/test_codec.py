"""The frame: what is checked, in which order, and what our own side may not send."""

from __future__ import annotations

import hashlib
import hmac
import pickle
import typing
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, replace

import msgpack
import numpy as np
import pytest
from protocol_samples import ADDRESS, BATCH, FRAMES, LOGITS, MESSAGES, SPEC, STAMP, VALUES, body_of, seal

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol.frames import schema
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS, HEADER_BYTES, UNSIGNED, Stamp, decode, encode
from edge_sdk.protocol.frames.schema import from_plain, one_line, tag_of, to_plain, wire
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.protocol.messages import Bye, Hello, Refusal, TrainSpec, Upload, Welcome
from edge_sdk.protocol.operator_messages import ControlAnswer, DeviceEntry, LogLines

BYE = MESSAGES["bye"]


def kind_of(frame: bytes, *args, **options) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(frame, *args, **options)
    return caught.value.kind


# -- header ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(len(FRAMES["bye"])))
def test_every_byte_of_a_frame_is_protected(at):
    frame = bytearray(FRAMES["bye"])
    frame[at] ^= 0x20
    words = ["magic"] * 4 + ["version"] * 4 + ["length"] * 4 + ["checksum"] * len(frame)
    assert kind_of(bytes(frame)) == words[at]


def test_a_frame_is_measured_before_it_is_looked_at():
    assert kind_of(bytes(CONTROL_LIMITS.frame_bytes + 1)) == "limit"
    assert kind_of(bytes(CONTROL_LIMITS.frame_bytes)) == "magic"


@pytest.mark.parametrize("length", range(HEADER_BYTES))
def test_a_frame_shorter_than_its_header_is_refused(length):
    assert kind_of(FRAMES["bye"][:length]) == ("length" if length > 4 else "magic")


def test_the_stamp_travels():
    stamp = Stamp(boot_epoch=2**64 - 1, sequence=2**64 - 2, key_id=bytes(range(100, 116)))
    assert decode(encode(BYE, stamp)).stamp == stamp
    assert decode(encode(BYE)).stamp == Stamp(0, 0, UNSIGNED)


@pytest.mark.parametrize(
    "stamp", [Stamp(boot_epoch=-1), Stamp(sequence=2**64), Stamp(key_id=b"short"), Stamp(key_id=bytes(17))]
)
def test_an_impossible_stamp_is_our_own_fault(stamp):
    with pytest.raises(LocalProtocolError):
        encode(BYE, stamp)


# -- signatures -----------------------------------------------------------------------------------------------------

KEYS = {STAMP.key_id: b"the key of cam-07"}


def sign(signed: bytes) -> bytes:
    return hmac.digest(KEYS[STAMP.key_id], signed, hashlib.sha512)


def verify(key_id: bytes, signed: bytes, signature: bytes) -> bool:
    return key_id in KEYS and hmac.compare_digest(hmac.digest(KEYS[key_id], signed, hashlib.sha512), signature)


def test_a_signed_frame_is_taken():
    frame = encode(BYE, STAMP, sign=sign)
    assert decode(frame, verify=verify).message == BYE
    assert decode(frame).message == BYE  # where nobody asks for signatures


def test_the_signature_covers_header_and_body():
    seen = []
    frame = encode(BYE, STAMP, sign=lambda signed: seen.append(signed) or sign(signed))
    assert seen == [frame[:HEADER_BYTES] + frame[HEADER_BYTES + 64 :]]


def test_the_signature_is_checked_before_the_body_is_decoded():
    """The body is no msgpack at all, and nobody gets to see that."""
    frame = seal(b"\xc1" * 10, flags=1)
    planted = frame[:HEADER_BYTES] + bytes(64) + frame[HEADER_BYTES:]
    assert kind_of(planted, verify=verify) == "signature"
    assert kind_of(planted) == "msgpack"


def test_a_signature_of_other_bytes_is_refused():
    frame, other = encode(BYE, STAMP, sign=sign), encode(MESSAGES["control"], STAMP, sign=sign)
    mixed = frame[:HEADER_BYTES] + other[HEADER_BYTES : HEADER_BYTES + 64] + frame[HEADER_BYTES + 64 :]
    assert kind_of(mixed, verify=verify) == "signature"


@pytest.mark.parametrize(
    "stamp", [replace(STAMP, sequence=42), replace(STAMP, boot_epoch=4), replace(STAMP, key_id=UNSIGNED)]
)
def test_a_signature_does_not_move_to_another_stamp(stamp):
    """Sequence, boot epoch and key are signed, so a recorded frame cannot be made to look new."""
    signature = encode(BYE, STAMP, sign=sign)[HEADER_BYTES : HEADER_BYTES + 64]
    forged = encode(BYE, stamp, sign=lambda _signed: signature)
    assert kind_of(forged, verify=verify) == "signature"


def test_an_unsigned_frame_is_refused_where_signatures_are_asked_for():
    assert kind_of(FRAMES["bye"], verify=verify) == "signature"
    assert kind_of(FRAMES["bye"], verify=lambda *_: True) == "signature"


def test_a_verifier_that_raises_has_not_verified():
    def raises(*_args: bytes) -> bool:
        raise ValueError("InvalidSignature")

    assert kind_of(encode(BYE, STAMP, sign=sign), verify=raises) == "signature"


def test_a_signature_of_the_wrong_length_is_our_own_fault():
    with pytest.raises(LocalProtocolError, match=r"64 bytes, .*32"):
        encode(BYE, STAMP, sign=lambda _signed: bytes(32))


# -- what our own side may not send ---------------------------------------------------------------------------------

UPLOAD = MESSAGES["upload-logits"]


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (replace(BYE, device="Cam/07"), "Bye.device"),
        (replace(BYE, device="cam+"), "Bye.device"),
        (replace(BYE, device="x" * 37), "Bye.device"),
        (replace(BYE, device=""), "Bye.device"),
        (replace(BYE, reason="line\nbreak"), "Bye.reason"),
        (replace(BYE, reason="half a pair \ud800"), "Bye.reason"),
        (replace(BYE, reason="x" * 257), "Bye.reason"),
        (replace(BYE, reason=None), "Bye.reason"),
        (replace(UPLOAD, samples=-1), "Upload.samples"),
        (replace(UPLOAD, samples=True), "Upload.samples"),
        (replace(UPLOAD, samples=np.int64(3)), "Upload.samples"),
        (replace(UPLOAD, metrics={"accuracy": float("nan")}), "Upload.metrics.accuracy"),
        (replace(UPLOAD, metrics={"accuracy": float("inf")}), "Upload.metrics.accuracy"),
        (replace(UPLOAD, metrics={"Accuracy": 1.0}), "Upload.metrics: key"),
        (replace(UPLOAD, metrics={1: 1.0, "a": 2.0}), "Upload.metrics: key"),
        (replace(UPLOAD, metrics={f"m{i}": 1.0 for i in range(65)}), "Upload.metrics: 65 entries"),
        (replace(UPLOAD, metrics=[("accuracy", 1.0)]), "Upload.metrics"),
        (replace(UPLOAD, knowledge={"x": BYE}), "Upload.knowledge.x"),
        (replace(UPLOAD, knowledge=LOGITS), "Upload.knowledge"),
        (replace(MESSAGES["hello"], versions=()), "Hello.versions: 0 entries"),
        (replace(MESSAGES["hello"], versions=1), "Hello.versions"),
        (replace(MESSAGES["hello"], capabilities="predict"), "Hello.capabilities"),
        (replace(MESSAGES["hello"], class_counts=(1, -1)), "Hello.class_counts"),
        (replace(MESSAGES["hello"], class_counts=(1, 2**32)), "Hello.class_counts"),
        (replace(MESSAGES["hello"], class_counts=(1,) * 32769), "Hello.class_counts"),
        (replace(MESSAGES["hello"], class_counts=7), "Hello.class_counts"),
        (replace(MESSAGES["welcome"], spec=BYE), "Welcome.spec"),
    ],
)
def test_what_must_not_arrive_does_not_leave(message, path):
    with pytest.raises(LocalProtocolError) as caught:
        encode(message)
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(
    "values",
    [
        VALUES.astype(np.float64),
        VALUES.tolist(),
        VALUES[0],
        VALUES[:0],
        VALUES[None],
        np.where(VALUES > 0, np.float32(np.nan), VALUES),
        np.where(VALUES > 0, np.float32(np.inf), VALUES),
        VALUES.astype(object),
    ],
    ids=["f8", "list", "1-d", "empty", "3-d", "nan", "inf", "object"],
)
def test_a_tensor_that_must_not_arrive_does_not_leave(values):
    with pytest.raises(LocalProtocolError, match=r"Upload\.knowledge\.logits\.values"):
        encode(replace(UPLOAD, knowledge={"logits": PublicLogits(values=values, batch=BATCH)}))


def test_only_messages_travel():
    with pytest.raises(LocalProtocolError, match=r"FederationSpec is not .*message"):
        encode(SPEC)


def test_a_subclass_does_not_travel_under_the_tag_of_its_parent():
    class Longer(Bye):
        pass

    with pytest.raises(LocalProtocolError, match=r"Longer is not .*message"):
        encode(Longer(**ADDRESS))
    with pytest.raises(LocalProtocolError, match="Longer is not registered"):
        tag_of(Longer)


def test_arrays_of_any_layout_arrive_the_same():
    big_endian, transposed, strided = VALUES.astype(">f4"), np.asfortranarray(VALUES), np.repeat(VALUES, 2, axis=0)[::2]
    frames = {
        encode(replace(UPLOAD, knowledge={"logits": PublicLogits(values=values, batch=BATCH)}))
        for values in (VALUES, big_endian, transposed, strided)
    }
    assert len(frames) == 1


def test_maps_of_any_order_give_the_same_bytes():
    forth, back = {"a": 1.0, "b": 2.0, "c": 3.0}, {"c": 3.0, "b": 2.0, "a": 1.0}
    assert encode(replace(UPLOAD, metrics=forth)) == encode(replace(UPLOAD, metrics=back))


def test_the_largest_control_messages_arrive():
    """No field of a control message can be legal by itself and make its frame too large."""
    word, line = ["w" * 63 + chr(ord("a") + i % 26) for i in range(64)], "\U0001f600" * 256
    params = {f"{'p' * 62}{i:02}": line for i in range(64)}
    spec = replace(SPEC, params=params, train=TrainSpec())
    hello = Hello(
        **ADDRESS, versions=(255,) * 64, sdk=line, capabilities=tuple(word), terms=tuple(word), classes=65535,
        class_counts=(2**32 - 1,) * 32768, model=line, runtime=line, note=line, board=line, public_sha256=bytes(32),
    )  # fmt: skip
    refusal = Refusal(**ADDRESS, reason="r", message="\U0001f600" * 1024, remedy="\U0001f600" * 1024)
    entry = DeviceEntry(
        device="d" * 36, state=word[0], why="\U0001f600" * 512, here_s=1e9, seen_s=1e9, number=2**32 - 1, board=line,
        model=line, runtime=line, sdk=line, round=2**32 - 1, figures=dict.fromkeys(word[:16], 1e300),
    )  # fmt: skip
    of = {"federation": "lab", "operator": "o" * 36, "request": bytes(32), "done": True}
    devices = ControlAnswer(**of, text="\U0001f600" * 1024, run=line, devices=(entry,) * 16, more=True)
    logs = ControlAnswer(**of, lines=(line,) * 64)
    for message in (devices, logs, LogLines(**ADDRESS, request=bytes(32), lines=(line,) * 64)):
        assert decode(encode(message), CONTROL_LIMITS).message == message
    for message in (hello, refusal, Welcome(**ADDRESS, number=2**31 - 1, epoch=2**63 - 1, run=bytes(16), spec=spec)):
        assert decode(encode(message), CONTROL_LIMITS).message == message


# -- what arrives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemoryError, RecursionError, TypeError, OverflowError, UnicodeDecodeError, KeyError])
def test_whatever_msgpack_raises_is_the_peer_s_fault(monkeypatch, error):
    """Its C code, its Python code and its next version need not agree on what they raise."""

    def unpackb(*_args, **_options):
        raise error("utf-8", b"", 0, 1, "planted") if error is UnicodeDecodeError else error("planted")

    monkeypatch.setattr(msgpack, "unpackb", unpackb)
    with pytest.raises(RemoteProtocolError, match=f"do not decode: {error.__name__}$") as caught:
        decode(FRAMES["bye"])
    assert caught.value.kind == "msgpack"


def test_numbers_may_come_as_integers():
    body = msgpack.packb(["assign", {**ADDRESS, "round": 0, "exchange": 0, "deadline_s": 5}])
    deadline_s = decode(seal(body)).message.deadline_s
    assert deadline_s == 5.0
    assert type(deadline_s) is float


def test_hyper_parameters_keep_their_types():
    params = {"whole": 1, "number": 1.0, "flag": True, "word": "1"}
    arrived = decode(encode(replace(MESSAGES["welcome"], spec=replace(SPEC, params=params)))).message.spec.params
    assert {key: type(value) for key, value in arrived.items()} == {
        "whole": int,
        "number": float,
        "flag": bool,
        "word": str,
    }


def test_nothing_that_arrived_can_be_changed():
    upload = decode(FRAMES["upload-logits"]).message
    values = upload.knowledge["logits"].values
    with pytest.raises(ValueError, match="read-only"):
        values[0, 0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        values.setflags(write=True)
    for change in (
        lambda: upload.metrics.update(accuracy=1.0),
        lambda: upload.metrics.pop("accuracy"),
        upload.metrics.clear,
        lambda: upload.knowledge.setdefault("more", LOGITS),
        lambda: upload.knowledge.__delitem__("logits"),
        lambda: upload.metrics.__ior__({"accuracy": 1.0}),
    ):
        with pytest.raises(TypeError, match="cannot change"):
            change()


def test_a_message_can_be_copied_and_pickled():
    """Simulations hand work to other processes."""
    upload = decode(FRAMES["upload-logits"]).message
    assert copy(upload) == deepcopy(upload) == pickle.loads(pickle.dumps(upload)) == upload
    with pytest.raises(TypeError, match="cannot change"):
        pickle.loads(pickle.dumps(upload)).metrics.clear()


def test_an_error_names_the_field_and_quotes_nothing():
    upload = msgpack.unpackb(body_of(FRAMES["upload-logits"]))[1]
    upload["metrics"] = {"\x1b[31mforged": 1.0}
    with pytest.raises(RemoteProtocolError, match=r"^Upload\.metrics: key: .* 64 ") as caught:
        decode(seal(msgpack.packb(["upload", upload])))
    assert "forged" not in str(caught.value)


def test_a_field_at_fault_is_named_with_its_path():
    upload = msgpack.unpackb(body_of(FRAMES["upload-logits"]))[1]
    upload["knowledge"]["logits"][1]["values"][1] = [3, 3]
    with pytest.raises(RemoteProtocolError, match=r"^Upload\.knowledge\.logits\.values: "):
        decode(seal(msgpack.packb(["upload", upload])))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        ("two\nlines\r\n", "two lines "),
        ("\x1b[31mred", " [31mred"),
        ("é" * 300, "é" * 255 + "…"),
        ("half \ud800", "half  "),
    ],
)
def test_any_text_can_be_made_a_line(text, line):
    assert one_line(text) == line
    assert decode(encode(replace(BYE, reason=one_line(text)))).message.reason == line


# -- schema ---------------------------------------------------------------------------------------------------------


def test_a_tag_belongs_to_one_class(monkeypatch):
    monkeypatch.setattr(schema, "TAGS", dict(schema.TAGS))
    with pytest.raises(LocalProtocolError, match="taken by Bye"):
        wire("bye")(type("Other", (), {}))


def test_a_class_may_check_itself(monkeypatch):
    monkeypatch.setattr(schema, "TAGS", dict(schema.TAGS))

    @wire("range-of-this-test")
    @dataclass(frozen=True)
    class Range:
        low: int
        high: int

        def __post_init__(self):
            if self.low > self.high:
                raise ValueError("low is above high")

    assert from_plain(Range, to_plain(Range(1, 2))) == Range(1, 2)
    with pytest.raises(RemoteProtocolError, match=r"Range: low .*above high"):
        from_plain(Range, {"low": 2, "high": 1})


def test_an_annotation_without_a_wire_form_is_named():
    @dataclass(frozen=True)
    class Wave:
        amplitude: complex

    with pytest.raises(LocalProtocolError, match="complex"):
        from_plain(Wave, {"amplitude": 1})


def test_every_list_and_map_in_a_message_is_bounded():
    """Or encode would let out what decode keeps out."""
    for cls in schema.TAGS.values():
        if not cls.__module__.startswith("edge_sdk.protocol"):
            continue
        for name, hint in typing.get_type_hints(cls, include_extras=True).items():
            origin = typing.get_origin(hint)
            assert origin is not tuple, f"{cls.__name__}.{name}"
            assert not (isinstance(origin, type) and issubclass(origin, Mapping)), f"{cls.__name__}.{name}"


def test_an_upload_of_maximal_size_arrives():
    knowledge = {f"role-{i:02}": LOGITS for i in range(64)}
    metrics = {f"{'m' * 62}{i:02}": 1e300 for i in range(64)}
    upload = Upload(**ADDRESS, round=2**32 - 1, exchange=2**32 - 1, knowledge=knowledge, metrics=metrics)
    assert decode(encode(upload)).message == upload

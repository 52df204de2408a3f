"""Frames: a fixed header, which is checked before anything is decoded, and a msgpack body.

    offset  bytes  field
    0       4      magic "EDGK"
    4       1      version: 1; 2: the body is encrypted
    5       1      flags; bit 0: a 64-byte signature stands between header and body
    6       2      reserved, zero
    8       4      length of the body in bytes
    12      4      crc32 of everything else in the frame (signature left out)
    16      16     key id; zeros: unsigned
    32      8      boot epoch of the sender
    40      8      sequence number within that epoch
    48      64     signature, if flagged
    ..      ..     body: msgpack [tag, {fields}]

All integers are little-endian.  `decode` raises RemoteProtocolError and no other error, whatever bytes it is given.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast, get_args

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol.frames import body, crc, schema
from edge_sdk.protocol.frames.body import PackedField, Piece
from edge_sdk.protocol.frames.frame_parts import Frame, FrameParts, ToldFrame
from edge_sdk.protocol.frames.scan import scan
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import Assign, Message

MAGIC = b"EDGK"
VERSION = 1
SEALED_VERSION = 2
"""The version of frames whose body is encrypted; the layout of their header is the same."""
HEADER = struct.Struct("<4sBBHII16sQQ")
HEADER_BYTES = HEADER.size
SIGNATURE_BYTES = 64
UNSIGNED = bytes(16)
_SIGNED = 1
_TEXT = {str}
_COMMON, _PERSONAL, _EMPTY_MAP = b"\xa6common", b"\xa8personal", b"\x80"
"""Names of fields, and an empty map, as msgpack packs them.  Legal ids cannot contain the first two."""
_FRONT_BYTES, _LEAST_COMMON_BYTES = 512, 64
"""Bytes: common knowledge is decoded once if it begins within the first number after the header, and has the second."""
_LEAST_SHARED_BYTES = 1024
"""The minimum length of a field that frames to many devices share; frames with a shorter one are joined at once."""
_DEVICE = body.packed_text("device")
"""The name of the field with the device's id, as msgpack packs it."""
_FLAGS_AT, _CRC_AT = 5, 12

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes, bytes], bool]
"""Returns whether a signature is valid, from key id, signed bytes and signature.  It may raise RemoteProtocolError with
its own reason."""

_TAGS: dict[type, str] = {cls: schema.tag_of(cls) for cls in get_args(Message)}
_MESSAGES: dict[str, type] = {tag: cls for cls, tag in _TAGS.items()}


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest frame, and the largest tensor in a frame; larger ones are refused before they are decoded."""

    frame_bytes: int = 192 * 1024
    tensor_bytes: int = 128 * 1024


CONTROL_LIMITS = Limits()
"""The limits of messages without knowledge.  The largest are a Hello with the sample counts of 32,768 classes (128 KiB)
and a Welcome with 64 hyper-parameters of 256 characters (70 KiB)."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The part of a frame's header that identifies the sender and orders its frames."""

    boot_epoch: int = 0
    """The number of starts of the sender."""
    sequence: int = 0
    """Counts the sender's frames since that start."""
    key_id: bytes = UNSIGNED


_UNSTAMPED = Stamp()


@dataclass(frozen=True, slots=True)
class Envelope:
    """A decoded frame."""

    message: Message
    stamp: Stamp


def encode(
    message: Message,
    stamp: Stamp = _UNSTAMPED,
    sign: Sign | None = None,
    packed: Mapping[str, PackedField] = MappingProxyType({}),
) -> bytes:
    """Return the frame of a message.  Raises LocalProtocolError if the message breaks its own schema.

    sign: maps header and body to a signature of 64 bytes.  packed: fields already encoded by `pack_field`, which
    replace the message's own values.
    """
    if type(message) not in _TAGS:
        raise LocalProtocolError(f"{type(message).__name__} is not a message: it can only be sent inside one")
    plain = schema.to_plain(message)
    plain.update(packed)
    pieces = body.pack([_TAGS[type(message)], plain])
    parts = list(body.joined_parts(pieces))
    header = _with_checksum(_header(sum(map(len, parts)), stamp, _SIGNED if sign else 0), *pieces)
    if sign is None:
        return b"".join((header, *parts))
    return b"".join((header, _signature(sign, header, *parts), *parts))


class Circular:
    """A message to or from many devices that differs only in few fields: the others are checked and packed once.

    Packing it for each device makes a round of FedAvg 1.10 times as long (mlp, 20 devices, `cohort`), and the frames
    share no memory.
    """

    def __init__(
        self, message: Message, packed: Mapping[str, PackedField] = MappingProxyType({}), own: tuple[str, ...] = ()
    ) -> None:
        """message: for any of the devices.  packed: fields already encoded by `pack_field`.

        own: the fields, beside `device`, of which each frame has a value of its own.
        Raises LocalProtocolError if the message breaks its own schema.
        """
        plain = {**schema.to_plain(message), **packed}
        holes = {name: body.pack_value("") for name in ("device", *own) if name in plain}
        names = {id(hole): name for name, hole in holes.items()}
        pieces = body.pack([_TAGS[type(message)], {**plain, **holes}])
        last = max(place for place, piece in enumerate(pieces) if id(piece) in names)
        at_shared = next((place for place in range(last + 1, len(pieces)) if _is_long(pieces[place])), len(pieces))
        self._encoders = {name: schema.field_encoder(type(message), name) for name in own}
        self._before: list[tuple[bytes, str]] = []
        """The bytes before each field of which a frame has its own value, and the name of that field."""
        done = 0
        for place in range(last + 1):
            if id(pieces[place]) in names:
                self._before.append((b"".join(body.joined_parts(pieces[done:place])), names[id(pieces[place])]))
                done = place + 1
        self._rest, self._tail = (
            b"".join(body.joined_parts(some)) for some in (pieces[done:at_shared], pieces[at_shared + 1 :])
        )
        self._shared = pieces[at_shared] if at_shared < len(pieces) else None

    def frame(self, device: str, stamp: Stamp, own: Mapping[str, Any] = MappingProxyType({})) -> Frame:
        """Return the unsigned frame to a device with a legal id; a long one comes in parts, one of them shared.

        own: the values of the other fields that differ.
        """
        front = (
            b"".join(
                before
                + (body.packed_text(device) if name == "device" else body.packed_short(self._encoders[name](own[name])))
                for before, name in self._before
            )
            + self._rest
        )
        if not isinstance(self._shared, PackedField):
            return _with_checksum(_header(len(front), stamp, 0), front) + front
        return _in_parts(front, self._shared, self._tail, stamp)

    def told(self, message: Any, stamp: Stamp, own: tuple[str, ...] = ()) -> ToldFrame:
        """Return the short, unsigned frame of a message that differs from the first one in `device` and `own` only."""
        frame = ToldFrame(self.frame(message.device, stamp, {name: getattr(message, name) for name in own}))
        frame.envelope = Envelope(message, stamp)
        return frame


def _is_long(piece: Piece) -> bool:
    return isinstance(piece, PackedField) and len(piece) >= _LEAST_SHARED_BYTES


def _in_parts(front: bytes, shared: PackedField, tail: bytes, stamp: Stamp) -> FrameParts:
    header = _header(len(front) + len(shared) + len(tail), stamp, 0)
    return FrameParts(_with_checksum(header, front, shared, tail) + front, shared.packed, tail)


def seal_frame(
    frame: bytes,
    stamp: Stamp,
    sign: Sign,
    sealed_bytes: Callable[[int], int],
    encrypt: Callable[[bytes, memoryview], bytes],
) -> bytes:
    """Return a signed frame that holds the encrypted body of another one.

    sealed_bytes: maps a body's length to its encrypted length.  encrypt: takes the new header, with zeros in place of
    its checksum, and the body.
    """
    body_at = HEADER_BYTES + (SIGNATURE_BYTES if frame[_FLAGS_AT] & _SIGNED else 0)
    packed = memoryview(frame)[body_at:]
    header = _header(sealed_bytes(len(packed)), stamp, _SIGNED, SEALED_VERSION)
    sealed = encrypt(header, packed)
    header = _with_checksum(header, sealed)
    return b"".join((header, _signature(sign, header, sealed), sealed))


def unseal_frame(
    frame: bytes, limits: Limits, verify: Verify, decrypt: Callable[[bytes, memoryview, Stamp], memoryview]
) -> bytes:
    """Return the plain, unsigned frame with the body and the stamp of an encrypted one.

    limits: of encrypted frames.  decrypt: takes the header with zeros in place of its checksum, the encrypted body, and
    the stamp.  Raises RemoteProtocolError if the frame is illegal.
    """
    stamp, sealed = open_frame(frame, limits, verify, SEALED_VERSION)
    packed = decrypt(_without_checksum(frame[:HEADER_BYTES]), sealed, stamp)
    return b"".join((_with_checksum(_header(len(packed), stamp, 0), packed), packed))


def is_sealed(frame: bytes) -> bool:
    """Whether bytes begin like an encrypted frame."""
    return frame.startswith(MAGIC) and frame[len(MAGIC) : len(MAGIC) + 1] == bytes([SEALED_VERSION])


def pack_field(message: Message, field: str) -> PackedField:
    """Encode one field of a message, so that many messages with the same value can share the bytes."""
    return body.pack_value(schema.to_plain(message)[field])


def _signature(sign: Sign, *parts: bytes | memoryview) -> bytes:
    signature = sign(b"".join(parts))
    if len(signature) != SIGNATURE_BYTES:
        raise LocalProtocolError(f"a signature has {SIGNATURE_BYTES} bytes, this one {len(signature)}")
    return signature


def _stamp(head: bytes) -> Stamp:
    """Return the stamp in bytes that begin with a header."""
    *_, key_id, boot_epoch, sequence = HEADER.unpack_from(head)
    return Stamp(boot_epoch, sequence, key_id)


def _with_checksum(header: bytes, *pieces: Piece) -> bytes:
    """Return a header with its checksum, over itself and these pieces of the body, in place of zeros."""
    return header[:_CRC_AT] + _checksum(header, *pieces).to_bytes(4, "little") + header[_CRC_AT + 4 :]


def _without_checksum(header: bytes) -> bytes:
    """Return a header with zeros in place of its checksum."""
    return header[:_CRC_AT] + bytes(4) + header[_CRC_AT + 4 :]


def _header(length: int, stamp: Stamp, flags: int, version: int = VERSION) -> bytes:
    """Return the header with zeros in place of the checksum."""
    if len(stamp.key_id) != len(UNSIGNED):
        raise LocalProtocolError(f"a key id has {len(UNSIGNED)} bytes, this one {len(stamp.key_id)}")
    try:
        return HEADER.pack(MAGIC, version, flags, 0, length, 0, stamp.key_id, stamp.boot_epoch, stamp.sequence)
    except struct.error as error:
        raise LocalProtocolError(f"frame header: {error}") from None


def decode(frame: bytes, limits: Limits = CONTROL_LIMITS, verify: Verify | None = None) -> Envelope:
    """Return the message in a frame and its stamp.  Raises only RemoteProtocolError, for any bytes.

    verify: checks the signature, or None to ignore signatures.
    """
    if type(frame) is ToldFrame and verify is None and len(frame) <= limits.frame_bytes:
        return cast("Envelope", frame.envelope)
    try:
        stamp, packed = open_frame(frame, limits, verify)
        plain = body.unpack(packed, scan(packed, limits.tensor_bytes), _fields)
        return Envelope(_message(plain), stamp)
    except RemoteProtocolError:
        raise
    except Exception as error:  # noqa: BLE001  # msgpack raises errors of seven families on illegal bytes
        raise RemoteProtocolError("msgpack", f"{len(frame)} bytes do not decode: {type(error).__name__}") from None


@dataclass(frozen=True, slots=True)
class _Circulated:
    """A message to many devices, decoded for one of them."""

    before: bytes
    """The body before the device's id."""
    rest: bytes
    """The body between the id and the shared field."""
    shared: PackedField
    tail: bytes
    limits: Limits
    message: Message


@dataclass(slots=True)
class CommonKnowledge:
    """The common knowledge of the last decoded Assign, shared by many devices in one process.

    It is decoded and checked for the first device, and reused for all others whose Assign brings the same bytes.  A
    frame in parts that differs from the last one only in stamp and device id is not decoded at all: instead it must
    equal, byte for byte, the frame that its sender would make.
    """

    packed: bytes = b""
    decoded: Mapping[str, Payload] = field(default_factory=dict)
    checked_for: object = None
    """The (expectation, closing, exchange) for which it was restored and checked, if it was."""
    restored: Mapping[str, Payload] = field(default_factory=dict)
    """The knowledge with the federation's transforms undone."""
    circulated: _Circulated | None = None
    """The last message that came in parts."""

    def decode(self, frame: Frame, limits: Limits, device: str) -> Envelope:
        """Decode an unsigned frame to a device; raises like the function `decode`."""
        if isinstance(frame, bytes):
            return self._decode(frame, limits)
        known, text = self.circulated, body.packed_text(device)
        if known is not None and known.limits == limits and _is_to(known, frame, text):
            to_any: Any = known.message  # all messages to many devices have this field
            return Envelope(replace(to_any, device=device), _stamp(frame.head))
        envelope = self._decode(bytes(frame), limits)
        before, key, rest = frame.head[HEADER_BYTES:].partition(_DEVICE + text)
        if key and key not in rest and not frame.head[_FLAGS_AT]:
            shared = PackedField(frame.middle)
            self.circulated = _Circulated(before + _DEVICE, rest, shared, frame.tail, limits, envelope.message)
        return envelope

    def _decode(self, frame: bytes, limits: Limits) -> Envelope:
        begin = frame.find(_COMMON, HEADER_BYTES, HEADER_BYTES + _FRONT_BYTES) + len(_COMMON)
        end = frame.rfind(_PERSONAL)
        if begin < len(_COMMON) or end - begin < _LEAST_COMMON_BYTES:
            return decode(frame, limits)
        if end - begin != len(self.packed) or not frame.startswith(self.packed, begin):
            envelope = decode(frame, limits)
            if isinstance(envelope.message, Assign) and _is_one_value(frame, begin, end, limits):
                self.packed, self.decoded = frame[begin:end], envelope.message.common
                self.checked_for, self.restored = None, {}
            return envelope
        try:
            return self._around_known(frame, begin, end, limits)
        except Exception:  # noqa: BLE001  # msgpack raises errors of seven families on illegal bytes
            return decode(frame, limits)  # raises the precise error

    def _around_known(self, frame: bytes, begin: int, end: int, limits: Limits) -> Envelope:
        """Decode the fields before and after the common knowledge, which equals that of the last frame."""
        stamp, _ = open_frame(frame, limits)
        plain = body.unpack_short(b"".join((frame[HEADER_BYTES:begin], _EMPTY_MAP, frame[end:])), _fields)
        return Envelope(replace(cast("Assign", _message(plain)), common=self.decoded), stamp)


def _is_to(known: _Circulated, frame: FrameParts, packed_device: bytes) -> bool:
    """Whether a frame brings the known message to another device."""
    shared, head, front = known.shared, frame.head, known.before + packed_device + known.rest
    if len(head) != HEADER_BYTES + len(front) or frame.middle != shared.packed or frame.tail != known.tail:
        return False
    return head == _in_parts(front, shared, known.tail, _stamp(head)).head and len(frame) <= known.limits.frame_bytes


def _is_one_value(frame: bytes, begin: int, end: int, limits: Limits) -> bool:
    """Whether these bytes of a legal frame are one value, and the frame has no signature."""
    try:
        scan(memoryview(frame)[begin:end], limits.tensor_bytes)
    except RemoteProtocolError:
        return False
    return not frame[_FLAGS_AT] & _SIGNED


def open_frame(
    frame: bytes, limits: Limits, verify: Verify | None = None, version: int = VERSION
) -> tuple[Stamp, memoryview]:
    """Check header, checksum and signature of a frame; returns its stamp, and its body without a copy, not decoded.

    Raises RemoteProtocolError if the frame is illegal.
    """
    if len(frame) > limits.frame_bytes:
        raise RemoteProtocolError("limit", f"frame of {len(frame)} bytes, at most {limits.frame_bytes} are legal here")
    _check_layout(frame, version)
    if len(frame) < HEADER_BYTES:
        raise RemoteProtocolError("length", f"frame of {len(frame)} bytes, its header alone has {HEADER_BYTES}")
    _, _, flags, reserved, length, checksum, key_id, boot_epoch, sequence = HEADER.unpack_from(frame)
    if flags & ~_SIGNED or reserved:
        raise RemoteProtocolError("version", "flags or reserved bytes of a later version: upgrade this side")
    start = HEADER_BYTES + (SIGNATURE_BYTES if flags & _SIGNED else 0)
    if len(frame) != start + length:
        raise RemoteProtocolError("length", f"frame of {len(frame)} bytes, its header announces {start + length}")
    header, packed = frame[:HEADER_BYTES], memoryview(frame)[start:]
    if checksum != crc.crc32(packed, crc.crc32(_without_checksum(header))):
        raise RemoteProtocolError("checksum", "checksum does not match: the frame was damaged on its way")
    if verify is not None and not _signature_valid(
        verify, key_id, b"".join((header, packed)), frame[HEADER_BYTES:start]
    ):
        raise RemoteProtocolError("signature", "signature missing or not genuine")
    return Stamp(boot_epoch, sequence, key_id), packed


def _check_layout(frame: bytes, wanted: int) -> None:
    """Check magic and version, the only parts of the header that later versions keep in their place."""
    if not frame.startswith(MAGIC) or len(frame) == len(MAGIC):
        raise RemoteProtocolError("magic", "not an edge-sdk frame")
    version = frame[len(MAGIC)]
    if version == wanted:
        return
    if {version, wanted} == {VERSION, SEALED_VERSION}:
        how = "encrypted, and this side has no key for it" if wanted == VERSION else "not encrypted"
        raise RemoteProtocolError("encryption", f"the frame is {how}")
    older = "this side" if version > VERSION else "the sender"
    raise RemoteProtocolError("version", f"frame version {version}, this side speaks {VERSION}: upgrade {older}")


def _signature_valid(verify: Verify, key_id: bytes, signed: bytes, signature: bytes) -> bool:
    try:
        return bool(signature) and verify(key_id, signed, signature)
    except RemoteProtocolError:
        raise
    except Exception:  # noqa: BLE001  # signature libraries raise errors for illegal signatures
        return False


def _checksum(blank_header: bytes, *pieces: Piece) -> int:
    sum_ = crc.crc32(blank_header)
    for piece in pieces:
        sum_ = crc.crc32(piece.packed if isinstance(piece, PackedField) else piece, sum_)
    return sum_


def _fields(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Make the dict of a map, and check its keys; msgpack's own check differs between its implementations."""
    fields = dict(pairs)
    if fields and set(map(type, fields)) != _TEXT:
        raise RemoteProtocolError("msgpack", "a key of a map is not a text")
    if len(fields) != len(pairs):
        raise RemoteProtocolError("schema", "a map holds the same key twice")
    return fields


def _message(plain: Any) -> Message:
    if type(plain) is not list or len(plain) != 2 or type(plain[0]) is not str:
        raise RemoteProtocolError("schema", "body is not [tag, {fields}]")
    cls = _MESSAGES.get(plain[0])
    if cls is None:
        raise RemoteProtocolError("schema", "unknown message tag: the sender may be newer, upgrade this side")
    return cast("Message", schema.from_plain(cls, plain[1]))

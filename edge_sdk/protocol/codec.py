"""Frames: a fixed header that is checked before anything is decoded, then a msgpack body.

    offset  bytes  field
    0       4      magic "EDGK"
    4       1      version of the frame layout (1)
    5       1      flags; bit 0: a 64-byte signature stands between header and body
    6       2      reserved, zero
    8       4      length of the body in bytes
    12      4      crc32 of everything else in the frame (signature left out)
    16      16     key id; zeros: unsigned
    32      8      boot epoch of the sender
    40      8      sequence number within that epoch
    48      64     signature, if flagged
    ..      ..     body: msgpack [tag, {fields}]

All integers little-endian.  `decode` raises RemoteProtocolError and nothing else, whatever bytes it is given.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, get_args

import msgpack

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol import schema
from edge_sdk.protocol.messages import Message

MAGIC = b"EDGK"
VERSION = 1
HEADER = struct.Struct("<4sBBHII16sQQ")
HEADER_BYTES = HEADER.size
SIGNATURE_BYTES = 64
UNSIGNED = bytes(16)
_SIGNED = 1
_CRC_AT = 12

MAX_DEPTH = 6 + 2
"""Nesting of the body: the deepest legal value is message > knowledge map > [tag, payload] > tensor > shape."""
MAX_ITEMS = 64
"""Entries of any list or map: no message has more fields, roles, terms or hyper-parameters."""
MAX_TEXT_BYTES = 4 * 1024
"""A remedy of 1,024 characters, at most four bytes each."""

Sign = Callable[[bytes], bytes]
Verify = Callable[[bytes, bytes, bytes], bool]
"""(key id, signed bytes, signature) -> genuine?"""

_MESSAGES: dict[str, type] = {schema.tag_of(cls): cls for cls in get_args(Message)}


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a frame and one tensor in it may be; larger ones are refused before they are decoded."""

    frame_bytes: int = 64 * 1024
    tensor_bytes: int = 32 * 1024


CONTROL_LIMITS = Limits()
"""For messages without knowledge: a Welcome with 64 hyper-parameters of 256 characters stays below it."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who sent a frame and when in its own life: key, boot epoch, sequence number."""

    boot_epoch: int = 0
    sequence: int = 0
    key_id: bytes = UNSIGNED


@dataclass(frozen=True, slots=True)
class Envelope:
    """A decoded frame."""

    message: Message
    stamp: Stamp


def encode(message: Message, stamp: Stamp = Stamp(), sign: Sign | None = None) -> bytes:  # frozen value
    """The frame of a message.  Raises LocalProtocolError where the message breaks its own schema."""
    plain = [schema.tag_of(type(message)), schema.to_plain(message)]
    body = cast("bytes", msgpack.packb(plain, use_bin_type=True))
    flags = _SIGNED if sign else 0
    fields = (MAGIC, VERSION, flags, 0, len(body))
    rest = (stamp.key_id, stamp.boot_epoch, stamp.sequence)
    try:
        blank = HEADER.pack(*fields, 0, *rest)
        header = HEADER.pack(*fields, _checksum(blank, body), *rest)
    except struct.error as error:
        raise LocalProtocolError(f"frame header: {error}") from None
    if sign is None:
        return header + body
    signature = sign(header + body)
    if len(signature) != SIGNATURE_BYTES:
        raise LocalProtocolError(f"a signature has {SIGNATURE_BYTES} bytes, this one {len(signature)}")
    return header + signature + body


def decode(frame: bytes, limits: Limits = CONTROL_LIMITS, verify: Verify | None = None) -> Envelope:
    """The message in a frame.  Raises RemoteProtocolError, and nothing else, for anything that is not one."""
    try:
        stamp, body = open_frame(frame, limits, verify)
        plain = _unpack(body, limits)
        return Envelope(_message(plain), stamp)
    except RemoteProtocolError:
        raise
    except Exception as error:  # noqa: BLE001  # the one boundary: msgpack raises seven families of errors
        raise RemoteProtocolError("msgpack", f"{len(frame)} bytes do not decode: {type(error).__name__}") from None


def open_frame(frame: bytes, limits: Limits, verify: Verify | None = None) -> tuple[Stamp, bytes]:
    """Check the header, checksum and signature of a frame; its stamp and its undecoded body."""
    if len(frame) > limits.frame_bytes:
        raise RemoteProtocolError("limit", f"frame of {len(frame)} bytes, at most {limits.frame_bytes} are legal here")
    if len(frame) < HEADER_BYTES:
        raise RemoteProtocolError(
            "length", f"frame of {len(frame)} bytes is shorter than its {HEADER_BYTES}-byte header"
        )
    magic, version, flags, reserved, length, crc, key_id, boot_epoch, sequence = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise RemoteProtocolError("magic", "not an edge-sdk frame")
    if version != VERSION:
        raise RemoteProtocolError(
            "version", f"frame version {version}; this side speaks {VERSION}: upgrade the older side"
        )
    if flags & ~_SIGNED or reserved:
        raise RemoteProtocolError("version", "flags or reserved bytes of a later version")
    start = HEADER_BYTES + (SIGNATURE_BYTES if flags & _SIGNED else 0)
    if len(frame) != start + length:
        raise RemoteProtocolError("length", f"header announces {length} body bytes, {len(frame) - start} came")
    header, body = frame[:HEADER_BYTES], frame[start:]
    if crc != _checksum(header[:_CRC_AT] + bytes(4) + header[_CRC_AT + 4 :], body):
        raise RemoteProtocolError("checksum", "checksum does not match")
    if verify is not None:
        signature = frame[HEADER_BYTES:start]
        if not signature or not verify(key_id, header + body, signature):
            raise RemoteProtocolError("signature", "signature missing or not genuine")
    return Stamp(boot_epoch, sequence, key_id), body


def _checksum(header: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(header))


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise RemoteProtocolError("schema", "a map holds the same key twice")
    return fields


def _unpack(body: bytes, limits: Limits) -> Any:
    plain = msgpack.unpackb(
        body,
        raw=False,
        use_list=True,
        strict_map_key=True,
        object_pairs_hook=_unique,
        max_array_len=MAX_ITEMS,
        max_map_len=MAX_ITEMS,
        max_str_len=MAX_TEXT_BYTES,
        max_bin_len=limits.tensor_bytes,
        max_ext_len=0,
    )
    _check_depth(plain)
    return plain


def _check_depth(plain: Any) -> None:
    """Level by level, so that a deep value cannot exhaust our own stack."""
    level = [plain]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, (list, dict))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise RemoteProtocolError("limit", f"nested deeper than {MAX_DEPTH} levels")


def _message(plain: Any) -> Message:
    if type(plain) is not list or len(plain) != 2 or type(plain[0]) is not str:
        raise RemoteProtocolError("schema", "body is not [tag, {fields}]")
    cls = _MESSAGES.get(plain[0])
    if cls is None:
        raise RemoteProtocolError("schema", "unknown message tag: the sender may be newer, upgrade this side")
    return cast("Message", schema.from_plain(cls, plain[1]))

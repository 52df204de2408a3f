"""What strangers send to the entries of the network: files in corpus/, which are kept for ever, and examples of Hypothesis.

text-*: for entries that read JSON; body-*: for those that read frames; http-*: for those that read requests.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgpack
from hypothesis import strategies as st

from edge_sdk.protocol.frames.codec import HEADER, HEADER_BYTES, MAGIC
from edge_sdk.protocol.frames.crc import crc32

FOLDER = Path(__file__).with_name("corpus")
FIELDS = ("federation", "device", "versions", "sdk", "classes", "samples", "instance", "round", "knowledge", "metrics")
TAGS = ("hello", "upload", "bye", "status", "control", "inquiry", "assign", "welcome", "refusal", "receipt", "answer")


def kept(kind: str) -> dict[str, bytes]:
    """The contents of the kept files of one kind, by name."""
    found = {path.stem: path.read_bytes() for path in sorted(FOLDER.glob(f"{kind}-*.bin"))}
    assert len(found) >= 7
    return found


def frame(body: bytes, sequence: int = 0) -> bytes:
    """A frame with a right length and checksum around any body, so that it reaches the decoder."""
    head = HEADER.pack(MAGIC, 1, 0, 0, len(body), 0, bytes(16), 9, sequence)
    return head[:12] + crc32(body, crc32(head)).to_bytes(4, "little") + head[16:] + body


_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=8), st.binary(max_size=20)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
)


def frames(federation: str, device: str) -> st.SearchStrategy[bytes]:
    """Frames that decode as msgpack, most of them nearly legal, with one field or more that is anything."""

    def built(tag: str, changes: dict[str, Any], sequence: int) -> bytes:
        fields = {"federation": federation, "device": device, "classes": 3, "round": 0, "exchange": 0, **changes}
        return frame(msgpack.packb([tag, fields]), sequence)

    changes = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3)
    return st.one_of(
        st.builds(built, st.sampled_from(TAGS), changes, st.integers(0, 2**64 - 1)),
        st.binary(max_size=80).map(frame),
        st.binary(max_size=HEADER_BYTES + 40),
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, default=lambda found: found.hex()).encode()


TEXTS = st.one_of(
    st.binary(max_size=80),
    VALUES.map(_json),
    st.dictionaries(st.sampled_from(["body", "mac", "fault", "operation", "device"]), VALUES, max_size=3).map(_json),
    st.builds(lambda body: _json({"body": base64.b64encode(body).decode(), "mac": "0" * 64}), st.binary(max_size=40)),
    st.text(st.characters(categories=["Cs", "Cc", "L"]), max_size=20).map(lambda text: _json({"mac": text})),
)
"""Texts that are JSON, nearly JSON, or nothing."""

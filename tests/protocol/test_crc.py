"""Checksums are zlib's own, also those of frames with a part that was packed before."""

from __future__ import annotations

import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_samples import ADDRESS, STAMP

from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.crc import crc32
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import Assign


@given(data=st.binary(), start=st.integers(0, 2**32 - 1))
def test_a_checksum(data: bytes, start: int) -> None:
    assert crc32(data, start) == crc32(memoryview(data), start) == zlib.crc32(data, start)


@pytest.mark.parametrize("count", [1, 20_000, 300_000])
def test_a_frame_with_a_part_that_was_packed_before_is_the_same_frame(count: int) -> None:
    """In three sizes: copied into the body, beside it, and left where it is by the receiver as well."""
    values = np.random.default_rng(0).random(count, dtype=np.float32)
    common: dict[str, Payload] = {"weights": Weights(values=values, layout=bytes(16))}
    personal: dict[str, Payload] = {"own": Weights(values=values[::-1].copy(), layout=bytes(16))}
    without = Assign(**ADDRESS, round=3, exchange=1, deadline_s=2.5, personal=personal)
    whole = Assign(**ADDRESS, round=3, exchange=1, deadline_s=2.5, personal=personal, common=common)
    ready = codec.pack_field(whole, "common")
    assert codec.encode(without, STAMP, packed={"common": ready}) == codec.encode(whole, STAMP)
    limits = codec.Limits(2**24, 2**24)
    assert codec.decode(codec.encode(whole, STAMP), limits).message == whole


def test_without_isal_zlib_counts() -> None:
    code = "import sys, zlib; sys.modules['isal'] = None; from edge_sdk.protocol.frames import crc; assert crc.crc32 is zlib.crc32"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Checksums are zlib's own, whoever counts them, and joined those of the joined bytes."""

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
from edge_sdk.protocol.frames.crc import crc32, crc32_combine
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import Assign


@given(data=st.binary(), start=st.integers(0, 2**32 - 1))
def test_a_checksum(data: bytes, start: int) -> None:
    assert crc32(data, start) == crc32(memoryview(data), start) == zlib.crc32(data, start)


@given(first=st.binary(), second=st.binary(), start=st.integers(0, 2**32 - 1))
def test_the_checksum_of_two_in_a_row(first: bytes, second: bytes, start: int) -> None:
    begun = zlib.crc32(first, start)
    assert crc32_combine(begun, zlib.crc32(second), len(second)) == zlib.crc32(first + second, start)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 340_008, 2**24 + 1])
def test_of_any_length(size: int) -> None:
    second = bytes(size)
    assert crc32_combine(0x12345678, zlib.crc32(second), size) == zlib.crc32(second, 0x12345678)


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

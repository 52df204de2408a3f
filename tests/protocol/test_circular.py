"""A message to many devices, packed once, has the bytes of a message to each."""

import dataclasses

import numpy as np
import pytest

from edge_sdk.errors import LocalProtocolError
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Circular, Stamp
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Assign, Receipt

ASSIGN = Assign(federation="f", device="d-1", round=3, exchange=0, deadline_s=60.0, run=b"12345678")
RECEIPT = Receipt(federation="device", device="device", round=3, exchange=0, verdict="accepted")
IDS = ("a", "device", "device-" + "7" * 29)


@pytest.mark.parametrize("message", [ASSIGN, RECEIPT])
def test_each_device_gets_its_own_frame(message):
    circular = Circular(message)
    for sequence, device in enumerate(IDS):
        stamp = Stamp(2, sequence)
        alone = codec.encode(dataclasses.replace(message, device=device), stamp)
        assert bytes(circular.frame(device, stamp)) == alone


@pytest.mark.parametrize("count", [4, 100_000])
def test_the_common_field_is_shared_and_its_checksum_counts(count):
    weights = Weights(values=np.linspace(0, 1, count, dtype=np.float32), layout=bytes(16))
    whole = dataclasses.replace(ASSIGN, common={"w": weights})
    common = codec.pack_field(whole, "common")
    circular = Circular(ASSIGN, {"common": common})
    for device in IDS:
        frame = circular.frame(device, Stamp())
        assert bytes(frame) == codec.encode(dataclasses.replace(whole, device=device))
        assert len(frame) == len(bytes(frame))
        assert (frame.middle is common.packed) if count > 1000 else isinstance(frame, bytes)
    assert codec.decode(bytes(frame), codec.Limits(2**20, 2**20)).message.device == IDS[-1]


def test_an_illegal_message_is_not_packed():
    with pytest.raises(LocalProtocolError):
        Circular(dataclasses.replace(ASSIGN, round=-1))

"""Long frames that share their middle are the same bytes when they are put together."""

import dataclasses

import numpy as np
import pytest

from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Circular, Stamp
from edge_sdk.protocol.frames.frame_parts import FrameParts
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Assign
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import Hub
from edge_sdk.transport.memory.splicing import LEAST_BYTES, Splicer
from edge_sim.clock.clock import VirtualClock

SIZE = 3 * LEAST_BYTES


def assigns(seed, devices=4, size=SIZE):
    """Assigns of one exchange, whose devices have ids of different length."""
    values = np.random.default_rng(seed).normal(size=size // 4).astype(np.float32)
    one = Assign(federation="f", device="x", round=seed, exchange=0)
    common = codec.pack_field(
        dataclasses.replace(one, common={"w": Weights(values=values, layout=bytes(16))}), "common"
    )
    circular = Circular(one, {"common": common})
    return [bytes(circular.frame("d" * (each + 1), Stamp(1, each))) for each in range(devices)]


def test_frames_of_one_exchange_share_their_middle():
    splicer, frames = Splicer(), assigns(1)
    kept = [splicer.spliced(frame) for frame in frames]
    assert [bytes(each) for each in kept] == frames
    assert [len(each) for each in kept] == [len(frame) for frame in frames]
    spliced = [each for each in kept if isinstance(each, FrameParts)]
    assert len(spliced) == len(frames) - 1  # the first one met nothing like it
    assert len({id(each.middle) for each in spliced}) == 1
    assert len(spliced[0].middle) > SIZE - 4096


@pytest.mark.parametrize("at", [0, 100, SIZE // 2, -100, -1])
def test_frames_that_differ_anywhere_come_back_as_they_were(at):
    splicer, frames = Splicer(), [bytearray(frame) for frame in assigns(2)]
    for number, frame in enumerate(frames):
        frame[at] ^= number
    frames = [bytes(frame) for frame in frames]
    kept = [splicer.spliced(frame) for frame in frames]
    assert [bytes(each) for each in kept] == frames


def test_short_and_unlike_frames_are_kept_as_they_are():
    splicer = Splicer()
    noise = [np.random.default_rng(each).bytes(SIZE + 1000 * each) for each in range(5)]
    for frame in [b"", b"a" * (LEAST_BYTES - 1), *noise]:
        assert splicer.spliced(frame) is frame
    for frames in (assigns(3), assigns(4), assigns(3, size=SIZE + 800)):  # the next exchange brings other bytes
        assert [bytes(splicer.spliced(frame)) for frame in frames] == frames


def test_a_hub_with_a_clock_delivers_the_bytes_that_were_sent():
    clock = VirtualClock()
    hub = Hub(clock)
    sender, receivers = hub.link("coordinator"), [hub.link(f"d{each}") for each in range(4)]
    sender.connect(())
    for number, receiver in enumerate(receivers):
        receiver.connect((f"to/{number}/task",))
    frames = assigns(5)
    for number, frame in enumerate(frames):
        sender.send(f"to/{number}/task", frame)
    while clock.step():
        pass
    for receiver, frame in zip(receivers, frames, strict=True):
        events = [event for event in iter(lambda one=receiver: one.poll(0.0), None) if isinstance(event, Incoming)]
        assert [(type(event.frame), event.frame) for event in events] == [(bytes, frame)]

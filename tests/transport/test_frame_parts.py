"""Frames in parts, which share their middle, arrive as the bytes that they stand for."""

import dataclasses

import numpy as np

from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Circular, Stamp
from edge_sdk.protocol.frames.frame_parts import FrameParts
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import Assign
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import Hub
from edge_sim.clock.clock import VirtualClock

NUMBERS = 12_000


def test_a_hub_with_a_clock_delivers_the_bytes_that_were_sent() -> None:
    values = np.random.default_rng(5).normal(size=NUMBERS).astype(np.float32)
    one = Assign(federation="f", device="x", round=5, exchange=0)
    weights = dataclasses.replace(one, common={"w": Weights(values=values, layout=bytes(16))})
    circular = Circular(one, {"common": codec.pack_field(weights, "common")})
    frames = [circular.frame("d" * (each + 1), Stamp(1, each)) for each in range(4)]
    middles = {id(frame.middle) for frame in frames if isinstance(frame, FrameParts)}
    assert len(middles) == 1
    clock = VirtualClock()
    hub = Hub(clock)
    sender, receivers = hub.link("coordinator"), [hub.link(f"d{each}") for each in range(4)]
    sender.connect(())
    for number, receiver in enumerate(receivers):
        receiver.connect((f"to/{number}/task",))
    for number, frame in enumerate(frames):
        sender.send(f"to/{number}/task", frame)
    while clock.step():
        pass
    for receiver, frame in zip(receivers, frames, strict=True):
        events = [event for event in iter(lambda one=receiver: one.poll(0.0), None) if isinstance(event, Incoming)]
        assert [(type(event.frame), event.frame) for event in events] == [(bytes, bytes(frame))]

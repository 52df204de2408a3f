"""A frame's fate follows from what it is, and from no frame to somebody else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.messages import Assign, Bye, Message, Receipt, Upload
from edge_sdk.transport.memory.fault_draws import NO_EXCHANGE, FaultDraws, exchange_of


def upload(round_: int, exchange: int = 0) -> Upload:
    return Upload(federation="f", device="d" * 36, round=round_, exchange=exchange)


@pytest.mark.parametrize(
    ("message", "place"),
    [
        (upload(3, 1), (3, 1)),
        (Assign(federation="f", device="d", round=70_000, exchange=2), (70_000, 2)),
        (Receipt(federation="f", device="d", round=1, exchange=0, verdict="late"), (1, 0)),
        (Bye(federation="f", device="d", reason="done"), NO_EXCHANGE),
    ],
)
def test_the_place_of_a_message(message: Message, place: tuple[int, int]) -> None:
    assert exchange_of(codec.encode(message, Stamp(7, 9))) == place
    assert exchange_of(codec.encode(message, Stamp(7, 9, bytes(range(16))), sign=lambda _: bytes(64))) == place


@given(st.binary(max_size=100), st.booleans())
def test_a_frame_that_is_none_has_no_place(junk: bytes, front: bool) -> None:
    head = codec.encode(upload(1))[: codec.HEADER_BYTES] if front else b""
    assert len(exchange_of(head + junk)) == 2


def test_what_went_before_changes_nothing_once_a_later_place_is_reached() -> None:
    """As in a run that went on at round 2, after greetings that the whole one never had."""
    whole, resumed = FaultDraws(5), FaultDraws(5)
    for round_ in (1, 1, 1, 2):
        whole.draw("c", "up/d", codec.encode(upload(round_)))
    resumed.draw("c", "hello/d", b"hello")
    resumed.draw("c", "up/d", codec.encode(upload(2), Stamp(2, 1)))
    for round_ in (2, 3, 3, 4):
        drawn = [draws.draw("c", "up/d", codec.encode(upload(round_))) for draws in (whole, resumed)]
        assert drawn[0] == drawn[1]


def test_a_frame_that_is_sent_again_has_another_fate() -> None:
    """Else what is lost once is lost for ever; the same where two places take turns."""
    draws = FaultDraws(0)
    frames = [codec.encode(upload(place)) for place in (1, 2, 1, 2, 1, 1)]
    assert len({draws.draw("c", "t", frame) for frame in frames}) == 6


def test_the_draws_are_spread_evenly_and_apart() -> None:
    draws = FaultDraws(1)
    found = np.array([draws.draw(f"device-{i}", "t", b"") for i in range(4000)])  # (4000, 6)
    assert found.min() >= 0
    assert found.max() < 1
    np.testing.assert_allclose(found.mean(axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose(np.corrcoef(found.T), np.eye(6), atol=0.06)

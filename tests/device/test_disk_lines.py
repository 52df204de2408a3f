"""A disk that stays full is one line of a device, and then one a minute with a count."""

from __future__ import annotations

from edge_sdk.device.participant import Participant
from edge_sdk.errors import StoreError
from edge_sdk.terminal import LineBudget


def test_a_full_disk_is_one_line_and_then_a_count() -> None:
    said: list[str] = []
    device = object.__new__(Participant)
    device._disk_faults, device.device = LineBudget(first=1), "device-1"
    device.on_news = said.append  # type: ignore[method-assign]  # as an app does
    for number in range(401):
        device._now_s = number * 22 / 401
        device._note_disk_fault(StoreError("lab.db: database or disk is full"))
    assert said == ["lab.db: database or disk is full; nothing is learnt until it can be saved"]
    device._now_s = 61.0
    device._note_disk_fault(StoreError("lab.db: database or disk is full"))
    assert said[1].endswith("(and 400 more such lines since the last one)")

"""A disk that stays full is one line of a device, and then one a minute with a count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from edge_sdk.device.context import DeviceContext
from edge_sdk.device.owner import Owner
from edge_sdk.errors import StoreError
from edge_sdk.terminal import LineBudget


def test_a_full_disk_is_one_line_and_then_a_count() -> None:
    said: list[str] = []
    device = object.__new__(DeviceContext)
    device._disk_faults, device.device = LineBudget(first=1), "device-1"
    device.owner = cast("Owner", SimpleNamespace(news=said.append))
    for number in range(401):
        device.now_s = number * 22 / 401
        device.note_disk_fault(StoreError("lab.db: database or disk is full"))
    assert said == ["lab.db: database or disk is full; nothing is learnt until it can be saved"]
    device.now_s = 61.0
    device.note_disk_fault(StoreError("lab.db: database or disk is full"))
    assert said[1].endswith("(and 400 more such lines since the last one)")

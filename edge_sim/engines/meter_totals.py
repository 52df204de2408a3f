"""Sums of meters, for devices whose work is done elsewhere."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from edge_sdk.device.meter import Meter

Spent: TypeAlias = Meter


def add(meter: Meter, spent: Spent) -> None:
    """Add every figure of `spent` to `meter`."""
    for field in dataclasses.fields(meter):
        setattr(meter, field.name, getattr(meter, field.name) + getattr(spent, field.name))


def restore(meter: Meter, before: Meter) -> None:
    """Set every figure of `meter` to that of `before`."""
    for field in dataclasses.fields(meter):
        setattr(meter, field.name, getattr(before, field.name))

"""A device's own meter, where its work is done elsewhere."""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from edge_sdk.device.meter import Meter

Spent: TypeAlias = Meter


def add(meter: Meter, spent: Spent) -> None:
    """Add every figure of one to the other."""
    for field in dataclasses.fields(meter):
        setattr(meter, field.name, getattr(meter, field.name) + getattr(spent, field.name))


def restore(meter: Meter, before: Meter) -> None:
    """Let a meter show what it showed before."""
    for field in dataclasses.fields(meter):
        setattr(meter, field.name, getattr(before, field.name))

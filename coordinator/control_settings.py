"""Checks the control group that [federation] asks for: each mistake gets one line."""

from __future__ import annotations

from typing import Any, Protocol

from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.requests import ReadSplice
from edge_sdk.methods.contract.vocabulary import requests_of


class ControlTable(Protocol):
    """The keys of [federation] that matter for a control group."""

    @property
    def control(self) -> float:
        """The share of the devices."""

    @property
    def devices(self) -> int:
        """The number of devices."""


def check_control(table: ControlTable, where: str) -> None:
    """Raise UsageError for a control group of no device, or of so many that fewer than two are left to federate."""
    if not table.control:
        return
    count = round(table.control * table.devices)
    if count < 1:
        least = 1 / table.devices
        raise UsageError(
            f"{where}.control: {table.control:g} of {table.devices} devices is no device; give at least {least:.2g}"
        )
    if table.devices - count < 2:
        raise UsageError(
            f"{where}.control: {table.control:g} of {table.devices} devices leaves {table.devices - count} to learn "
            "from each other; a control group leaves at least 2"
        )


def unfit_for_control(method: Method[Any]) -> str:
    """Return why a method has no control group, or an empty text."""
    if not method.every_exchange or all(not row.up for row in method.exchanges):
        return f"under {method.name} all devices train alone, so there is nothing to compare"
    if ReadSplice in requests_of(type(method)):
        return f"{method.name} trains a device's two models as one, and a device alone trains the own model by itself"
    if method.releases:
        return f"{method.name} covers by its privacy budget what all devices upload, and not the figures of some alone"
    return ""

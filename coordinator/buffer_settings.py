"""Checks the settings of buffered asynchrony and of a control group in [federation], each mistake in one line."""

from __future__ import annotations

from typing import Any, Protocol

from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.requests import ReadSplice
from edge_sdk.methods.contract.vocabulary import requests_of, why_in_rounds
from edge_sdk.reductions.influence import RobustTable

MAX_STALENESS = 20
"""The default of `max_staleness`."""


class BufferTable(Protocol):
    """The keys of [federation] that buffers and control groups depend on."""

    @property
    def devices(self) -> int:
        """The number of devices."""

    @property
    def participants(self) -> int | None:
        """The number of answers that a round waits for."""

    @property
    def control(self) -> float:
        """The share of the devices that train alone."""

    @property
    def control_rounds(self) -> int:
        """The number of rounds after which other devices train alone."""

    @property
    def buffer(self) -> int | None:
        """The number of answers that fill a buffer."""

    @property
    def busy(self) -> int | None:
        """The number of devices that compute at any time."""

    @property
    def max_staleness(self) -> int | None:
        """The number of versions after which an upload is late."""


def check_buffer(table: BufferTable, where: str) -> None:
    """Raise UsageError, naming `where` and the key, for settings that contradict each other."""
    if table.buffer is None:
        for key in ("busy", "max_staleness"):
            if getattr(table, key) is not None:
                raise UsageError(f"{where}.{key}: has no effect without federation.buffer; set that, or leave it out")
        return
    if table.participants is not None:
        raise UsageError(
            f"{where}.participants: a buffer has no rounds to draw devices for; use busy, the number of devices that "
            "compute at any time"
        )
    oldest = MAX_STALENESS if table.max_staleness is None else table.max_staleness
    if table.control and table.control_rounds < oldest:
        raise UsageError(
            f"{where}.control_rounds: {table.control_rounds} versions; uploads may be {oldest} versions old "
            f"(max_staleness), and would come after two changes of the control group: give at least {oldest}"
        )
    if table.busy is not None and table.busy > table.devices:
        raise UsageError(f"{where}.busy: expected at most the {table.devices} devices, found {table.busy}")
    at_work = table.busy or table.devices
    if table.buffer > at_work:
        raise UsageError(
            f"{where}.buffer: {table.buffer} answers of {at_work} busy devices: a device counts once in a buffer, so "
            f"give at most {at_work}"
        )


def check_buffered_method(method: Method[Any], table: BufferTable, robust: RobustTable, where: str) -> None:
    """Raise UsageError for a method, or a way to combine uploads, that needs rounds."""
    if table.buffer is None:
        return
    why = why_in_rounds(method)
    if why:
        raise UsageError(f"{where}.buffer: {method.name} needs rounds: {why}; leave federation.buffer out")
    if robust.logits != "mean":
        raise UsageError(
            f"{where}.buffer: robust.logits = {robust.logits!r} gives all uploads the same weight, and old ones count "
            "for less; leave one of the two out"
        )


def check_control(table: BufferTable, where: str) -> None:
    """Raise UsageError for an empty control group, or one that leaves fewer than two devices to federate."""
    if not table.control:
        return
    count = round(table.control * table.devices)
    if count < 1:
        least = 1 / table.devices
        raise UsageError(
            f"{where}.control: {table.control:g} of {table.devices} devices is less than one; give at least {least:.2g}"
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
        return f"{method.name} trains a device's two models as one, and a device alone would train only its own model"
    if method.releases:
        return f"{method.name} covers by its privacy budget what all devices upload, and not the figures of some alone"
    return ""

"""The readings that a policy needs from the machine, behind one interface."""

from __future__ import annotations

from typing import Protocol

MOST_W = 10_000.0
"""A sensor or meter that reports more watts is considered broken, and ignored."""


class Sensors(Protocol):
    """The state of the machine.  Methods may be called ten times a second, and return None without a sensor."""

    def charging(self) -> bool | None:
        """Return whether the machine has mains or USB power, or no battery at all."""

    def load(self) -> float | None:
        """Return the share of all cores that other processes use, in [0, 1]."""

    def temperature_c(self) -> float | None:
        """Return the temperature of the hottest thermal zone in degrees Celsius."""

    def throttled(self) -> bool | None:
        """Return whether the board throttles itself because of heat or low voltage."""

    def available_bytes(self) -> int | None:
        """Return the memory that new programs could use."""

    def metered(self) -> bool | None:
        """Return whether the link is paid by volume."""

    def minute_of_day(self) -> int:
        """Return the minutes since midnight, in local time."""

    def energy_j(self) -> float | None:
        """Return a counter of the joules that the machine has drawn; only differences are meaningful."""

    def power_w(self) -> float | None:
        """Return the watts that the machine draws now."""


class FakeSensors:
    """Sensors whose values are set by hand, for tests of apps and of this package."""

    def __init__(self) -> None:
        self.is_charging: bool | None = True
        self.load_share: float | None = 0.0
        self.celsius: float | None = 40.0
        self.is_throttled: bool | None = False
        self.memory_bytes: int | None = 2**32
        self.is_metered: bool | None = False
        self.minute = 12 * 60
        self.joules: float | None = None
        self.watts: float | None = None

    def charging(self) -> bool | None:
        """Return what was set."""
        return self.is_charging

    def load(self) -> float | None:
        """Return what was set."""
        return self.load_share

    def temperature_c(self) -> float | None:
        """Return what was set."""
        return self.celsius

    def throttled(self) -> bool | None:
        """Return what was set."""
        return self.is_throttled

    def available_bytes(self) -> int | None:
        """Return what was set."""
        return self.memory_bytes

    def metered(self) -> bool | None:
        """Return what was set."""
        return self.is_metered

    def minute_of_day(self) -> int:
        """Return what was set."""
        return self.minute

    def energy_j(self) -> float | None:
        """Return what was set."""
        return self.joules

    def power_w(self) -> float | None:
        """Return what was set."""
        return self.watts

"""Checks the temperature of the board, and whether it slows itself down."""

from __future__ import annotations

from edge_sdk.policy.sensors import Sensors
from edge_sdk.tools.doctor.finding import Finding, ok, warn

HOT_C = 75.0
"""A little below the 80 degrees at which a Raspberry Pi begins to slow down."""
_COOLER = (
    "cool it with a heat sink or a fan, or let it train only while it is cooler: max_temperature_c = 70 in a file for "
    "`edge-sdk device --policy`"
)


def judge_heat(temperature_c: float | None, throttled: bool | None) -> Finding:
    """Judge the temperature of the hottest zone in degrees Celsius; None: there is no sensor."""
    shown = "no sensor" if temperature_c is None else f"{temperature_c:.0f} degrees"
    if throttled:
        return warn(
            f"{shown}; the board slows itself down now, because of heat or low voltage",
            f"vcgencmd get_throttled; bit 0 is low voltage: use the board's own power supply; else {_COOLER}",
        )
    if temperature_c is not None and temperature_c >= HOT_C:
        return warn(f"{shown}: hot", _COOLER)
    return ok(shown)


def check_heat(sensors: Sensors) -> Finding:
    """Read the sensors of this machine and judge them."""
    return judge_heat(sensors.temperature_c(), sensors.throttled())

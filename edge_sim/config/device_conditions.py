"""The conditions under which a simulated device works.  They are keys of its [[fleet]] row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.schema import Real, Text
from edge_sim import byzantine
from edge_sim.config.availability import read_window

_Chance = Annotated[float, Real(0.0, 1.0)]
_Duration = Annotated[float, Real(0.0, 1e8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConditions:
    """The conditions of one device.  The federation's seed and the device's number determine the random ones."""

    available: Annotated[str, Text(11)] | None = None
    """Hours of every virtual day in which the device is on, as HH:MM-HH:MM; default: always."""
    battery_wh: Annotated[float, Real(0.0, 1e6)] | None = None
    """Capacity of the battery; the device switches off when it is empty; 0 means mains power; default: the board's
    value."""
    charge_w: Annotated[float, Real(0.0, 1e6)] = 0.0
    """Power that charges the battery while the device is off; a device that ran empty restarts once it is full."""
    dropout: _Chance = 0.0
    """Probability that the device loses power while it computes an exchange."""
    dropout_s: _Duration = 600.0
    """Time for which the device stays off after a dropout."""
    power_cuts_per_day: Annotated[float, Real(0.0, 1e5)] = 0.0
    """Average number of power cuts in a virtual day; they come at random times."""
    power_cut_s: _Duration = 60.0
    """Time for which the device stays off after a power cut."""
    fails_after_s: Annotated[float, Real(0.001, 1e10)] | None = None
    """Mean virtual time to permanent failure, at a random time; default: never."""
    slow_share: _Chance = 0.0
    """Share of the exchanges in which the device computes slowly, as a straggler."""
    slow_factor: Annotated[float, Real(1.0, 1e4)] = 5.0
    """Factor by which the computing time of a slow exchange is multiplied."""
    clock_offset_s: Annotated[float, Real(-1e9, 1e9)] = 0.0
    """Error of the device's clock at virtual time 0."""
    clock_drift: Annotated[float, Real(-0.5, 1.0)] = 0.0
    """Drift of the device's clock: seconds gained per second."""
    byzantine: Annotated[str, Text(200)] | None = None
    """MODULE:FUNCTION that replaces the knowledge in the device's uploads (edge_sim/byzantine.py)."""

    def check(self, where: str) -> None:
        """Raise UsageError, naming `where` and the key, for wrong values that the types of the fields allow."""
        if self.available is not None:
            read_window(self.available, f"{where}.available")
        if self.byzantine is not None:
            try:
                byzantine.load_tamper(self.byzantine)
            except UsageError as error:
                raise UsageError(f"{where}.byzantine: {error}") from None


IDEAL_CONDITIONS = DeviceConditions()
"""Conditions of a device that is always on, has its board's power supply and is never slow."""

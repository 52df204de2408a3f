"""The conditions that a simulated device works under: keys of a [[fleet]] row beside those that say what it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edge_sdk.errors import UsageError
from edge_sdk.protocol.schema import Real, Text
from edge_sim import byzantine
from edge_sim.config.availability import read_window

_Chance = Annotated[float, Real(0.0, 1.0)]
_Duration = Annotated[float, Real(0.0, 1e8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConditions:
    """The conditions of one device.  Random ones follow from the federation's seed and the device's number."""

    available: Annotated[str, Text(11)] | None = None
    """The hours of every virtual day in which it is on, as HH:MM-HH:MM; default: always."""
    battery_wh: Annotated[float, Real(0.0, 1e6)] | None = None
    """Capacity of its battery; it goes off when the battery is empty; 0: on the mains; default: the board's own."""
    charge_w: Annotated[float, Real(0.0, 1e6)] = 0.0
    """Power that charges the battery while the device is off; after an empty battery it starts again at a full one."""
    dropout: _Chance = 0.0
    """Chance that it loses power while it computes an exchange."""
    dropout_s: _Duration = 600.0
    """How long it stays off then."""
    power_cuts_per_day: Annotated[float, Real(0.0, 1e5)] = 0.0
    """Average number of power cuts, at random times."""
    power_cut_s: _Duration = 60.0
    """How long it stays off then."""
    fails_after_s: Annotated[float, Real(0.001, 1e10)] | None = None
    """It fails for good at a random time, after this many virtual seconds on average; default: never."""
    slow_share: _Chance = 0.0
    """Share of the exchanges in which it computes slowly, as a straggler."""
    slow_factor: Annotated[float, Real(1.0, 1e4)] = 5.0
    """By what its computing time is multiplied then."""
    clock_offset_s: Annotated[float, Real(-1e9, 1e9)] = 0.0
    """Error of its clock at virtual time 0."""
    clock_drift: Annotated[float, Real(-0.5, 1.0)] = 0.0
    """What its clock gains, as a share of the time that passes."""
    byzantine: Annotated[str, Text(200)] | None = None
    """MODULE:FUNCTION that replaces the knowledge in its uploads (edge_sim/byzantine.py)."""

    def check(self, where: str) -> None:
        """Raise UsageError, naming `where` and the key, for values that their types allow and that are wrong."""
        if self.available is not None:
            read_window(self.available, f"{where}.available")
        if self.byzantine is not None:
            try:
                byzantine.load_tamper(self.byzantine)
            except UsageError as error:
                raise UsageError(f"{where}.byzantine: {error}") from None


IDEAL_CONDITIONS = DeviceConditions()
"""Always on, on its board's power, never slow."""

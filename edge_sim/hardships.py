"""What simulated devices have to put up with: the keys of a [[fleet]] row beside those of what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edge_sdk.errors import UsageError
from edge_sdk.protocol.schema import Real, Text
from edge_sim import byzantine
from edge_sim.availability import read_window

Share = Annotated[float, Real(0.0, 1.0)]
Seconds = Annotated[float, Real(0.0, 1e8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardships:
    """Of one device; what is random in it follows from the federation's seed and the device's number."""

    available: Annotated[str, Text(11)] | None = None
    """When it is switched on, every virtual day, as HH:MM-HH:MM; default: always."""
    battery_wh: Annotated[float, Real(0.0, 1e6)] | None = None
    """It is off once that is used up; 0: on the mains; default: the board's own."""
    charge_w: Annotated[float, Real(0.0, 1e6)] = 0.0
    """What charges the battery while it is off; an empty one starts again when it is full."""
    dropout: Share = 0.0
    """Chance that it loses its power in the midst of an exchange."""
    dropout_s: Seconds = 600.0
    """For how long."""
    power_cuts_per_day: Annotated[float, Real(0.0, 1e5)] = 0.0
    """At any time, on average."""
    power_cut_s: Seconds = 60.0
    """For how long."""
    fails_after_s: Annotated[float, Real(0.001, 1e10)] | None = None
    """It breaks at a random time, after so many virtual seconds on average, for good."""
    slow_share: Share = 0.0
    """Share of the exchanges in which it is slow: a straggler."""
    slow_factor: Annotated[float, Real(1.0, 1e4)] = 5.0
    """How many times as long its computing takes then."""
    clock_offset_s: Annotated[float, Real(-1e9, 1e9)] = 0.0
    """What its clock is wrong by."""
    clock_drift: Annotated[float, Real(-0.5, 1.0)] = 0.0
    """What its clock gains, as a share of the time that passes."""
    byzantine: Annotated[str, Text(200)] | None = None
    """MODULE:FUNCTION that replaces the knowledge in its uploads (edge_sim/byzantine.py)."""

    def check(self, where: str) -> None:
        """Raise UsageError, naming `where` and the key, for what no type can tell."""
        if self.available is not None:
            read_window(self.available, f"{where}.available")
        if self.byzantine is not None:
            try:
                byzantine.load(self.byzantine)
            except UsageError as error:
                raise UsageError(f"{where}.byzantine: {error}") from None


NONE = Hardships()

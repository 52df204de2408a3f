"""Joules that the board draws while it trains: measured by a meter or a sensor, or from its profile."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from edge_sdk.errors import UsageError
from edge_sdk.policy.sensors import MOST_W, Sensors
from edge_sdk.protocol.records import record

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PowerMeter:
    """An external meter, as a function of the app's: of watts now, or of a counter of joules.

    It is called in the training thread, some ten times a second, and should return at once.
    """

    watts: Callable[[], float] | None = None
    joules: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        if (self.watts is None) == (self.joules is None):
            raise UsageError("PowerMeter: give one of watts=, a function of the watts now, and joules=, of a counter")


@record
class TrainingCost:
    """What training has cost."""

    busy_s: float = 0.0
    """Seconds of training."""
    energy_j: float = 0.0
    """Joules that the whole board drew in these seconds."""
    joules_source: str = ""
    """`measured`, `profile`, or empty where the joules are not known."""
    temperature_c: float | None = None
    """The temperature at its end, in degrees Celsius."""


class EnergyCounter:
    """Adds up the joules of the time in which the device trains.

    The first of these that works is taken: the app's meter, a counter of the machine (RAPL), a sensor of its power
    (INA), and the power under load that the board's profile states.
    """

    def __init__(
        self,
        sensors: Sensors,
        meter: PowerMeter | None = None,
        profile_w: Callable[[], float] = lambda: 0.0,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        """profile_w: returns the watts of the busy board by its profile; called only where nothing measures them."""
        self._sensors, self._meter, self._profile_w, self._warn = sensors, meter, profile_w, warn
        self._last: tuple[float, float | None, float | None] = (0.0, None, None)
        """At the last call: the time (s), the counter (J) and the power (W)."""
        self.joules, self.measured = 0.0, True
        """The joules so far, and whether all of them were measured."""

    def begin(self, now_s: float) -> None:
        """Note that training begins or goes on."""
        self._last = (now_s, *self._read())

    def advance(self, now_s: float) -> None:
        """Add the joules since the last call, in which the device trained."""
        before_s, joules_before, watts_before = self._last
        self._last = now_s, joules, watts = (now_s, *self._read())
        elapsed_s = now_s - before_s
        if elapsed_s <= 0.0:
            return
        if joules is not None and joules_before is not None:
            found_j = joules - joules_before
        elif watts is not None and watts_before is not None:
            found_j = 0.5 * (watts + watts_before) * elapsed_s
        else:
            self.measured = False
            self.joules += self._profile_w() * elapsed_s
            return
        if 0.0 <= found_j <= MOST_W * elapsed_s:
            self.joules += found_j
        else:
            self._distrust(f"the meter counted {found_j:g} J in {elapsed_s:g} s")

    @property
    def source(self) -> str:
        """Where the joules are from."""
        if self.joules and self.measured:
            return "measured"
        return "profile" if self.joules else ""

    def _read(self) -> tuple[float | None, float | None]:
        """Return a counter of joules, or the watts now; at most one of them."""
        if self._meter is not None:
            found = self._called(self._meter)
            if found is not None:
                return (found, None) if self._meter.joules is not None else (None, found)
        try:
            joules = self._sensors.energy_j()
            return (joules, None) if joules is not None else (None, self._sensors.power_w())
        except Exception:  # noqa: BLE001  # sensors of the app's own must not end the training
            return None, None

    def _called(self, meter: PowerMeter) -> float | None:
        read = meter.joules or meter.watts
        try:
            found = float(read()) if read is not None else math.nan
        except Exception as error:  # noqa: BLE001  # the app's own function, which must not end the training
            self._distrust(f"the meter failed with {type(error).__name__}: {error}")
            return None
        if math.isfinite(found) and (meter.watts is None or 0.0 <= found <= MOST_W):
            return found
        self._distrust(f"the meter returned {found:g}")
        return None

    def _distrust(self, what: str) -> None:
        """Give up the app's meter; where it was none, only this reading is left out."""
        if self._meter is not None:
            self._warn(f"{what}; it is not asked again")
        self._meter, self.measured = None, False

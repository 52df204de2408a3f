"""Counts the joules that the board draws during training, by a meter or a sensor, or from its profile."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from edge_sdk.errors import UsageError
from edge_sdk.policy.sensors import MOST_W, Sensors
from edge_sdk.protocol.frames.records import record

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PowerMeter:
    """An external meter: a function of the app that returns the current watts, or a counter of joules.

    It is called in the training thread, about ten times a second, and should return at once.
    """

    watts: Callable[[], float] | None = None
    joules: Callable[[], float] | None = None

    def __post_init__(self) -> None:
        if (self.watts is None) == (self.joules is None):
            raise UsageError("PowerMeter: give either watts=, a function of the current watts, or joules=, a counter")


@record
class TrainingCost:
    """The cost of training."""

    busy_s: float = 0.0
    """Seconds of training."""
    energy_j: float = 0.0
    """Joules that the whole board drew in these seconds."""
    joules_source: str = ""
    """`measured`, `profile`, or empty if the joules are unknown."""
    temperature_c: float | None = None
    """The temperature at the end of training, in degrees Celsius."""


class EnergyCounter:
    """Adds up the joules during training.

    It uses the first of these that works: the app's meter, the machine's energy counter (RAPL), its power sensor (INA),
    and the power under load from the board's profile.
    """

    def __init__(
        self,
        sensors: Sensors,
        meter: PowerMeter | None = None,
        profile_w: Callable[[], float] = lambda: 0.0,
        warn: Callable[[str], None] = log.warning,
    ) -> None:
        """profile_w: returns the watts of the busy board from its profile; called only if nothing measures them."""
        self._sensors, self._meter, self._profile_w, self._warn = sensors, meter, profile_w, warn
        self._last: tuple[float, float | None, float | None] = (0.0, None, None)
        """The time (s), the counter (J) and the power (W) at the last call."""
        self.joules, self.measured = 0.0, True
        """The joules so far, and whether all of them were measured."""

    def begin(self, now_s: float) -> None:
        """Note that training begins or resumes."""
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
        """The source of the joules."""
        if self.joules and self.measured:
            return "measured"
        return "profile" if self.joules else ""

    def _read(self) -> tuple[float | None, float | None]:
        """Return a counter of joules, or the current watts; at most one of them."""
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
        """Stop using the app's meter; for a sensor of the machine, skip only this reading."""
        if self._meter is not None:
            self._warn(f"{what}; it is no longer used")
        self._meter, self.measured = None, False

"""The conditions and budgets under which a device trains, and the check of the conditions against the sensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from edge_sdk import toml
from edge_sdk.errors import LocalProtocolError, UsageError
from edge_sdk.policy.sensors import Sensors
from edge_sdk.protocol.frames.leaves import ABOVE_0
from edge_sdk.protocol.frames.schema import Integer, Real, Text, to_plain
from edge_sdk.protocol.toml_table import read_table

_SPAN = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\s*-\s*(?:([01]?\d|2[0-3]):([0-5]\d)|(24):(00))")
_HOUR_MINUTES = 60


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When a device trains; every setting is optional.

    After a condition fails, training pauses before the next batch, and resumes from there when all conditions hold
    again.  A condition whose sensor this machine lacks is ignored, with one warning.  Raises UsageError.
    """

    charging: bool = False
    """Train only on mains or USB power; a board without a battery may always train."""
    idle_below: Annotated[float, Real(ABOVE_0, 1.0)] | None = None
    """Train only while other processes use less than this share of all cores, in (0, 1]."""
    hours: Annotated[str, Text(256)] = ""
    """Train only within these hours of local time, such as "22:00-06:00" or "12:00-13:00, 22:00-06:00"."""
    max_temperature_c: Annotated[float, Real(0.0, 120.0)] | None = None
    """Train only while the hottest thermal zone is at most this hot, in degrees Celsius."""
    unthrottled: bool = False
    """Train only while the board does not slow itself down because of heat or low voltage (Raspberry Pi)."""
    min_memory_mib: Annotated[float, Real(ABOVE_0, 2.0**24)] | None = None
    """Train only while at least this much memory is available to new programs, in MiB."""
    unmetered: bool = False
    """Train only on a link that is not paid by volume."""
    threads: Annotated[int, Integer(1, 1024)] | None = None
    """Number of threads for torch and OpenBLAS.  Models in ONNX Runtime always use one."""
    nice: Annotated[int, Integer(0, 19)] = 0
    """Niceness of the training thread: 19 gives way to everything else."""
    round_time_s: Annotated[float, Real(ABOVE_0, 1e9)] | None = None
    """Seconds of training that one round may take."""
    round_energy_j: Annotated[float, Real(ABOVE_0, 1e12)] | None = None
    """Joules that the board may draw while it trains in one round."""

    def __post_init__(self) -> None:
        try:
            to_plain(self)
            self.minutes()
        except LocalProtocolError as error:
            raise UsageError(str(error).replace("Policy.", "policy: ", 1)) from None

    def minutes(self) -> tuple[tuple[int, int], ...]:
        """Return the spans of `hours` as minutes of the day: (first, end); a span over midnight ends before it begins.

        Raises UsageError.
        """
        found = []
        for text in self.hours.split(",") if self.hours else ():
            span = _SPAN.fullmatch(text.strip())
            numbers = [int(each) for each in span.groups() if each is not None] if span else [0, 0, 0, 0]
            first, end = (_HOUR_MINUTES * hour + minute for hour, minute in (numbers[:2], numbers[2:]))
            if first == end:
                raise UsageError(f"policy: hours: expected spans such as 22:00-06:00, found {self.hours!r}")
            found.append((first, end))
        return tuple(found)


def load_policy(path: Path) -> Policy:
    """Read a TOML file whose keys are the fields of Policy.  Raises UsageError, in one line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"--policy {path}: cannot be read ({why})") from None
    try:
        return read_table(Policy, toml.loads(text, str(path)), f"{path}: ")
    except UsageError as error:
        line = str(error)  # an error of Policy itself does not name the file
        raise UsageError(f"{path}: {line.removeprefix('policy: ')}" if line.startswith("policy: ") else line) from None


COOLER_C = 3.0
"""Training resumes this many degrees below the limit, so that it does not flicker around the limit."""
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a device does not train."""

    reason: str
    """The word under which the coordinator counts it."""
    text: str
    """The reason for people, in one line."""
    round: int | None = None
    """The only round for which it holds, counted from 0, or None if it holds until withdrawn."""


class Unknown:
    """The machine lacks the sensor of a condition."""


UNKNOWN = Unknown()
Verdict: TypeAlias = Objection | Unknown | None
"""None if the condition holds, or the policy does not set it."""


def _charging(policy: Policy, sensors: Sensors, _resuming: bool) -> Verdict:
    if not policy.charging:
        return None
    found = sensors.charging()
    return UNKNOWN if found is None else None if found else Objection("charging", "on battery power")


def _idle(policy: Policy, sensors: Sensors, _resuming: bool) -> Verdict:
    if policy.idle_below is None:
        return None
    share = sensors.load()
    if share is None:
        return UNKNOWN
    if share < policy.idle_below:
        return None
    return Objection("load", f"other programs use {share:.0%} of the processor, the limit is {policy.idle_below:.0%}")


def _hours(policy: Policy, sensors: Sensors, _resuming: bool) -> Verdict:
    spans = policy.minutes()
    if not spans:
        return None
    minute = sensors.minute_of_day()
    if any(begin <= minute < end if begin < end else minute >= begin or minute < end for begin, end in spans):
        return None
    return Objection("hours", f"{minute // 60:02}:{minute % 60:02} is outside the hours {policy.hours}")


def _temperature(policy: Policy, sensors: Sensors, resuming: bool) -> Verdict:
    limit_c = policy.max_temperature_c
    if limit_c is None:
        return None
    found_c = sensors.temperature_c()
    if found_c is None:
        return UNKNOWN
    if found_c <= limit_c - (COOLER_C if resuming else 0.0):
        return None
    compared = "above" if found_c > limit_c else f"not yet {COOLER_C:g} C below"
    return Objection("temperature", f"temperature {found_c:.0f} C {compared} {limit_c:g} C")


def _throttled(policy: Policy, sensors: Sensors, _resuming: bool) -> Verdict:
    if not policy.unthrottled:
        return None
    found = sensors.throttled()
    return UNKNOWN if found is None else Objection("throttled", "the board slows itself down") if found else None


def _memory(policy: Policy, sensors: Sensors, _resuming: bool) -> Verdict:
    if policy.min_memory_mib is None:
        return None
    found = sensors.available_bytes()
    if found is None:
        return UNKNOWN
    if found >= policy.min_memory_mib * _MIB:
        return None
    return Objection("memory", f"{found / _MIB:.0f} MiB of memory left, below {policy.min_memory_mib:g} MiB")


def _metered(policy: Policy, sensors: Sensors, _resuming: bool) -> Verdict:
    if not policy.unmetered:
        return None
    found = sensors.metered()
    return UNKNOWN if found is None else Objection("metered", "the link is paid by volume") if found else None


CONDITIONS: Mapping[str, Callable[[Policy, Sensors, bool], Verdict]] = {
    "charging": _charging,
    "hours": _hours,
    "unmetered": _metered,
    "max_temperature_c": _temperature,
    "unthrottled": _throttled,
    "min_memory_mib": _memory,
    "idle_below": _idle,
}
"""The check of each setting, in order; the first objection counts.  resuming: whether training is paused now."""

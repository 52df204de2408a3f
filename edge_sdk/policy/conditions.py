"""Checks the conditions of a policy against the sensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from edge_sdk.policy.policy import Policy
from edge_sdk.policy.sensors import Sensors

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

"""The types of checks and findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles


class Level(str, Enum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    """It works, but could be better."""
    FAIL = "fail"
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of a check, and its remedy, which is empty if all is well."""

    level: Level
    found: str
    remedy: str = ""


def ok(found: str) -> Finding:
    """Return a finding without a fault."""
    return Finding(Level.OK, found)


def warn(found: str, remedy: str) -> Finding:
    """Return a finding about something that works, but could be better."""
    return Finding(Level.WARN, found, remedy)


def fail(found: str, remedy: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(Level.FAIL, found, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTarget:
    """The other objects of the checks: a state folder, and a broker if one is named."""

    state: Path
    broker: str | None = None
    """The broker's address."""
    tls: TlsFiles = NO_FILES
    name: str = "doctor"
    """An unused federation id; the self-test of the broker uses topics under fl/v1/NAME."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check, which is one line of the report."""

    name: str
    run: Callable[[CheckTarget], Finding]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check and what it found."""

    name: str
    finding: Finding


def run_checks(checks: tuple[Check, ...], target: CheckTarget) -> tuple[CheckResult, ...]:
    """Run all checks; an exception in a check becomes a finding."""
    return tuple(CheckResult(check.name, _run(check, target)) for check in checks)


def _run(check: Check, target: CheckTarget) -> Finding:
    try:
        return check.run(target)
    except Exception as error:  # noqa: BLE001  # the other checks must run, whatever is wrong with this machine
        return fail(
            f"the check itself failed: {type(error).__name__}: {error}", "please report this with the line above"
        )

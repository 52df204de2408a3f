"""What a check says, and what it is asked about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles


class Level(str, Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, and could be better."""
    FAIL = "fail"
    """It will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, and what to do about it; where all is well, nothing is to be done."""

    level: Level
    found: str
    remedy: str = ""


def ok(found: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, found)


def warn(found: str, remedy: str) -> Finding:
    """It works, and could be better."""
    return Finding(Level.WARN, found, remedy)


def fail(found: str, remedy: str) -> Finding:
    """It will not work."""
    return Finding(Level.FAIL, found, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTarget:
    """What is examined: this machine, a state folder, and a broker where one is named."""

    state: Path
    broker: str | None = None
    tls: TlsFiles = NO_FILES
    name: str = "doctor"
    """A federation id that nobody else uses: the broker's self-test stays under fl/v1/NAME."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    run: Callable[[CheckTarget], Finding]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check and what it found."""

    name: str
    finding: Finding


def examine(checks: tuple[Check, ...], patient: CheckTarget) -> tuple[CheckResult, ...]:
    """Run every check; one that breaks is a finding, too."""
    return tuple(CheckResult(check.name, _run(check, patient)) for check in checks)


def _run(check: Check, patient: CheckTarget) -> Finding:
    try:
        return check.run(patient)
    except Exception as error:  # noqa: BLE001  # whatever is wrong with this machine, the other checks go on
        return fail(
            f"the check itself broke: {type(error).__name__}: {error}", "please report this with the line above"
        )

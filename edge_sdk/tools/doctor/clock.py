"""Checks the clock: whether it is synchronised, and whether the year is possible."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from edge_sdk.tools.doctor.finding import Finding, ok, warn

SANE_YEAR = 2025
SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")
"""A file that systemd's own time service makes once the clock is right."""
_NEEDS = "certificates and the hours of a policy go by it; nothing else does"


def judge_clock(year: int, synchronized: bool | None) -> Finding:
    """Judge the clock.  synchronized: None: it is not known."""
    if year < SANE_YEAR:
        return warn(f"the year is {year}; {_NEEDS}", "sudo timedatectl set-ntp true, or wait for the network at boot")
    if synchronized is False:
        return warn(
            f"not synchronised; {_NEEDS}",
            "sudo timedatectl set-ntp true; where there is no time service: sudo apt install systemd-timesyncd",
        )
    return ok(f"synchronised, {year}" if synchronized else f"{year}; whether it is synchronised is not known; {_NEEDS}")


def is_synchronized(file: Path = SYNCHRONIZED) -> bool | None:
    """Return whether the clock is kept right over the network; None: this system does not say."""
    if file.exists():
        return True
    program = shutil.which("timedatectl")
    if program is None:
        return None
    try:
        told = subprocess.run(  # noqa: S603  # found on PATH
            [program, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            check=False,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"yes": True, "no": False}.get(told.stdout.strip())

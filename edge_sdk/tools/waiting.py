"""The option --timeout: how long a command waits for an answer."""

from __future__ import annotations

from edge_sdk.errors import UsageError

LONGEST_S = 3600


def checked_timeout_s(seconds: float) -> float:
    """Return the value of --timeout.  Raises UsageError unless it is above 0, and below an hour."""
    if not 0 < seconds < LONGEST_S:
        raise UsageError(f"--timeout {seconds:g}: expected seconds above 0, and below {LONGEST_S}")
    return seconds

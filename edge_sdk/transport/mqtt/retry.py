"""What to do after an MQTT connection ended: report, pause, and in which version of the protocol to try again."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from edge_sdk.transport.base import Disconnected
from edge_sdk.transport.mqtt.hidden_limits import HiddenLimits, SentPacket
from edge_sdk.transport.mqtt.reasons import DisconnectReason

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_SLOW_S = (30.0, 60.0)
_STABLE_S = 2.0
_SILENT_CLOSES = 2


@dataclass(frozen=True, slots=True)
class ConnectionResult:
    """How one connection went."""

    ending: DisconnectReason
    accepted: bool = False
    """The broker said yes to CONNECT."""
    silent: bool = False
    """It closed the connection without any answer to CONNECT."""
    version_refused: bool = False
    """It said that it does not speak this version, or waited for more when it had all."""
    stood_s: float = 0.0
    """How long the link was of use, in seconds; 0 where it never was."""
    oldest: SentPacket | None = None
    """The oldest message that the broker left unacknowledged."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """What to tell the layer above, and how long to pause before the next attempt; None: no more attempts."""

    report: Disconnected | None
    pause_s: float | None


class Retry:
    """The memory that spans one transport's connections."""

    def __init__(
        self, seed: int, suspect: HiddenLimits, shrink: Callable[[int], bool] = lambda _size_bytes: False
    ) -> None:
        self.version_5 = True
        self._version_proven = False
        self._silent_closes = 0
        self._failures = 0
        self._told: DisconnectReason | None = None
        self._suspect = suspect
        self._shrink = shrink
        self._random = random.Random(seed)  # noqa: S311  spreads reconnects; not a secret

    def after(self, outcome: ConnectionResult) -> RetryDecision:
        """Judge one connection; the same reason is reported once until a link has stood in between."""
        if self._falls_back(outcome):
            return RetryDecision(None, 0.0)
        ending = outcome.ending
        if outcome.stood_s:
            self._told = None
            ending = self._with_poison(ending, outcome.oldest)
        report = None if ending == self._told else Disconnected(ending.reason, ending.final)
        self._told = ending
        return RetryDecision(report, None if ending.final else self._pause_s(outcome))

    def _pause_s(self, outcome: ConnectionResult) -> float:
        """Full jitter: from nothing to a bound that doubles from 0.2 s to 30 s; a slow ending waits longer."""
        if outcome.ending.slow:
            return self._random.uniform(*_SLOW_S)
        self._failures = 0 if outcome.stood_s >= _STABLE_S else min(self._failures + 1, 16)
        return self._random.uniform(0.0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**self._failures))

    def _falls_back(self, outcome: ConnectionResult) -> bool:
        """Change the version where the broker does not take it, until one was accepted; True: try again at once."""
        self._version_proven = self._version_proven or outcome.accepted
        if self._version_proven:
            return False
        if outcome.version_refused and self.version_5:
            self.version_5 = False
            return True
        self._silent_closes = self._silent_closes + 1 if outcome.silent else 0
        if self._silent_closes == _SILENT_CLOSES:
            self._silent_closes = 0
            self.version_5 = not self.version_5
        return False

    def _with_poison(self, ending: DisconnectReason, oldest: SentPacket | None) -> DisconnectReason:
        if not self._suspect.hung_up(oldest) or oldest is None:
            return ending
        if self._shrink(oldest.size_bytes):
            self._suspect.cleared()
            return DisconnectReason(
                f"{ending.reason}, again while taking {oldest.size_bytes} bytes: smaller chunks from now on"
            )
        text = f"{ending.reason}, again while taking {oldest.size_bytes} bytes for {oldest.topic}: not sent next time"
        _log.warning("%s", text)
        return DisconnectReason(text, ending.final)

"""Decides after an MQTT connection has ended on the report, the pause, and the MQTT version to try next."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from edge_sdk.transport.base import Disconnected
from edge_sdk.transport.mqtt.hidden_limits import HiddenLimits, SentPacket
from edge_sdk.transport.mqtt.reasons import DisconnectReason, closed_soon_again

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 30.0
_SLOW_PAUSE_S = (30.0, 60.0)
"""Range of the pause after a fault that takes time to repair."""
_TAKEN_OVER_PAUSE_S = (5.0, 10.0)
"""Range of the pause after another client has taken the id, which gives that one time to detect the conflict."""
_MOST_TAKE_OVERS = 4
"""Take-overs after which this client gives up, so that two clients with one id do not fight permanently."""
_UNDISPUTED_S = 600.0
"""A connection that lasted this long resets the count of take-overs, and its own end does not count.  So of two clients
with one id the newer one gives up first."""
_SOON_S = 20.0
"""A connection that was usable for less than this, and ended without a reason, may have been taken over."""
_SOON_CLOSED = 3
"""This many of them in a row count as a take-over, because the broker keeps answering."""
_STABLE_S = 2.0
"""A connection that was usable for this long resets the length of the pauses."""
_SILENT_CLOSES = 2
"""Connections in a row that the broker closed without an answer, after which the other MQTT version is tried."""


@dataclass(frozen=True, slots=True)
class ConnectionResult:
    """The outcome of one connection."""

    ending: DisconnectReason
    accepted: bool = False
    """The broker accepted CONNECT."""
    closed_without_answer: bool = False
    """The broker closed the connection without any answer to CONNECT."""
    version_refused: bool = False
    """The broker does not speak this version of MQTT: it refused the version, or never answered CONNECT."""
    ready_s: float = 0.0
    """Seconds for which frames could be sent; 0 if they never could."""
    oldest_unacknowledged: SentPacket | None = None
    """The oldest message that the broker had not acknowledged at the end."""


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The next step after a connection."""

    report: Disconnected | None
    """The event for the layer above, or None without news."""
    pause_s: float | None
    """Seconds before the next attempt, or None to give up."""


class Retry:
    """Decides after each connection of one transport; remembers the failures so far."""

    def __init__(
        self,
        seed: int,
        hidden_limits: HiddenLimits,
        shrink_chunks: Callable[[int], bool] = lambda _size_bytes: False,
        *,
        client_id: str = "",
    ) -> None:
        """shrink_chunks: makes chunks smaller than a size in bytes, and returns whether it could."""
        self._client_id = client_id
        self.version_5 = True
        self._version_proven = False
        self._silent_closes = 0
        self._failures = 0
        self._take_overs = 0
        self._soon_closed = 0
        self._last_reported: DisconnectReason | None = None
        self._hidden_limits = hidden_limits
        self._shrink_chunks = shrink_chunks
        self._random = random.Random(seed)  # noqa: S311  spreads reconnects; not a secret

    def forget(self) -> None:
        """Forget the failures so far, so that each reason is reported again; keep the version of MQTT."""
        self._failures, self._silent_closes, self._take_overs, self._soon_closed = 0, 0, 0, 0
        self._last_reported = None

    def decide(self, result: ConnectionResult) -> RetryDecision:
        """Return what to do after this connection.

        The same reason is reported only once, until a connection was ready in between.
        """
        if self._change_version(result):
            return RetryDecision(None, 0.0)
        ending = result.ending
        if result.ready_s:
            self._last_reported = None
            ending = self._check_hidden_limit(ending, result.oldest_unacknowledged)
        ending = self._count_take_over(ending, result.ready_s)
        ending = self._count_soon_closed(ending, result)
        report = None
        if ending != self._last_reported:
            report = Disconnected(ending.reason, ending.final, ending.taken_over)
        self._last_reported = ending
        return RetryDecision(report, None if ending.final else self._pause_s(result))

    def _count_take_over(self, ending: DisconnectReason, ready_s: float) -> DisconnectReason:
        """Return the reason, final after too many take-overs of the id."""
        self._take_overs = 0 if ready_s >= _UNDISPUTED_S else self._take_overs + ending.taken_over
        if not ending.taken_over or self._take_overs < _MOST_TAKE_OVERS:
            return ending
        return replace(ending, reason=f"{ending.reason}, {self._take_overs} times", final=True)

    def _count_soon_closed(self, ending: DisconnectReason, result: ConnectionResult) -> DisconnectReason:
        """Return the reason, a probable take-over if the broker closes one connection after the other."""
        if not ending.unexplained or not 0.0 < result.ready_s < _SOON_S:
            self._soon_closed = 0
            return ending
        self._soon_closed += result.oldest_unacknowledged is None  # else a message may be the cause
        return closed_soon_again(self._client_id) if self._soon_closed >= _SOON_CLOSED else ending

    def _pause_s(self, result: ConnectionResult) -> float:
        """Return a random pause from 0 to a bound that doubles from 0.2 s to 30 s.

        After a slow fault, and after another client has taken the id, it is longer.
        """
        if result.ending.taken_over:
            return self._random.uniform(*_TAKEN_OVER_PAUSE_S)
        if result.ending.slow:
            return self._random.uniform(*_SLOW_PAUSE_S)
        self._failures = 0 if result.ready_s >= _STABLE_S else min(self._failures + 1, 16)
        return self._random.uniform(0.0, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**self._failures))

    def _change_version(self, result: ConnectionResult) -> bool:
        """Change the MQTT version if the broker refuses this one; returns whether to retry at once.

        Once the broker has accepted a version, it stays.
        """
        self._version_proven = self._version_proven or result.accepted
        if self._version_proven:
            return False
        if result.version_refused and self.version_5:
            self.version_5 = False
            return True
        self._silent_closes = self._silent_closes + 1 if result.closed_without_answer else 0
        if self._silent_closes == _SILENT_CLOSES:
            self._silent_closes = 0
            self.version_5 = not self.version_5
        return False

    def _check_hidden_limit(self, ending: DisconnectReason, oldest: SentPacket | None) -> DisconnectReason:
        """Return the reason, extended by the oldest message if that is the likely cause."""
        same = self._hidden_limits.note_disconnect(oldest)
        if oldest is None:
            return ending
        too_long_bytes = oldest.size_bytes if same else self._hidden_limits.too_long_bytes
        if too_long_bytes is not None and self._shrink_chunks(too_long_bytes):
            self._hidden_limits.reset()
            self._failures = 0  # the next connection may work
            return DisconnectReason(
                f"{ending.reason}, again while taking {too_long_bytes} bytes: smaller chunks from now on; it states no "
                "limit, and with a higher one (mosquitto: message_size_limit, max_packet_size) there are fewer"
            )
        if not same:
            return ending
        text = f"{ending.reason}, again while taking {oldest.size_bytes} bytes for {oldest.topic}: not sent next time"
        _log.warning("%s", text)
        return DisconnectReason(text, ending.final)

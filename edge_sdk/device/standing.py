"""An agent's activity: its beginning, its limits, the next step, and the waits after a run ends.

An agent that stays waits after the end of a run, after a refusal that may pass, and after a run that failed, and then
asks for the next run: after a minute, and then after ever longer waits of up to an hour.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from edge_sdk.class_names import name_of
from edge_sdk.device.exchange import RoundReport
from edge_sdk.device.session import SessionPhase, SessionState
from edge_sdk.errors import Refused, RunFailed
from edge_sdk.protocol.messages import OF_CLASS

FIRST_S, MOST_S = 60.0, 3600.0
"""The first and the longest wait after an end, in seconds; the waits double, until a coordinator accepts the device."""
LASTING = frozenset({"identity", "signature", "encryption", "revoked"})
"""The reasons of refusals that only the owner can end."""
NEXT = {
    "connecting": "the broker answers",
    "joining": "the coordinator answers",
    "fetching": "the public set is complete",
    "idle": "the coordinator opens the next round",
    "training": "the upload is computed and sent",
    "paused": "training resumes when the pause ends",
    "reporting": "the coordinator confirms the upload",
}
"""The event that an agent waits for, by its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """An agent's activity.  `to_json` gives plain values for an app's screen."""

    state: str
    """connecting, joining, fetching, idle, training, paused, reporting, waiting (for the next run), or off."""
    since: str
    """Since when, as 2026-03-01T22:00:00Z, by this machine's clock."""
    why: str
    """Why it does not train, as far as it knows, or empty if nothing keeps it from training."""
    next: str
    """What comes next."""
    round: int
    """The newest round that it has begun, from 1; 0 before the first."""
    news: str
    """The last line for its owner."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Its own model's accuracy on its held-out samples, as fractions: `before` its first round, `alone` when it was in
    the control group last, and `now`.  A figure that was not measured since the agent was made is absent."""
    by_class: Mapping[str, float] = field(default_factory=dict)
    """`now` by class, in rounds without an end."""

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)


class OwnAccuracy:
    """The accuracy of a device's own model, from the device's own reports."""

    METRICS = ("local_accuracy", "validation_accuracy", "accuracy")
    """The first of these that a report contains is used; the device's own held-out samples come first."""

    def __init__(self) -> None:
        self._accuracy: Mapping[str, float] = {}
        self._by_class: Mapping[int, float] = {}

    def note(self, report: RoundReport) -> None:
        """Note a report."""
        figures = report.personal_metrics or report.metrics
        metric = next((name for name in self.METRICS if name in figures), None)
        if metric is None:
            return
        found = {"before": report.joining_metrics.get(metric), "alone" if report.alone else "now": figures[metric]}
        self._accuracy = {**self._accuracy, **{name: value for name, value in found.items() if value is not None}}
        self._by_class = {
            int(name.removeprefix(OF_CLASS)): value for name, value in figures.items() if name.startswith(OF_CLASS)
        }

    def told_in(self, status: AgentStatus, names: Sequence[str]) -> AgentStatus:
        """Return the status with these figures.  names: of the classes."""
        by_class = {name_of(number, names): value for number, value in self._by_class.items()}
        return replace(status, accuracy=dict(self._accuracy), by_class=by_class)


class AgentStanding:
    """Follows the state of one agent, and waits between two runs."""

    def __init__(
        self, *, stays: bool, news: Callable[[str], None], stopping: threading.Event, wall: Callable[[], float]
    ) -> None:
        """stays: whether it waits for the next run.  news: notifies the owner.  wall: returns seconds since 1970."""
        self._stays, self._news, self._stopping, self._wall = stays, news, stopping, wall
        self._wait_s = FIRST_S
        self._known = "off", "it was not started"
        self._since_s = wall()
        self._again_s = 0.0
        self.waiting = False
        """Whether it waits between two runs."""

    def look(self, session: SessionState, paused: str) -> None:
        """Note what the agent is doing; paused: why training pauses, or empty."""
        state = "connecting" if not session.linked else _WORDS.get(session.phase, "off")
        if state in ("idle", "training", "reporting"):
            self._wait_s = FIRST_S  # it was accepted
        if state == "training" and paused:
            state = "paused"
        self._note(state, paused if state in ("paused", "idle") else "")

    def ended(self, error: Exception | None, *, asked: bool) -> bool:
        """Note that a run has ended for this agent; returns whether it continues after a wait.

        error: what ended it, or None.  asked: whether its app stopped it.  Raises nothing.
        """
        if asked:
            self._note("off", "it was stopped")
            return False
        why = "the run is complete" if error is None else str(error)
        passing = error is None or isinstance(error, RunFailed) or _may_pass(error)
        if not self._stays or not passing:
            self._note("off", why)
            if passing:
                self._news(
                    f"{why}; this agent is off: start() joins the next run, and stay=True or --stay automatically"
                )
            return False
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, MOST_S)
        self._again_s = self._wall() + wait_s
        self._note("waiting", why)
        self._news(f"{why}; asks for the next run in {wait_s / 60:g} min")
        self.waiting = True
        try:
            stopped = self._stopping.wait(wait_s)
        finally:
            self.waiting = False
        if stopped:
            self._note("off", "it was stopped")
        return not stopped

    def status(self, session: SessionState, news: str = "") -> AgentStatus:
        """Return what the agent is doing.  news: the last line for its owner."""
        state, why = self._known
        following = NEXT.get(state, "start() joins the next run")
        if state == "waiting":
            following = f"asks for the next run at {_stamp(self._again_s)}"
        return AgentStatus(
            state=state,
            since=_stamp(self._since_s),
            why=why,
            next=following,
            round=max(0, session.exchange_id.round + 1),
            news=news,
        )

    def _note(self, state: str, why: str) -> None:
        if (state, why) != self._known:
            self._known, self._since_s = (state, why), self._wall()


_WORDS = {
    SessionPhase.JOINING: "joining",
    SessionPhase.FETCHING: "fetching",
    SessionPhase.IDLE: "idle",
    SessionPhase.WORKING: "training",
    SessionPhase.REPORTING: "reporting",
}


def _may_pass(error: Exception) -> bool:
    return isinstance(error, Refused) and error.reason not in LASTING


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

"""The replay of one device: recomputes the recorded uploads on a fresh model.

The replay runs in one thread and never waits, so that it can be stopped in a debugger.

Only finished exchanges change a device: interrupted work leaves no state.  A trace
does not show whether a device finished an exchange without a recorded upload, or which of several Assigns of one
exchange it received.  The replay therefore searches for the choice that reproduces the recorded uploads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import TypeAlias

from coordinator.trace.log import CoordinatorStart, Ended, Entry, FramesSent, Heard
from coordinator.trace.replay import NullTransport, message_in
from edge_sdk.agent.agent import Agent
from edge_sdk.device.store import MemoryStore
from edge_sdk.errors import RunFailed, UsageError
from edge_sdk.protocol import topics
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sdk.protocol.frames.codec import HEADER
from edge_sdk.protocol.frames.records import FrozenDict
from edge_sdk.protocol.messages import Assign, Upload, Welcome
from edge_sdk.transport.base import Connected, Incoming, Transport, TransportEvent


@dataclass(slots=True)
class Stretch:
    """A part of a run in which the device lost no finished work."""

    assigns: dict[ExchangeId, list[Incoming]] = field(default_factory=dict)
    """Assigns by place, in the order of sending; a place has several if late uploads changed the Assign."""
    uploads: dict[ExchangeId, Upload] = field(default_factory=dict)
    """The first upload of each place."""


@dataclass(slots=True)
class History:
    """The record of one device in one trace."""

    federation: str = ""
    first_epoch: int = 0
    """Epoch of the coordinator at the first start in the trace."""
    welcome: Incoming | None = None
    """The first Welcome sent to the device."""
    stretches: list[Stretch] = field(default_factory=lambda: [Stretch()])
    """Parts of the run; several if a simulation was killed and continued from an earlier checkpoint."""
    ended: bool = False
    """Whether the trace covers the run to its end."""


def device_history(entries: Iterable[Entry], device: str, *, virtual: bool) -> History:
    """Read the history of one device from a trace.

    virtual: whether the run was a simulation in virtual time, which resumes from a checkpoint.

    Raises UsageError if the trace has no upload of the device.
    """
    found = History()
    patterns: tuple[str, ...] = ()
    last_s, reborn = 0.0, False
    for entry in entries:
        if isinstance(entry, CoordinatorStart):
            found.federation = entry.spec.federation
            found.first_epoch = found.first_epoch or entry.epoch
            patterns = topics.device_subscriptions(found.federation, device)
            reborn, found.ended = True, False
        elif isinstance(entry, Heard):
            if virtual and reborn and entry.now_s < last_s:
                found.stretches.append(Stretch())
            last_s, reborn = entry.now_s, False
            _note_upload(found.stretches[-1], entry, device)
        elif isinstance(entry, FramesSent):
            if any(topics.matches(pattern, entry.topic) for pattern in patterns):
                _note_sent(found, entry)
        elif isinstance(entry, Ended):
            found.ended = True
    if found.welcome is None or not any(stretch.uploads for stretch in found.stretches):
        raise UsageError(f"--device {device}: the trace has no upload of it")
    return found


def _note_upload(stretch: Stretch, heard: Heard, device: str) -> None:
    if isinstance(heard.event, Incoming) and topics.origin(heard.event.topic).device == device:
        message = message_in(heard.event.frame)
        if isinstance(message, Upload):
            stretch.uploads.setdefault(ExchangeId(message.round, message.exchange), message)


def _note_sent(found: History, sent: FramesSent) -> None:
    message = message_in(sent.frame)
    incoming = Incoming(sent.topic, sent.frame)
    if isinstance(message, Welcome):
        found.welcome = found.welcome or incoming
    elif isinstance(message, Assign):
        known = found.stretches[-1].assigns.setdefault(ExchangeId(message.round, message.exchange), [])
        if not any(_body(each.frame) == _body(sent.frame) for each in known):
            known.append(incoming)


def _body(frame: bytes) -> bytes:
    """Return the frame without its stamp, which differs each time it is sent."""
    return frame[HEADER.size :]


Make: TypeAlias = Callable[[Transport, MemoryStore], Agent]
"""A function that makes the device's agent, switched on with this store."""
MOST_TRIALS = 1000
"""Maximum number of attempts to reproduce an upload.  Each assumes another set of exchanges that the device finished
without a recorded upload."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One recorded upload, and the Assigns from which it may have been computed."""

    place: ExchangeId
    unheard: tuple[Sequence[Incoming], ...]
    """The Assigns by place since the previous upload; the device may have carried them out."""
    assigns: Sequence[Incoming]
    """The Assigns of the upload's own place; the device carried out one of them."""
    recorded: Upload
    went_back: bool
    """Whether this is the first upload after the run went back to a checkpoint."""


def replay_device(past: History, device: str, make: Make, doubt: str = "") -> int:
    """Recompute all uploads, check that they equal the recorded ones, and return their number.

    Compares knowledge and metrics bit for bit.  doubt: why they might differ legitimately.
    Raises RunFailed if an upload differs, or UsageError with the doubt if there is one.
    """
    steps = _steps(past)
    search = _Search(_Double(make, past.welcome))
    if not search.all_made(steps):
        place = steps[search.furthest].place
        where = f"{device}, round {place[0]}, exchange {place[1]}"
        raise _different(where, search.difference, doubt)
    return len(steps)


def _steps(past: History) -> list[_Step]:
    steps = []
    for number, stretch in enumerate(past.stretches):
        unheard: list[Sequence[Incoming]] = []
        went_back = number > 0
        for place, assigns in stretch.assigns.items():
            recorded = stretch.uploads.get(place)
            if recorded is None:
                unheard.append(assigns)
                continue
            steps.append(_Step(place, tuple(unheard), assigns, recorded, went_back))
            unheard, went_back = [], False
    return steps


class _Search:
    """The search for choices that reproduce all uploads; a wrong early choice may show only in a later upload."""

    def __init__(self, double: _Double) -> None:
        self._double = double
        self._trials_left = MOST_TRIALS
        self._states = [double.state()]
        """The states of the device on the current path, one before each step."""
        self.furthest = -1
        self.difference = ""
        """The first difference found at the furthest step."""

    def all_made(self, steps: Sequence[_Step]) -> bool:
        """Whether the double reproduces all the uploads."""
        choices = any(step.unheard or len(step.assigns) > 1 or step.went_back for step in steps)
        ways: list[Iterator[None]] = []
        while len(ways) < len(steps):
            ways.append(self._ways(steps[len(ways)], len(ways)))
            while next(ways[-1], ways) is not None:  # no choice, or no further one, at this step
                ways.pop()
                if not ways:
                    return False
            del self._states[len(ways) :]
            self._states.append(
                self._double.state() if choices else self._states[0]
            )  # each holds a model: only if needed
        return True

    def _ways(self, step: _Step, number: int) -> Iterator[None]:
        """Yield each time the double has reproduced the upload of this step.

        The first attempt uses the device's present state, no unrecorded exchange, and the first Assign.
        """
        states = self._states[number::-1] if step.went_back else self._states[number : number + 1]
        for trial, (state, finished, assign) in enumerate(product(states, _subsets(step.unheard), step.assigns)):
            if trial:
                if not self._trials_left:
                    return
                self._trials_left -= 1
                self._double.restart(state)
            for each in finished:
                self._double.answer(each)
            difference = _difference(self._double.answer(assign), step.recorded)
            if not difference:
                yield
            elif number > self.furthest:
                self.furthest, self.difference = number, difference


def _subsets(unheard: Sequence[Sequence[Incoming]]) -> Iterator[tuple[Incoming, ...]]:
    """Yield the sets of unheard Assigns, small sets first, with one Assign for each place in the set."""
    for size in range(len(unheard) + 1):
        for places in combinations(unheard, size):
            yield from product(*places)


class _Double:
    """A device that can be put back into an earlier state."""

    def __init__(self, make: Make, welcome: Incoming | None) -> None:
        self._make, self._welcome = make, welcome
        self._switch_on(MemoryStore())

    def restart(self, state: MemoryStore) -> None:
        """Switch the device off and on again in this state; does not change the given state."""
        self._agent.stop()  # an app's model serves one agent at a time
        self._switch_on(state)

    def _switch_on(self, state: MemoryStore) -> None:
        self._line, self._store = NullTransport(), copy.deepcopy(state)
        self._agent = self._make(self._line, self._store)
        self._agent.participant.connect()
        self._give(Connected())
        if self._welcome is not None:
            self._give(self._welcome)
        self._agent.participant.raise_if_failed()

    def state(self) -> MemoryStore:
        """Return the state that a power cut would leave."""
        return copy.deepcopy(self._store)

    def answer(self, assign: Incoming) -> Upload | None:
        """Return the device's upload in answer to this Assign, or None."""
        self._line.sent.clear()
        self._give(assign)
        self._agent.participant.raise_if_failed()
        sent = (message_in(each.frame) for each in self._line.sent)
        return next((message for message in sent if isinstance(message, Upload)), None)

    def _give(self, event: TransportEvent) -> None:
        """Pass one event to the agent, and do all resulting work."""
        self._agent.participant.handle(event, 0.0)
        while self._agent.participant.work.computing:
            if self._agent.participant.work_slice():
                self._agent.participant.finish_work(0.0)


def _difference(made: Upload | None, recorded: Upload) -> str:
    """Describe the difference between two uploads, or return empty.

    Costs are not compared: the replay is not metered.
    """
    if made is None:
        return "the replay makes no upload"
    if storage.serialise(_computed(made)) == storage.serialise(_computed(recorded)):
        return ""
    if made.withheld != recorded.withheld:
        return f"withheld for {made.withheld or 'nothing'!r}, in the run for {recorded.withheld or 'nothing'!r}"
    for role, payload in recorded.knowledge.items():
        own = made.knowledge.get(role)
        if own is None or storage.serialise(own) != storage.serialise(payload):
            return f"{role} differs from what was uploaded in the run"
    for name in ("metrics", "personal_metrics"):
        own, told = getattr(made, name), getattr(recorded, name)
        if own != told:
            return f"measured {dict(own)}, in the run {dict(told)}"
    return f"of {made.samples} samples, in the run of {recorded.samples}"


def _computed(upload: Upload) -> Upload:
    """Drop the upload's reports about the board, the link, and the model that its app predicts with."""
    return replace(
        upload,
        busy_s=0.0,
        energy_j=0.0,
        joules_source=None,
        temperature_c=None,
        joining_metrics=FrozenDict(),
        not_served="",
        refused_frames=FrozenDict(),
    )


def _different(where: str, difference: str, doubt: str) -> RunFailed | UsageError:
    return UsageError(f"{where}: cannot be replayed: {doubt}") if doubt else RunFailed(f"{where}: {difference}")

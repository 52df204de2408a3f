"""A trace from the side of one device: what it answered, again, on a fresh model.

One thread, no waiting: made to be stopped in a debugger.

What counts for a device is what it finished: work that a power cut took, or that a newer Assign overtook, leaves
nothing behind.  Whether it finished an exchange of which no upload came, and which of several Assigns of one exchange
reached it, a trace does not say: the uploads do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice, product
from typing import TypeAlias

from coordinator.replay import Nowhere, message_in
from edge_sdk.agent import Agent
from edge_sdk.errors import RunFailed, UsageError
from edge_sdk.protocol import keep
from edge_sdk.protocol.messages import Upload
from edge_sdk.store import MemoryStore
from edge_sdk.transport.base import Connected, Incoming, Transport, TransportEvent
from edge_sim.replay_history import History

Make: TypeAlias = Callable[[Transport, MemoryStore], Agent]
"""The device's agent, as it is switched on with this store."""
MOST_TRIALS = 256
"""Of what a device may have finished unheard, before an upload is called different."""


def replay_device(past: History, device: str, make: Make, doubt: str = "") -> int:
    """How many uploads the device makes again, all equal to the recorded ones.

    What is compared is the knowledge and the metrics, bit for bit.  doubt: why they might differ though nothing is
    wrong.  Raises RunFailed where an upload differs, or UsageError with the doubt, where there is one.
    """
    double = _Double(make, past.welcome)
    kept = [double.state()]
    made = 0
    for stretch in past.stretches:
        unheard: list[Sequence[Incoming]] = []
        bases = kept
        for place, assigns in stretch.assigns.items():
            recorded = stretch.uploads.get(place)
            if recorded is None:
                unheard.append(assigns)
                continue
            base, difference = _tried(double, bases, unheard, assigns, recorded)
            if base is None:
                raise _different(f"{device}, round {place[0]}, exchange {place[1]}", difference, doubt)
            if bases is kept:
                del kept[kept.index(base) + 1 :]
            bases, unheard = [double.state()], []
            kept += bases if len(past.stretches) > 1 else []
            made += 1
    return made


def _tried(
    double: _Double,
    bases: Sequence[MemoryStore],
    unheard: Sequence[Sequence[Incoming]],
    assigns: Sequence[Incoming],
    recorded: Upload,
) -> tuple[MemoryStore | None, str]:
    """The state from which the device made the recorded upload; None: there is none, and what differs.

    Tried first: that it went on from the newest state, had finished nothing of which nobody heard, and got the first
    of the Assigns.
    """
    told = ""
    trials = product(reversed(bases), _subsets(unheard), assigns)
    for trial, (base, finished, assign) in enumerate(islice(trials, MOST_TRIALS)):
        if trial:
            double.restart(base)
        for each in finished:
            double.answer(each)
        difference = _difference(double.answer(assign), recorded)
        if not difference:
            return base, ""
        told = told or difference
    return None, told


def _subsets(unheard: Sequence[Sequence[Incoming]]) -> Iterator[tuple[Incoming, ...]]:
    """Of the places few before many; of each place any of its Assigns."""
    for size in range(len(unheard) + 1):
        for places in combinations(unheard, size):
            yield from product(*places)


class _Double:
    """A device that can be put back into a state that it was in."""

    def __init__(self, make: Make, welcome: Incoming | None) -> None:
        self._make, self._welcome = make, welcome
        self.restart(MemoryStore())

    def restart(self, state: MemoryStore) -> None:
        """Switch it on in this state, which stays as it is."""
        self._line, self._store = Nowhere(), copy.deepcopy(state)
        self._agent = self._make(self._line, self._store)
        self._agent.connect()
        self._give(Connected())
        if self._welcome is not None:
            self._give(self._welcome)
        self._agent.raise_if_failed()

    def state(self) -> MemoryStore:
        """What a power cut would leave."""
        return copy.deepcopy(self._store)

    def answer(self, assign: Incoming) -> Upload | None:
        """What it uploads when it is asked for this."""
        self._line.sent.clear()
        self._give(assign)
        self._agent.raise_if_failed()
        sent = (message_in(each.frame) for each in self._line.sent)
        return next((message for message in sent if isinstance(message, Upload)), None)

    def _give(self, event: TransportEvent) -> None:
        """One event, and all the work that it makes."""
        self._agent.handle(event, 0.0)
        while self._agent.computing:
            if self._agent.work_slice():
                self._agent.finish_work(0.0)


def _difference(made: Upload | None, recorded: Upload) -> str:
    """What differs, in words; empty: nothing."""
    if made is None:
        return "the replay makes no upload"
    if keep.to_bytes(made) == keep.to_bytes(recorded):
        return ""
    if made.withheld != recorded.withheld:
        return f"withheld for {made.withheld or 'nothing'!r}, in the run for {recorded.withheld or 'nothing'!r}"
    for role, payload in recorded.knowledge.items():
        own = made.knowledge.get(role)
        if own is None or keep.to_bytes(own) != keep.to_bytes(payload):
            return f"{role} differs from what was uploaded in the run"
    if made.metrics != recorded.metrics:
        return f"measured {dict(made.metrics)}, in the run {dict(recorded.metrics)}"
    return f"of {made.samples} samples, in the run of {recorded.samples}"


def _different(where: str, difference: str, doubt: str) -> RunFailed | UsageError:
    return UsageError(f"{where}: cannot be replayed: {doubt}") if doubt else RunFailed(f"{where}: {difference}")

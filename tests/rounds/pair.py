"""The two machines against each other over a bad link, on a virtual clock; in place of models, bytes that name
who made them and what for.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rounds_model import Model

from coordinator import rounds
from coordinator.rounds import RoundPolicy
from edge_sdk.device import session
from edge_sdk.device.session import SessionState
from edge_sdk.protocol.exchange_id import ExchangeId

MOST_EVENTS = 20_000
"""A healthy run here takes a few hundred."""


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What the link and the power do."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.0
    """Longest delay; messages overtake each other within it."""
    cuts: int = 0
    """How often some device loses its link."""
    device_crashes: int = 0
    coordinator_crashes: int = 0
    span_s: float = 60.0
    """Cuts and crashes happen within this time."""


class Pair:
    """A coordinator and its devices."""

    def __init__(self, policy: RoundPolicy, weather: Weather, seed: int) -> None:
        self.rng, self.weather, self.now_s = random.Random(seed), weather, 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0
        self.coordinator = Coordinator(self, policy)
        self.devices = {name: Device(self, name) for name in ("a", "b", "c", "d")[: policy.expected]}

    @property
    def over(self) -> bool:
        return self.coordinator.model.over and all(device.over for device in self.devices.values())

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        self._asked += 1
        heapq.heappush(self._queue, (max(time_s, self.now_s), self._asked, act))

    def carry(self, act: Callable[[], None]) -> None:
        """A message: lost, doubled, delayed, or just delivered."""
        if self.rng.random() < self.weather.drop:
            return
        for _ in range(2 if self.rng.random() < self.weather.duplicate else 1):
            self.at(self.now_s + 0.01 + self.rng.random() * self.weather.delay_s, act)

    def run(self) -> None:
        """Until everybody knows that it is over."""
        for device in self.devices.values():
            self.at(self.rng.random() * 3, device.link_up)
        self._foretell(self.weather.cuts, lambda: self.rng.choice([*self.devices.values()]).cut())
        self._foretell(self.weather.device_crashes, lambda: self.rng.choice([*self.devices.values()]).crash())
        self._foretell(self.weather.coordinator_crashes, self.coordinator.crash)
        for _ in range(MOST_EVENTS):
            if self.over:
                return
            self.now_s, _, act = heapq.heappop(self._queue)
            act()
        states = [self.coordinator.model.state, *(device.state for device in self.devices.values())]
        raise AssertionError(f"not over after {self.now_s:.0f} s: {states}")

    def _foretell(self, times: int, act: Callable[[], None]) -> None:
        for _ in range(times):
            self.at(self.rng.random() * self.weather.span_s, act)


@dataclass
class Device:
    """The session machine with a store that survives a crash, and no model."""

    pair: Pair
    name: str
    state: SessionState = field(default_factory=SessionState)
    outbox: dict[tuple[int, int], bytes] = field(default_factory=dict)
    receipts: set[tuple[int, int]] = field(default_factory=set)
    closing: dict[tuple[int, int], bool] = field(default_factory=dict)
    begun: int = 0
    power: int = 0
    epoch: int = -1

    @property
    def over(self) -> bool:
        return self.state.phase in (session.SessionPhase.DONE, session.SessionPhase.REFUSED)

    def feed(self, event: session.SessionEvent) -> None:
        self.state, commands = session.advance_session(self.state, event)
        for command in commands:
            self.carry_out(command)
        due_s, power = session.session_due_s(self.state), self.power
        if due_s is not None:
            self.pair.at(due_s, lambda: self._tick(power))

    def _tick(self, power: int) -> None:
        due_s = session.session_due_s(self.state)
        if power == self.power and due_s is not None and self.pair.now_s >= due_s:
            self.feed(session.SessionTick(self.pair.now_s))

    def hear(self, event: Callable[[float], session.SessionEvent]) -> None:
        """Something that comes over the link, if it is up when it arrives."""

        def arrive() -> None:
            if self.state.linked:
                self.feed(event(self.pair.now_s))

        if self.state.linked:
            self.pair.carry(arrive)

    def say(self, act: Callable[[], None]) -> None:
        if self.state.linked:
            self.pair.carry(act)

    def link_up(self) -> None:
        self.feed(session.LinkUp(self.pair.now_s))
        self.pair.coordinator.announce(self)  # what is retained

    def cut(self) -> None:
        if self.state.linked:
            self.feed(session.LinkDown())
            self.pair.carry(lambda: self.pair.coordinator.feed(rounds.Lost(self.name)))
            self.pair.at(self.pair.now_s + self.pair.rng.random() * 20, self.link_up)

    def crash(self) -> None:
        """The power fails: what is left is what the store holds."""
        if self.over:
            return
        self.power += 1
        self.begun += 1
        self.state = SessionState(epoch=self.epoch)
        if self.outbox:
            place = max(self.outbox)
            pending = place not in self.receipts
            self.state = replace(
                self.state, exchange_id=ExchangeId(*place), closing=self.closing[place], pending=pending
            )
        self.pair.at(self.pair.now_s + self.pair.rng.random() * 20, self.link_up)

    def carry_out(self, command: session.SessionCommand) -> None:
        coordinator = self.pair.coordinator
        if isinstance(command, session.SayHello):
            self.say(lambda: coordinator.take_hello(self))
        elif isinstance(command, session.StartWork):
            self.begun += 1
            begun, place = self.begun, command.exchange_id
            self.pair.at(self.pair.now_s + self.pair.rng.random() * 4, lambda: self._finish(begun, place))
        elif isinstance(command, session.SendUpload):
            place, frame = command.exchange_id, self.outbox[command.exchange_id]
            self.say(lambda: coordinator.take_upload(self, ExchangeId(*place), frame))
        elif isinstance(command, session.ForgetUpload):
            self.receipts.add(command.exchange_id)

    def _finish(self, begun: int, place: tuple[int, int]) -> None:
        if begun == self.begun and self.state.phase is session.SessionPhase.WORKING:
            self.outbox[place] = made(self.name, place)
            self.closing[place] = self.state.closing
            self.feed(session.WorkDone(self.pair.now_s))


def made(device: str, place: tuple[int, int]) -> bytes:
    """What a device computes for an exchange: the same whenever it computes it."""
    return f"{device} for {tuple(place)}".encode()


class Coordinator:
    """The round machine with a ledger that survives a crash, and no method."""

    def __init__(self, pair: Pair, policy: RoundPolicy) -> None:
        self.pair, self.epoch = pair, 1
        self.model = _Ears(policy, hear=self.carry_out)
        self.folded: dict[ExchangeId, list[object]] = {}
        """In the order in which they came to count."""
        self.begun = 0

    def feed(self, event: rounds.RoundEvent) -> None:
        self.model.now_s = self.pair.now_s
        self.model.feed(event)
        self._wake()

    def _wake(self) -> None:
        due_s = rounds.rounds_due_s(self.model.state)
        if due_s is not None:
            self.pair.at(due_s, self._tick)

    def _tick(self) -> None:
        due_s = rounds.rounds_due_s(self.model.state)
        if due_s is not None and self.pair.now_s >= due_s:
            self.feed(rounds.RoundTick(self.pair.now_s))

    def crash(self) -> None:
        if self.model.over:
            return
        self.epoch += 1
        self.begun += 1
        self.model.crash(after_commit=self.pair.rng.random() < 0.5)
        for device in self.pair.devices.values():
            self.announce(device)
        self._wake()

    def announce(self, device: Device) -> None:
        over, reason, epoch = self.model.over, self.model.state.reason, self.epoch
        device.hear(lambda now_s: session.CoordinatorSeen(epoch, over, reason, now_s))

    def take_hello(self, device: Device) -> None:
        device.epoch = self.epoch  # the stub's store; a Welcome that is lost was at least under way
        epoch = self.epoch
        device.hear(lambda now_s: session.Welcomed(epoch, now_s))
        if self.model.over:
            self.announce(device)
        self.feed(rounds.Joined(device.name, self.pair.now_s))

    def take_upload(self, device: Device, place: ExchangeId, frame: bytes) -> None:
        if device.name in self.model.rows.get(place, ()):
            self._answer(device.name, place)
            return
        self.feed(rounds.Received(device.name, place, frame))

    def carry_out(self, command: rounds.RoundCommand) -> None:
        if isinstance(command, rounds.Invite):
            for name in command.devices:
                self._assign(name, command.place)
        elif isinstance(command, rounds.Persist):
            begun = self.begun
            self.pair.at(self.pair.now_s + self.pair.rng.random() * 0.2, lambda: self._commit(begun))
        elif isinstance(command, rounds.Fold):
            self.folded.setdefault(command.place, []).append(command.upload)
            self._answer(command.device, command.place)
        elif isinstance(command, rounds.SendReceipt):
            self._answer(command.device, command.place)
        elif isinstance(command, rounds.Reduce):
            begun = self.begun
            self.pair.at(self.pair.now_s + self.pair.rng.random() * 2, lambda: self._finish(begun))
        elif isinstance(command, rounds.EndRun):
            for device in self.pair.devices.values():
                self.announce(device)

    def _commit(self, begun: int) -> None:
        """Everything that waits becomes durable together."""
        while begun == self.begun and self.model.pending:
            self.model.now_s = self.pair.now_s
            self.model.commit()
            self._wake()

    def _finish(self, begun: int) -> None:
        if begun == self.begun:
            self.feed(rounds.Finished(self.pair.now_s))

    def _assign(self, name: str, place: ExchangeId) -> None:
        closing = place.round == self.model.policy.rounds
        self.pair.devices[name].hear(
            lambda now_s: session.Assigned(ExchangeId(place.round, place.exchange), closing, now_s),
        )

    def _answer(self, name: str, place: ExchangeId) -> None:
        self.pair.devices[name].hear(lambda now_s: session.Receipted((place.round, place.exchange), now_s))


@dataclass
class _Ears(Model):
    """A model whose commands somebody else hears, too."""

    hear: Callable[[rounds.RoundCommand], None] = print

    def carry_out(self, command: rounds.RoundCommand) -> None:
        super().carry_out(command)
        self.hear(command)

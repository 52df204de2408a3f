"""An in-process broker with faults: the transport of simulations and of most tests.

Without a clock every frame arrives at once.  With one, a frame takes its time on the sender's and the receiver's link,
and under a seed it may be lost, doubled, delayed (and so reordered), or find its receiver disconnected for a while.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge_sdk.errors import LocalProtocolError
from edge_sdk.protocol import topics
from edge_sdk.transport.base import Connected, Disconnected, Incoming, TransportEvent, Will
from edge_sdk.transport.memory.fault_draws import FaultDraws
from edge_sdk.transport.memory.subscriptions import SubscriptionTree


class Clock(Protocol):
    """Virtual time."""

    now_s: float

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Do something at a later time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, each as a probability per frame and receiver."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    """Share of frames that are held up."""
    delay_s: float = 1.0
    """Longest hold-up; frames overtake each other within it."""
    disconnect: float = 0.0
    """Chance that a frame's receiver loses its link instead."""
    disconnect_s: float = 5.0
    """For how long."""


CALM = Faults()
"""Nothing."""


class TransferTime(Protocol):
    """How long a frame takes on one client's link."""

    def __call__(self, size_bytes: int, *, up: bool) -> float:
        """Seconds."""


def instant(size_bytes: int, *, up: bool) -> float:  # noqa: ARG001  # a TransferTime
    """No time at all."""
    return 0.0


class Hub:
    """The broker: routes by subscription, keeps retained frames, publishes wills."""

    def __init__(self, clock: Clock | None = None, faults: Faults | None = None, seed: int = 0) -> None:
        self.clock, self.faults = clock, CALM if faults is None or faults == CALM else faults
        self._draws = FaultDraws(seed)
        self._clients: dict[str, MemoryTransport] = {}
        self._linked = 0
        self._routes: SubscriptionTree[MemoryTransport] = SubscriptionTree()
        self._found: dict[str, tuple[MemoryTransport, ...]] = {}
        """By topic, until somebody's subscriptions change."""
        self._retained: dict[str, bytes] = {}
        self.down = False
        """Whether the broker itself is gone."""
        self.fates: Counter[str] = Counter()
        """How often each of the faults has struck."""

    def link(self, client_id: str, transfer_s: TransferTime | None = None) -> MemoryTransport:
        """A transport for one client; a second one with the same id takes the first one's place."""
        old = self._clients.pop(client_id, None)
        if old is not None:
            old.push(Disconnected("another client took this id"))
            old.close()
        self._clients[client_id] = client = MemoryTransport(self, client_id, transfer_s or instant, self._linked)
        self._linked += 1
        return client

    def publish(self, sender: MemoryTransport, topic: str, frame: bytes, *, retain: bool) -> None:
        """Route a frame to everybody who subscribed; an empty retained one clears its topic."""
        if retain and frame:
            self._retained[topic] = frame
        elif retain:
            self._retained.pop(topic, None)
        up_s = sender.transfer_s(len(frame), up=True)
        for client in self._hearers(topic):
            if client.online:
                self._carry(client, topic, frame, up_s)

    def _hearers(self, topic: str) -> tuple[MemoryTransport, ...]:
        """Who subscribed, each once, in the order in which they were linked."""
        if topic not in self._found:
            hearers = {client.place: client for client in self._routes.find(topic)}
            self._found[topic] = tuple(hearers[place] for place in sorted(hearers))
        return self._found[topic]

    def subscribe(self, client: MemoryTransport, patterns: Sequence[str], before: Sequence[str] = ()) -> None:
        """From now on a client hears these, and no more what it heard before."""
        self._found.clear()
        for pattern in before:
            self._routes.remove(pattern, client)
        for pattern in patterns:
            self._routes.add(pattern, client)

    def subscribed(self, client: MemoryTransport) -> None:
        """A client is (back) online: it hears what was retained."""
        for topic, frame in sorted(self._retained.items()):
            if client.wants(topic):
                self._deliver_after(client, topic, frame, client.transfer_s(len(frame), up=False))

    def drop_link(self, client_id: str, for_s: float) -> None:
        """Cut a client off: its will is published, and after a while it is back; without a clock at once."""
        client = self._clients[client_id]
        if not client.online:
            return
        client.push(Disconnected("the link was lost"))
        self._silence(client)
        if self.clock is None:
            client.back()
        else:
            self.clock.at(self.clock.now_s + for_s, client.back)

    def restart(self, for_s: float) -> None:
        """Be gone for a while: everybody loses the link, no will is published, and retained frames are kept.

        Only with a clock.
        """
        if self.clock is None or self.down:
            return
        self.down = True
        for client in self._clients.values():
            if client.online:
                client.online = False
                client.push(Disconnected("the broker went away"))
        self.clock.at(self.clock.now_s + for_s, self._come_back)

    def _come_back(self) -> None:
        self.down = False
        for client in list(self._clients.values()):
            client.back()

    def cut_power(self, client_id: str) -> None:
        """End a client without a word: its will is published, and it hears nothing any more."""
        client = self._clients.pop(client_id)
        client.on_news = lambda: None
        self._silence(client)
        client.close()

    def _silence(self, client: MemoryTransport) -> None:
        was_online, client.online = client.online, False
        if was_online and client.will is not None:
            self.publish(client, client.will.topic, client.will.frame, retain=True)

    def _carry(self, client: MemoryTransport, topic: str, frame: bytes, up_s: float) -> None:
        faults = self.faults
        if faults is CALM:
            self._deliver_after(client, topic, frame, up_s + client.transfer_s(len(frame), up=False))
            return
        cut, lost, doubled, delayed, *shares = self._draws.draw(client.client_id, topic, frame)
        if cut < faults.disconnect:
            self.fates["disconnect"] += 1
            self.drop_link(client.client_id, faults.disconnect_s)
            return
        if lost < faults.drop:
            self.fates["drop"] += 1
            return
        twice, held = doubled < faults.duplicate, delayed < faults.delay
        self.fates.update(duplicate=twice, delay=held)
        for share in shares if twice else shares[:1]:
            held_s = share * faults.delay_s if held else 0.0
            self._deliver_after(client, topic, frame, up_s + client.transfer_s(len(frame), up=False) + held_s)

    def _deliver_after(self, client: MemoryTransport, topic: str, frame: bytes, delay_s: float) -> None:
        if self.clock is None:
            client.push(Incoming(topic, frame))
        else:
            self.clock.at(self.clock.now_s + delay_s, lambda: client.arrive(Incoming(topic, frame)))


class MemoryTransport:
    """One client of a Hub."""

    def __init__(self, hub: Hub, client_id: str, transfer_s: TransferTime, place: int) -> None:
        """place: in the order in which the hub's clients were linked."""
        self._hub, self.client_id, self.transfer_s, self.place = hub, client_id, transfer_s, place
        self._subscriptions: tuple[str, ...] = ()
        self._inbox: deque[TransportEvent] = deque()
        self.will: Will | None = None
        self.online = False
        self._begun, self._closed = False, False
        self.on_news: Callable[[], None] = lambda: None
        """Called when an event waits; how a simulator wakes its participants."""

    def connect(self, subscriptions: Sequence[str], will: Will | None = None) -> None:
        """See Transport."""
        self._hub.subscribe(self, subscriptions, self._subscriptions)
        self._subscriptions, self.will = tuple(subscriptions), will
        self._begun = True
        self.back()

    def back(self) -> None:
        """The link is up (again), where there is a broker; one that was closed stays closed."""
        if self._closed or self.online or self._hub.down or not self._begun:
            return
        self.online = True
        self.push(Connected())
        self._hub.subscribed(self)

    def send(self, topic: str, frame: bytes, *, retain: bool = False) -> None:
        """See Transport."""
        if not isinstance(frame, bytes):
            raise LocalProtocolError(f"{topic}: a frame is bytes, not {type(frame).__name__}")
        if self.online:
            self._hub.publish(self, topic, frame, retain=retain)

    def accept_up_to(self, frame_bytes: int) -> None:
        """See Transport.  Here frames are never in pieces, and whoever decodes them looks at their length."""

    def poll(self, timeout_s: float) -> TransportEvent | None:
        """See Transport."""
        end_s = time.monotonic() + timeout_s
        while not self._inbox:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(left_s, 0.001))
        return self._inbox.popleft()

    def close(self) -> None:
        """See Transport."""
        self.online, self._closed = False, True
        self._hub.subscribe(self, (), self._subscriptions)
        self._subscriptions = ()

    def wants(self, topic: str) -> bool:
        """Whether a frame on this topic would reach this client now."""
        return self.online and any(topics.matches(pattern, topic) for pattern in self._subscriptions)

    def arrive(self, event: Incoming) -> None:
        """A frame has travelled; it is lost if the link is down by now."""
        if self.online:
            self.push(event)

    def push(self, event: TransportEvent) -> None:
        """Put an event in front of the client."""
        self._inbox.append(event)
        self.on_news()

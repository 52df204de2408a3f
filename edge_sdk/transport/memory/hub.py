"""An in-process broker with faults: the transport of simulations and of most tests.

Without a clock every frame arrives at once.  With a clock a frame takes time on the sender's and on the receiver's
link, and frames from one client to another arrive in the order in which they were sent, as over MQTT.  If a client
sends a long frame again while its link still transfers the first copy, the second is dropped, because over MQTT the
transfer of chunks would continue.  If that copy gets lost, a later resend goes through.

Faults are drawn from a seed: a frame may be lost, duplicated or delayed (and so reordered), or its receiver may be
disconnected for a while.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeVar

from edge_sdk.errors import LocalProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames.codec import HEADER_BYTES
from edge_sdk.protocol.frames.frame_parts import Frame, FrameParts, ToldFrame, beginning
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Screen, TransportEvent
from edge_sdk.transport.chunks import CHUNK_BYTES
from edge_sdk.transport.memory.fault_draws import FaultDraws

C = TypeVar("C")
_CONNECTED = Connected()
_CACHED_TOPICS = 2**10
"""The maximum number of topics whose subscribers are remembered: those of a round, not of a whole fleet."""


class _Alone(NamedTuple, Generic[C]):
    """The only subscription below a level: in a large fleet, that of nearly every device."""

    pattern: str
    client: C


class SubscriptionTree(Generic[C]):
    """Clients by the patterns that they subscribed to, under the rules of MQTT, which `topics.matches` describes."""

    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.below: dict[str, SubscriptionTree[C] | _Alone[C]] = {}
        """The subscriptions below the next topic level: a subtree, or the only one, of more levels."""
        self.here: list[C] = []
        """The clients whose pattern ends at this node."""

    def add(self, pattern: str, client: C) -> None:
        """Add one subscription."""
        self._add(pattern.split("/"), 0, _Alone(pattern, client))

    def _add(self, levels: Sequence[str], depth: int, added: _Alone[C]) -> None:
        node = self
        for at in range(depth, len(levels)):
            found = node.below.get(levels[at])
            if found is None and at < len(levels) - 1:
                node.below[levels[at]] = added
                return
            if not isinstance(found, SubscriptionTree):
                alone, found = found, SubscriptionTree()
                node.below[levels[at]] = found
                if alone is not None:
                    found._add(alone.pattern.split("/"), at + 1, alone)
            node = found
        node.here.append(added.client)

    def remove(self, pattern: str, client: C) -> None:
        """Remove one subscription.  Raises KeyError or ValueError if it does not exist."""
        path = [self]
        levels = pattern.split("/")
        for level in levels:
            below = path[-1].below[level]
            if not isinstance(below, SubscriptionTree):
                if below != (pattern, client):
                    raise KeyError(pattern)
                del path[-1].below[level]
                break
            path.append(below)
        else:
            path[-1].here.remove(client)
        for node, above, level in reversed(list(zip(path[1:], path, levels, strict=False))):
            if not node.here and not node.below:
                del above.below[level]

    def find(self, topic: str) -> list[C]:
        """Return the clients that are subscribed to a topic, once for each pattern that covers it."""
        levels = topic.split("/")
        found: list[C] = []
        nodes = [self]
        for depth, level in enumerate(levels):
            wildcards = depth > 0 or not topic.startswith("$")
            trees = [node.below for node in nodes]
            nodes = []
            for tree in trees:
                if wildcards and "#" in tree:
                    found += _at_end(tree)
                for name in (level, "+") if wildcards else (level,):
                    below = tree.get(name)
                    if isinstance(below, SubscriptionTree):
                        nodes.append(below)
                    elif below is not None and topics.matches(below.pattern, topic):
                        found.append(below.client)
        for node in nodes:
            found += node.here
            if "#" in node.below:
                found += _at_end(node.below)
        return found


def _at_end(tree: dict[str, SubscriptionTree[C] | _Alone[C]]) -> list[C]:
    """Return the clients whose pattern ends with `#` at this level."""
    below = tree.get("#")
    return below.here if isinstance(below, SubscriptionTree) else []


class Clock(Protocol):
    """A clock of virtual time."""

    now_s: float

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Call `act` at a later time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The probabilities of faults, each for one frame and one receiver."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_s: float = 1.0
    """Longest delay; a delayed frame may arrive after a later one."""
    disconnect: float = 0.0
    """Probability that the receiver loses its connection in place of receiving the frame."""
    disconnect_s: float = 5.0
    """How long the connection stays down."""


NO_FAULTS = Faults()


class TransferTime(Protocol):
    """A function that returns the transfer time of a frame on one client's link."""

    def __call__(self, size_bytes: int, *, up: bool) -> float:
        """Return the seconds for `size_bytes` bytes from the client (up) or to it."""


def instant(size_bytes: int, *, up: bool) -> float:  # noqa: ARG001  # a TransferTime
    """Return 0: the link takes no time."""
    return 0.0


class LastWill(Protocol):
    """A Will, or what makes one when it is needed."""

    @property
    def topic(self) -> str:
        """See Will."""

    @property
    def frame(self) -> bytes:
        """See Will."""


def _nothing() -> None:
    """Wake nobody."""


class Publication(NamedTuple):
    """A frame that its sender has published."""

    at_s: float
    sender: str
    """The sender's client id."""
    topic: str
    frame: Frame
    retain: bool
    up_s: float
    """Seconds on the sender's link."""


class Hub:
    """The broker: delivers frames by subscription, stores retained frames, and publishes wills."""

    def __init__(self, clock: Clock | None = None, faults: Faults | None = None, seed: int = 0) -> None:
        self.clock, self.faults = clock, NO_FAULTS if faults is None or faults == NO_FAULTS else faults
        self._draws = FaultDraws(seed)
        self._clients: dict[str, MemoryTransport] = {}
        self._link_count = 0
        self._subscriptions: SubscriptionTree[MemoryTransport] = SubscriptionTree()
        self._subscribers: dict[str, tuple[MemoryTransport, ...]] = {}
        """A cache by topic, valid until any subscription changes."""
        self._retained: dict[str, Frame] = {}
        self._arrivals_s: dict[tuple[str, int], float] = {}
        """When the last frame of a sender, by id, arrives at a client, by number; forgotten once all are past."""
        self._latest_s = 0.0
        """The latest of them."""
        self.down = False
        """Whether the broker itself is down."""
        self.on_publish: Callable[[Frame], None] = lambda _frame: None
        """Called with each frame that is published."""
        self.fault_counts: Counter[str] = Counter()
        """The number of faults of each kind."""

    def link(self, client_id: str, transfer_s: TransferTime | None = None) -> MemoryTransport:
        """Return a transport for one client; it disconnects an earlier client with the same id."""
        client = MemoryTransport(self, client_id, transfer_s or instant, self._link_count)
        self.enter(client)
        self._link_count += 1
        return client

    def enter(self, client: MemoryTransport) -> None:
        """Register a new or returning client; disconnect another one with the same id."""
        old = self._clients.pop(client.client_id, client)
        if old is not client:
            old.push(Disconnected("another client took this id"))
            old.close()
        self._clients[client.client_id] = client

    def publish(self, sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> None:
        """Deliver a frame to all subscribers; an empty retained frame deletes the retained one of its topic."""
        self.on_publish(frame)
        self.accept(self.published(sender, topic, frame, retain=retain))

    def published(self, sender: MemoryTransport, topic: str, frame: Frame, *, retain: bool) -> Publication:
        """Return a frame as it leaves its sender now, with the time on the sender's link."""
        up_s, now_s = sender.transfer_s(len(frame), up=True), self.now_s
        sender.note_transfer(topic, frame, now_s + up_s)
        return Publication(now_s, sender.client_id, topic, frame, retain, up_s)

    def accept(self, given: Publication) -> None:
        """Deliver a frame published at this moment, by a client of this hub or of another one."""
        if given.retain and given.frame:
            frame = given.frame
            self._retained[given.topic] = bytes(frame) if isinstance(frame, ToldFrame) else frame
        elif given.retain:
            self._retained.pop(given.topic, None)
        for client in self._subscribers_of(given.topic):
            if client.online:
                self._send_with_faults(given, client)

    def _subscribers_of(self, topic: str) -> tuple[MemoryTransport, ...]:
        """Return the subscribers, each once, in the order in which they were linked."""
        if topic not in self._subscribers:
            if len(self._subscribers) >= _CACHED_TOPICS:
                self._subscribers.clear()
            found = self._subscriptions.find(topic)
            if len(found) > 1:
                found = sorted(set(found), key=attrgetter("number"))
            self._subscribers[topic] = tuple(found)
        return self._subscribers[topic]

    def subscribe(self, client: MemoryTransport, patterns: Sequence[str], before: Sequence[str] = ()) -> None:
        """Replace the subscriptions of a client: `before` by `patterns`."""
        self._subscribers.clear()
        for pattern in before:
            self._subscriptions.remove(pattern, client)
        for pattern in patterns:
            self._subscriptions.add(pattern, client)

    def send_retained(self, client: MemoryTransport) -> None:
        """Send the retained frames to a client that has come online."""
        for topic, frame in sorted(self._retained.items()):
            if client.wants(topic):
                self._deliver(client, topic, frame, self.now_s + client.transfer_s(len(frame), up=False))

    def drop_link(self, client_id: str, for_s: float) -> None:
        """Break a client's connection for `for_s` seconds (without a clock, briefly), and publish its will."""
        client = self._clients[client_id]
        if not client.online:
            return
        client.push(Disconnected("the link was lost"))
        self._take_offline(client)
        if self.clock is None:
            client.reconnect()
        else:
            self.clock.at(self.clock.now_s + for_s, client.reconnect)

    def restart(self, for_s: float) -> None:
        """Stop the broker for `for_s` seconds: all clients lose their connection, and retained frames are kept.

        No will is published.  Does nothing without a clock.
        """
        if self.clock is None or self.down:
            return
        self.down = True
        for client in self._clients.values():
            if client.online:
                client.online = False
                client.push(Disconnected("the broker went away"))
        self.schedule_restart(self.clock.now_s + for_s, self._restarted)

    def schedule_restart(self, time_s: float, restarted: Callable[[], None]) -> None:
        """Call `restarted` when the broker is up again."""
        if self.clock is not None:
            self.clock.at(time_s, restarted)

    def _restarted(self) -> None:
        self.down = False
        for client in list(self._clients.values()):
            client.reconnect()

    def cut_power(self, client_id: str) -> None:
        """Remove a client that has lost its power, and publish its will."""
        client = self._clients.pop(client_id)
        client.on_event = lambda: None
        self._take_offline(client)
        client.close()

    def _take_offline(self, client: MemoryTransport) -> None:
        was_online, client.online = client.online, False
        if was_online and client.will is not None:
            self.publish(client, client.will.topic, client.will.frame, retain=True)

    def _send_with_faults(self, given: Publication, client: MemoryTransport) -> None:
        faults, topic, frame = self.faults, given.topic, given.frame
        if faults is NO_FAULTS:
            transfer_s = given.up_s + client.transfer_s(len(frame), up=False)
            self._deliver(client, topic, frame, self._in_order_s(given.sender, client, transfer_s))
            return
        cut, lost, doubled, delayed, *shares = self._draws.draw(client.client_id, topic, bytes(frame))
        if cut < faults.disconnect:
            self.fault_counts["disconnect"] += 1
            self.drop_link(client.client_id, faults.disconnect_s)
            return
        if lost < faults.drop:
            self.fault_counts["drop"] += 1
            return
        twice, held = doubled < faults.duplicate, delayed < faults.delay
        self.fault_counts.update(duplicate=twice, delay=held)
        for share in shares if twice else shares[:1]:
            transfer_s = given.up_s + client.transfer_s(len(frame), up=False)
            held_s = self.now_s + transfer_s + share * faults.delay_s
            arrival_s = held_s if held else self._in_order_s(given.sender, client, transfer_s)
            self._deliver(client, topic, frame, arrival_s)

    def _in_order_s(self, sender_id: str, client: MemoryTransport, transfer_s: float) -> float:
        """Return the arrival time of a frame, which never overtakes an earlier one between the same two clients."""
        pair, now_s = (sender_id, client.number), self.now_s
        if self._arrivals_s and now_s > self._latest_s:
            self._arrivals_s = {}
        arrival_s, earlier_s = now_s + transfer_s, self._arrivals_s.get(pair, 0.0)
        if arrival_s < earlier_s:
            return earlier_s
        self._arrivals_s[pair] = arrival_s
        self._latest_s = max(self._latest_s, arrival_s)
        return arrival_s

    @property
    def now_s(self) -> float:
        """The time of the clock, or 0 without one."""
        return self.clock.now_s if self.clock else 0.0

    def _deliver(self, client: MemoryTransport, topic: str, frame: Frame, arrival_s: float) -> None:
        if self.clock is None:
            client.push(Incoming(topic, bytes(frame)))
        else:
            self.clock.at(arrival_s, partial(client.arrive, Incoming(topic, frame)))


class MemoryTransport:
    """One client of a Hub.  A large fleet has many that wait, so it keeps little for them."""

    __slots__ = (
        "_closed",
        "_connect_called",
        "_hub",
        "_inbox",
        "_subscriptions",
        "_transfers",
        "client_id",
        "muted",
        "number",
        "on_event",
        "online",
        "transfer_s",
        "will",
    )

    def __init__(self, hub: Hub, client_id: str, transfer_s: TransferTime, number: int) -> None:
        """number: the number of clients linked to the hub before."""
        self._hub, self.client_id, self.transfer_s, self.number = hub, client_id, transfer_s, number
        self._subscriptions: tuple[str, ...] = ()
        self._inbox: deque[TransportEvent] | None = None
        """What came, or None: an empty deque takes 760 bytes."""
        self.will: LastWill | None = None
        self.online = False
        self._connect_called, self._closed = False, False
        self._transfers: dict[str, tuple[bytes, int, float]] | None = None
        """By topic, the long frame that this client sent last: its header, its length, and until when its link is busy
        with it (s)."""
        self.on_event: Callable[[], None] = _nothing
        """Called when there is an event to poll; a simulator wakes its participants with it."""
        self.muted = False
        """Whether `connect` and `send` do nothing, because a participant only repeats what was done before."""

    def connect(self, subscriptions: Sequence[str], will: LastWill | None = None) -> None:
        """Connect at once, or when the hub is up again.  May be called again after `close`."""
        if self.muted:
            return
        if self._closed:
            self._closed = False
            self._inbox = None
            self._hub.enter(self)
        self._hub.subscribe(self, subscriptions, self._subscriptions)
        self._subscriptions, self.will = tuple(subscriptions), will
        self._connect_called = True
        self.reconnect()

    def reconnect(self) -> None:
        """Go online, unless the hub is down or this transport was closed or never connected."""
        if self._closed or self.online or self._hub.down or not self._connect_called:
            return
        self.online = True
        self._transfers = None
        self.push(_CONNECTED)
        self._hub.send_retained(self)

    def send(self, topic: str, frame: Frame, *, retain: bool = False, answered: bool = False) -> None:
        """Publish a frame, or drop it while offline.  Raises LocalProtocolError for other types than bytes."""
        del answered  # there is no broker that could acknowledge it
        if not isinstance(frame, (bytes, FrameParts)):
            raise LocalProtocolError(f"{topic}: a frame is bytes, not {type(frame).__name__}")
        if self.online and not self.muted and not self._transfers_already(topic, frame):
            self._hub.publish(self, topic, frame, retain=retain)

    def note_transfer(self, topic: str, frame: Frame, until_s: float) -> None:
        """Note that the link is busy with a frame."""
        if len(frame) > CHUNK_BYTES and until_s > self._hub.now_s:
            self._transfers = self._transfers or {}
            self._transfers[topic] = beginning(frame, HEADER_BYTES), len(frame), until_s

    def _transfers_already(self, topic: str, frame: Frame) -> bool:
        """Whether the link is still busy with this very frame."""
        if self._hub.clock is None or not self._transfers or topic not in self._transfers:
            return False
        header, length, until_s = self._transfers[topic]
        return self._hub.now_s < until_s and length == len(frame) and header == beginning(frame, HEADER_BYTES)

    def accept_up_to(self, frame_bytes: int) -> None:
        """No-op: frames are never in chunks here, and decoding checks their length."""

    def screen_with(self, screen: Screen) -> None:
        """No-op: a frame costs nothing here before it is polled, and simulated devices do not flood."""

    def poll(self, timeout_s: float) -> TransportEvent | None:
        """Return the next event, or None if none occurs within `timeout_s` seconds of real time."""
        if self._inbox or timeout_s <= 0:
            return self._next()
        end_s = time.monotonic() + timeout_s
        while not self._inbox:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return None
            time.sleep(min(left_s, 0.001))
        return self._next()

    def _next(self) -> TransportEvent | None:
        if not self._inbox:
            self._inbox = None
            return None
        return self._inbox.popleft()

    def close(self) -> None:
        """Go offline until `connect` is called again, and end the subscriptions."""
        self.online, self._closed = False, True
        self._hub.subscribe(self, (), self._subscriptions)
        self._subscriptions = ()

    def wants(self, topic: str) -> bool:
        """Whether a frame on this topic would reach this client now."""
        return self.online and any(topics.matches(pattern, topic) for pattern in self._subscriptions)

    def arrive(self, event: Incoming) -> None:
        """Deliver a frame after its transfer time, unless this client is offline by then."""
        if self.online:
            self.push(event)

    def push(self, event: TransportEvent) -> None:
        """Queue an event for `poll`."""
        if self._inbox is None:
            self._inbox = deque()
        self._inbox.append(event)
        self.on_event()

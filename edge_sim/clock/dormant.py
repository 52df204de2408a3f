"""A device without work: it says hello, is welcomed and waits, without an agent, a model or samples ready.

In a large fleet most devices are in this state most of the time.  Their messages follow from those of an awake device
of their kind, because two of a kind differ only in their names and their numbers of samples.  If an event needs more,
the device wakes: an agent is built and takes the same events again while its transport is muted.  Its state is then bit
for bit that of a device that was awake from the start.

A device that has had work falls asleep between two rounds: its store and its session are then all that it needs.  In a
resumed run such a device begins asleep: it joins again with the session that its store gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeAlias, cast

from edge_sdk.device.joining import hello
from edge_sdk.device.link.uplink import Uplink
from edge_sdk.device.participant import Participant
from edge_sdk.device.recovery import last_welcome
from edge_sdk.device.session import (
    BEFORE_FIRST,
    CoordinatorSeen,
    LinkDown,
    LinkUp,
    SayHello,
    SessionEvent,
    SessionPhase,
    SessionState,
    SessionTick,
    SessionTransition,
    Welcomed,
    advance_session,
    session_due_s,
)
from edge_sdk.device.store import MemoryStore, Store
from edge_sdk.device.training.workbench import MAX_DISCLOSED_CLASSES
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol import topics
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Envelope, Stamp
from edge_sdk.protocol.frames.frame_parts import Frame, ToldFrame
from edge_sdk.protocol.messages import CoordinatorStatus, Hello, Message, Welcome
from edge_sdk.transport.base import Connected, Disconnected, Incoming, TransportEvent
from edge_sdk.transport.memory.hub import MemoryTransport
from edge_sim.fleet.fleet import Device, Kit

_FIRST = SessionState()
EXAMPLES = 2
"""Awake devices of each kind; their messages determine those of the others."""
BOOT_EPOCH = 1
"""A dormant device is in its first start, which is also the first one after a checkpoint."""


class AwakeDevice(Protocol):
    """The interface of a device whose messages determine those of others of its kind."""

    device: Device

    @property
    def participant(self) -> Participant:
        """Its present participant."""


_Kind: TypeAlias = tuple[object, ...]


class DormantKinds:
    """The kinds of devices of a fleet, each with its awake examples."""

    def __init__(self) -> None:
        self._awake: dict[_Kind, list[AwakeDevice]] = {}
        self._alike: dict[_Kind, bool] = {}
        """Whether the examples of a kind send the same, except for names and numbers of samples."""
        self._said: dict[_Kind, KindsWords] = {}

    def add(self, device: AwakeDevice) -> None:
        """Note an awake device."""
        kind = _kind(device.device)
        if kind is not None and len(awake := self._awake.setdefault(kind, [])) < EXAMPLES:
            awake.append(device)

    def is_example(self, device: AwakeDevice) -> bool:
        """Whether this device is an example of its kind, so that it must not sleep."""
        return device in self._awake.get(_kind(device.device) or (), ())

    def words(self, device: Device) -> KindsWords | None:
        """Return the messages of this device's kind, or None if the device must be awake from the start."""
        kind = _kind(device)
        awake = self._awake.get(kind, []) if kind is not None else []
        if kind is None or len(awake) < EXAMPLES:
            return None
        if kind not in self._alike:
            plain = [_without_data(hello(each.participant.context)) for each in awake]
            self._alike[kind] = plain[0] == plain[1]
            self._said[kind] = KindsWords(awake[0])
        words = self._said[kind]
        return words if self._alike[kind] and device.held.counts.train >= words.least_batch else None


class KindsWords:
    """The messages and the state of the dormant devices of a kind, computed once."""

    def __init__(self, example: AwakeDevice) -> None:
        context = example.participant.context
        self._example = example
        self.least_batch = context.bench.model.spec.least_batch
        self._hello = hello(context)
        self.federation = self._hello.federation
        self._discloses = context.bench.discloses_classes
        self._frames = codec.Circular(self._hello, own=_OWN)
        self._believed: Welcome | None = None
        """The last Welcome that equals the example's, except for device, number and epoch."""

    def hello(self, device: Device) -> Hello:
        """Return a device's Hello: its example's, with its own name and numbers of samples."""
        held, kit = device.held, device.kit
        discloses = self._discloses and kit.classes <= MAX_DISCLOSED_CLASSES
        return replace(
            self._hello,
            device=kit.id,
            samples=held.counts.train,
            class_counts=held.class_counts(kit.classes) if discloses else (),
            test_samples=held.counts.local_test,
        )

    def frame(self, device: Device, stamp: Stamp) -> Frame:
        """Return the frame of a device's Hello."""
        return self._frames.told(self.hello(device), stamp, _OWN)

    def believed(self, welcome: Welcome) -> Welcome | None:
        """Return the example's Welcome if it equals this one and the example had joined with it at once, else None."""
        context = self._example.participant.context
        joined, phase = context.membership, context.session.phase
        if joined is None or phase in (SessionPhase.JOINING, SessionPhase.FETCHING, SessionPhase.REFUSED):
            return None
        theirs = joined.welcome
        if self._believed is None or welcome.spec is not self._believed.spec:
            if welcome.spec != theirs.spec:
                return None
            self._believed = welcome
        like = replace(welcome, device=theirs.device, number=theirs.number, epoch=theirs.epoch, spec=theirs.spec)
        return theirs if like == theirs else None


def _kind(device: Device) -> _Kind | None:
    """Return the properties that devices of a kind share, or None if this device belongs to no kind.

    The user's own models may differ from device to device, and a privacy budget counts what a device releases.
    """
    kit = device.kit
    if kit.brought or kit.privacy or not device.held.counts.train:
        return None
    return (*_of_kind(kit), device.conditions.byzantine, *device.held.form)


_of_kind = attrgetter(*(name for name in Kit.__slots__ if name not in {"id", "number", "seed", "proxy_seed"}))
"""The fields of a kit in which two devices of a kind agree."""


def _without_data(said: Hello) -> Hello:
    return replace(said, device="_", samples=0, class_counts=(), test_samples=0)


_OWN = ("samples", "class_counts", "test_samples")
"""The fields of a Hello, beside the device's name, in which two devices of a kind may differ."""


class Happened(NamedTuple):
    """An event that a dormant device has taken, or None for the passing of time, and its time by the device's clock."""

    event: TransportEvent | None
    now_s: float


class WelcomeCame(NamedTuple):
    """A Welcome that a dormant device has taken: equal to its example's, except for device, number and epoch."""

    like: Welcome
    number: int
    epoch: int
    sequence: int
    """The sequence number of its stamp."""
    now_s: float


class KeptAsleep(NamedTuple):
    """The state of a sleeping device that has had work."""

    store: MemoryStore
    session: SessionState
    sent: int
    """The number of frames sent."""


class Resumed(NamedTuple):
    """The state in which a device of a resumed run begins, if it had had work and rested at the checkpoint."""

    store: MemoryStore
    session: SessionState


def resumed_at_rest(store: Store) -> Resumed | None:
    """Return the state in which a device of a resumed run begins, or None if it was at work at the checkpoint.

    The session is that of `Joining.restored_session`, before the closing exchange.
    """
    welcome = last_welcome(store)
    if welcome is None or not isinstance(store, MemoryStore) or not store.up_to_date:
        return None
    done = store.finished()
    if not all(each.receipted for each in done) or (done and done[-1].round >= welcome.spec.rounds):
        return None
    begun = ExchangeId(done[-1].round, done[-1].exchange) if done else BEFORE_FIRST
    store.forget_receipted()
    return Resumed(store, SessionState(epoch=welcome.epoch, run=welcome.run, exchange_id=begun))


class _DormantWill:
    """The will of a dormant device, which is made when its link breaks."""

    __slots__ = ("_federation", "_transport")

    def __init__(self, transport: MemoryTransport, federation: str) -> None:
        self._transport, self._federation = transport, federation

    @property
    def topic(self) -> str:
        """Implement LastWill."""
        return topics.device_status(self._federation, self._transport.client_id)

    @property
    def frame(self) -> bytes:
        """Implement LastWill: a device's will has the first stamp of its start."""
        return _uplink(self._transport, self._federation).will().frame


def _uplink(transport: MemoryTransport, federation: str) -> Uplink:
    return Uplink(transport, federation=federation, device=transport.client_id, boot_epoch=BOOT_EPOCH)


class Dormant:
    """A device without an agent."""

    __slots__ = ("_device", "_happened", "_sent", "_transport", "_uplink", "_words", "left", "resumed", "session")

    def __init__(
        self,
        device: Device,
        words: KindsWords,
        transport: MemoryTransport,
        *,
        before: Participant | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        """before: the device's participant, which rests, or None if it has had no work in this process.

        resumed: its state in a resumed run, or None if it has had no work yet.
        """
        self._device, self._words, self._transport = device, words, transport
        self._happened: tuple[Happened | WelcomeCame, ...] = ()
        self._uplink: Uplink | None = None
        """The uplink of a device that has had work; others make one for each message."""
        self._sent = 0
        """The number of frames sent without it."""
        self.left: KeptAsleep | None = None
        self.resumed = resumed
        if before is None:
            self.session = _FIRST if resumed is None else resumed.session
            return
        self.session, self._uplink, store = before.context.session, before.uplink, before.context.store
        if isinstance(store, MemoryStore):
            self.left = KeptAsleep(store, self.session, self._uplink.sent)

    @property
    def store(self) -> MemoryStore | None:
        """The store on which its agent is built, or None if it has had no work yet."""
        kept = self.left or self.resumed
        return None if kept is None else kept.store

    @property
    def over(self) -> bool:
        """Whether its part in the run has ended."""
        return self.session.phase in (SessionPhase.DONE, SessionPhase.REFUSED)

    def connect(self) -> None:
        """Connect to the broker."""
        transport, federation = self._transport, self._words.federation
        if self._uplink is not None:
            self._uplink.connect()
            return
        self._sent += 1  # the will has this stamp
        subscriptions = topics.device_subscriptions(federation, transport.client_id)
        transport.connect(subscriptions, _DormantWill(transport, federation))

    def next_due_s(self) -> float | None:
        """Return when `tick` next has something to do, in seconds, or None."""
        return session_due_s(self.session)

    def tick(self, now_s: float) -> None:
        """Send an unanswered Hello again, if that is due."""
        due_s = self.next_due_s()
        if due_s is not None and now_s >= due_s:
            self._feed(SessionTick(now_s), Happened(None, now_s))

    def handle(self, event: TransportEvent, now_s: float) -> bool:
        """Take an event; returns False, without having changed anything, if the event needs an agent."""
        if isinstance(event, Connected):
            self._say(lambda uplink: uplink.announce("ready"))
            self._feed(LinkUp(now_s), _happened(event, now_s))
        elif isinstance(event, Disconnected) and not event.final and not event.taken_over:
            self._feed(LinkDown(), _happened(event, now_s))
        elif isinstance(event, Incoming) and (envelope := _envelope(event.frame)) is not None:
            message = envelope.message
            if isinstance(message, Welcome):
                return self._welcomed(event, message, envelope.stamp, now_s)
            seen = self._seen(message, now_s)
            if seen is None:
                return False
            self._feed(seen, _happened(event, now_s))
        else:
            return False
        return True

    def _welcomed(self, event: Incoming, welcome: Welcome, stamp: Stamp, now_s: float) -> bool:
        """Take a Welcome for this device, if its example joined by an equal one with nothing else to do."""
        if self.session.phase is not SessionPhase.JOINING and welcome.run != self.session.run:
            return False
        like = self._words.believed(welcome) if welcome.device == self._device.kit.id else None
        if like is None:
            return False
        came = WelcomeCame(like, welcome.number, welcome.epoch, stamp.sequence, now_s)
        repeats = stamp.boot_epoch == welcome.epoch and event.topic == self._welcome_topic
        self._feed(Welcomed(welcome.epoch, now_s, run=welcome.run), came if repeats else Happened(event, now_s))
        return True

    def _seen(self, message: Message, now_s: float) -> CoordinatorSeen | None:
        """Return the session's event for a message, or None if an agent has to read it."""
        if not isinstance(message, CoordinatorStatus) or message.federation != self._words.federation:
            return None
        over, joining = message.state in ("finished", "failed"), self.session.phase is SessionPhase.JOINING
        if message.state == "lost" or (over and joining):
            return None
        reason = message.reason if message.state == "failed" else ""
        return CoordinatorSeen(message.epoch, over, reason, now_s, message.run or b"", message.greet)

    def happened(self) -> Iterator[Happened]:
        """Yield all events so far, for the agent."""
        for each in self._happened:
            yield each if isinstance(each, Happened) else Happened(self._welcome(each), each.now_s)

    @property
    def _welcome_topic(self) -> str:
        return topics.down(self._words.federation, self._transport.client_id, "join")

    def _welcome(self, came: WelcomeCame) -> Incoming:
        """Return a Welcome as it arrived."""
        message = replace(came.like, device=self._transport.client_id, number=came.number, epoch=came.epoch)
        return Incoming(self._welcome_topic, codec.encode(message, Stamp(came.epoch, came.sequence)))

    def agrees_with(self, participant: Participant) -> bool:
        """Whether a participant that has taken the same events has the same session and sends the same Hello."""
        return participant.context.session == self.session and hello(participant.context) == self._words.hello(
            self._device
        )

    def _feed(self, event: SessionEvent, happened: Happened | WelcomeCame) -> None:
        self._happened += (happened,)
        self.session, commands = _advanced(self.session, event)
        for command in commands:
            if isinstance(command, SayHello):
                self._say(lambda uplink: uplink.tell(partial(self._words.frame, self._device)))

    def _say(self, said: Callable[[Uplink], None]) -> None:
        """Send a message; a device that has had no work keeps only the number of its frames."""
        if self._uplink is not None:
            said(self._uplink)
            return
        uplink = _uplink(self._transport, self._words.federation)
        uplink.sent = self._sent
        said(uplink)
        self._sent = uplink.sent


@lru_cache(maxsize=256)
def _advanced(state: SessionState, event: SessionEvent) -> SessionTransition:
    """Return the result of `advance_session`; many devices are in one state, and share the next one."""
    return advance_session(state, event)


@lru_cache(maxsize=64)
def _happened(event: TransportEvent, now_s: float) -> Happened:
    """Return a Happened; many devices take the same events at the same time, and share them."""
    return Happened(event, now_s)


def _envelope(frame: bytes) -> Envelope | None:
    """Return the message in a frame, or None if it cannot be decoded."""
    return cast("Envelope", frame.envelope) if isinstance(frame, ToldFrame) else _decoded(frame)


@lru_cache(maxsize=1)
def _decoded(frame: bytes) -> Envelope | None:
    """Decode a frame; the coordinator's status is the same one for all."""
    try:
        return codec.decode(frame)
    except RemoteProtocolError:
        return None

"""A device without work: it says hello, is welcomed and waits, without an agent, a model or samples ready.

In a large fleet most devices are in this state most of the time.  What such a device sends follows from what an awake
device of its kind sends, because two of a kind differ only in their names and their numbers of samples.  Where anything
comes that needs more, the device wakes: an agent is built and takes the same events again while its transport is muted.
It then has the state, to the bit, of a device that was awake from the start.

A device that has had work falls asleep between two rounds: its store and its session are then all that it needs.  In a
resumed run such a device begins asleep: it joins again with the session that its store gives.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeAlias

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
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.frames.frame_parts import Frame, FrameParts, ToldFrame
from edge_sdk.protocol.messages import CoordinatorStatus, Hello, Message, Welcome
from edge_sdk.transport.base import Connected, Disconnected, Incoming, TransportEvent
from edge_sdk.transport.memory.hub import MemoryTransport
from edge_sim.fleet.fleet import Device, Kit

EXAMPLES = 2
"""Awake devices of a kind that show what the others of it send."""
BOOT_EPOCH = 1
"""A dormant device is in its first start, which is also the first one after a checkpoint."""


class AwakeDevice(Protocol):
    """The interface of a device that shows what others of its kind send."""

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
        """Whether the examples of a kind send the same but for names and numbers of samples."""
        self._said: dict[_Kind, KindsWords] = {}

    def add(self, device: AwakeDevice) -> None:
        """Note an awake device."""
        kind = _kind(device.device)
        if kind is not None and len(awake := self._awake.setdefault(kind, [])) < EXAMPLES:
            awake.append(device)

    def is_example(self, device: AwakeDevice) -> bool:
        """Whether this device shows what others of its kind send, so that it must not sleep."""
        return device in self._awake.get(_kind(device.device) or (), ())

    def words(self, device: Device) -> KindsWords | None:
        """Return what a device of this kind says, or None if this device must be awake from the start."""
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
        self._discloses = context.bench.discloses_classes
        self._frames = codec.Circular(self._hello, own=_OWN)
        self._end = b""
        self._believed: Welcome | None = None
        """The last Welcome that equals the example's but for device, number and epoch."""

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

    def kept(self, frame: bytes) -> Frame:
        """Return a Welcome's frame for later; its end, which has the settings, is in memory once."""
        if len(frame) <= _FRONT_BYTES:
            return bytes(frame)
        if not self._end:
            self._end = frame[_FRONT_BYTES:]
        front = frame[: len(frame) - len(self._end)]
        return FrameParts(front, self._end) if frame.endswith(self._end) else bytes(frame)

    def believes(self, welcome: Welcome) -> bool:
        """Whether the example has joined by such a Welcome, without more to do."""
        context = self._example.participant.context
        joined, phase = context.membership, context.session.phase
        if joined is None or phase in (SessionPhase.JOINING, SessionPhase.FETCHING, SessionPhase.REFUSED):
            return False
        theirs = joined.welcome
        if self._believed is None or welcome.spec is not self._believed.spec:
            if welcome.spec != theirs.spec:
                return False
            self._believed = welcome
        like = replace(welcome, device=theirs.device, number=theirs.number, epoch=theirs.epoch, spec=theirs.spec)
        return like == theirs


def _kind(device: Device) -> _Kind | None:
    """Return what two devices of a kind have in common, or None where a device is of no kind.

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


_FRONT_BYTES = 256
"""Maximum bytes of a Welcome's frame before its settings: header, federation, device and number."""
_OWN = ("samples", "class_counts", "test_samples")
"""The fields of a Hello, beside the device's name, in which two devices of a kind may differ."""


class Happened(NamedTuple):
    """An event that a dormant device has taken, or None for the passing of time, and when (s, by its own clock)."""

    event: TransportEvent | None
    now_s: float


class KeptAsleep(NamedTuple):
    """The state of a sleeping device that has had work."""

    store: MemoryStore
    session: SessionState
    sent: int
    """The number of frames sent."""


class Resumed(NamedTuple):
    """What a device of a resumed run begins with, which had had work and rested at the checkpoint."""

    store: MemoryStore
    session: SessionState


def resumed_at_rest(store: Store) -> Resumed | None:
    """Return what a device of a resumed run begins with, or None if it was at work at the checkpoint.

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


class Dormant:
    """A device without an agent."""

    __slots__ = ("_device", "_federation", "_uplink", "_words", "happened", "left", "resumed", "session")

    def __init__(
        self,
        device: Device,
        words: KindsWords,
        transport: MemoryTransport,
        federation: str,
        *,
        before: Participant | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        """before: the device's participant, which rests, or None if it has had no work in this process.

        resumed: its state in a resumed run, or None if it has had no work yet.
        """
        self._device, self._words, self._federation = device, words, federation
        self.happened: list[Happened] = []
        """All that came so far, for the agent."""
        self.left: KeptAsleep | None = None
        self.resumed = resumed
        if before is None:
            self.session = SessionState() if resumed is None else resumed.session
            self._uplink = Uplink(transport, federation=federation, device=device.kit.id, boot_epoch=BOOT_EPOCH)
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
        self._uplink.connect()

    def next_due_s(self) -> float | None:
        """Return when `tick` next has something to do, in seconds, or None."""
        return session_due_s(self.session)

    def tick(self, now_s: float) -> None:
        """Do what is due now: a Hello that had no answer is sent again."""
        due_s = self.next_due_s()
        if due_s is not None and now_s >= due_s:
            self._feed(SessionTick(now_s), Happened(None, now_s))

    def handle(self, event: TransportEvent, now_s: float) -> bool:
        """Take an event; returns False, without having changed anything, if the event needs an agent."""
        happened = Happened(event, now_s)
        if isinstance(event, Connected):
            self._uplink.announce("ready")
            self._feed(LinkUp(now_s), happened)
        elif isinstance(event, Disconnected) and not event.final and not event.taken_over:
            self._feed(LinkDown(), happened)
        elif isinstance(event, Incoming) and (found := self._understood(event, now_s)) is not None:
            if isinstance(found, Welcomed):
                happened = Happened(Incoming(event.topic, self._words.kept(event.frame)), now_s)
            self._feed(found, happened)
        else:
            return False
        return True

    def _understood(self, incoming: Incoming, now_s: float) -> SessionEvent | None:
        """Return what a frame means for the session, or None if an agent has to read it."""
        message = _message(incoming.frame)
        if isinstance(message, Welcome) and self._is_welcome(message):
            return Welcomed(message.epoch, now_s, run=message.run)
        if not isinstance(message, CoordinatorStatus) or message.federation != self._federation:
            return None
        over, joining = message.state in ("finished", "failed"), self.session.phase is SessionPhase.JOINING
        if message.state == "lost" or (over and joining):
            return None
        reason = message.reason if message.state == "failed" else ""
        return CoordinatorSeen(message.epoch, over, reason, now_s, message.run or b"", message.greet)

    def _is_welcome(self, welcome: Welcome) -> bool:
        """Whether this Welcome is for this device, and one by which its example has joined without more to do."""
        if self.session.phase is not SessionPhase.JOINING and welcome.run != self.session.run:
            return False
        return welcome.device == self._device.kit.id and self._words.believes(welcome)

    def agrees_with(self, participant: Participant) -> bool:
        """Whether a participant that has taken the same events is where this device is, and says the same."""
        return participant.context.session == self.session and hello(participant.context) == self._words.hello(
            self._device
        )

    def _feed(self, event: SessionEvent, happened: Happened) -> None:
        self.happened.append(happened)
        self.session, commands = _advanced(self.session, event)
        for command in commands:
            if isinstance(command, SayHello):
                self._uplink.tell(partial(self._words.frame, self._device))


@lru_cache(maxsize=256)
def _advanced(state: SessionState, event: SessionEvent) -> SessionTransition:
    """Return what `advance_session` does; many devices are at one place, and share the state that follows."""
    return advance_session(state, event)


def _message(frame: bytes) -> Message | None:
    """Return the message in a frame, or None if it has none."""
    return codec.decode(frame).message if isinstance(frame, ToldFrame) else _decoded(frame)


@lru_cache(maxsize=1)
def _decoded(frame: bytes) -> Message | None:
    """Decode a frame; the coordinator's status is the same one for all."""
    try:
        return codec.decode(frame).message
    except RemoteProtocolError:
        return None

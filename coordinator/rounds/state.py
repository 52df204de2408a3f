"""The types of the rounds: the state of a run, the events that change it, and the commands that follow.

All of them are immutable values; the rules that use them are in machine.py.  An `upload` is any object that the caller
gave with Received: the rounds pass it on and never look into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from coordinator.rounds.answer_times import AnswerTimes
from edge_sdk.protocol.exchange_id import FIRST, ExchangeId


class RoundPhase(str, Enum):
    """The phase of a run."""

    GATHERING = "gathering"
    COLLECTING = "collecting"
    FINISHING = "finishing"
    RESTING = "resting"
    """Between two rounds, or two attempts at one, until the pace lets the next one open."""
    DONE = "done"
    FAILED = "failed"
    DRAINED = "drained"
    """An operator stopped the run; a restart resumes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPolicy:
    """The limits that decide when a run continues and when it fails."""

    expected: int
    """The number of devices that this run is planned for."""
    quorum: int
    """The minimum number of uploads to close an exchange."""
    most_devices: int = 0
    """Without a roster: the maximum number of devices, or 0 for the expected number."""
    rounds: int
    exchanges: int
    """The number of exchanges in a round."""
    deadline_s: float = 60.0
    """The time in seconds after which an exchange closes if it has a quorum."""
    retry_s: float = 2.0
    """The first wait in seconds before a silent device is invited again; it doubles up to the deadline.  A device that
    is known to compute longer than that is left out (`AnswerTimes.overdue_at_s`)."""
    join_grace_s: float = 5.0
    """The wait in seconds for the remaining devices once a quorum has joined."""
    patience: int = 3
    """Deadlines that an exchange may pass without a quorum before the run fails."""
    participants: int = 0
    """The number of devices that a round invites and waits for, or 0 for all devices."""
    over_select: bool = False
    """Whether to invite more devices than `participants`, by the measured rate of answers; the first answers count."""
    seed: int = 0
    """The seed for the draw of participants."""
    closed_with: tuple[str, ...] = ()
    """The devices that the closing exchange invites, or empty for all: a simulation of very many measures a sample."""
    stop_at_bytes: int = 0
    """End the run after the round in which the bytes of all devices, both ways, reach this; 0 for no limit."""
    stop_at_accuracy: float = 0.0
    """End the run after the round in which the mean accuracy reaches this; 0 for no limit."""
    open: bool = False
    """Whether any device may join.  Then deadlines count towards `patience` only once an upload has come: otherwise a
    few strangers that only say Hello could end a run before the intended devices join."""
    control: float = 0.0
    """The share of the devices that train alone, so that the others can be compared with them; 0 for none."""
    control_rounds: int = 50
    """The number of rounds after which other devices train alone."""
    paced: bool = False
    """Whether the caller decides when a round opens (`Rest`)."""
    forever: bool = False
    """Whether the rounds have no end: a round that cannot be filled is skipped (`Skip`) where others would fail."""
    buffer: int = 0
    """The uploads, from any versions, after which a version is aggregated (buffered.py); 0 for rounds."""
    busy: int = 0
    """With a buffer: the number of devices that compute at any time, or 0 for all."""
    max_staleness: int = 0
    """With a buffer: the maximum staleness of an upload."""
    first_ageing: int = 0
    """With a buffer: the first version whose uploads may count in later buffers."""


class GivenWork(NamedTuple):
    """A device's work, if versions are aggregated from buffers."""

    version: int
    at_s: float
    """When it was asked (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """The whole state of the rounds between two events."""

    policy: RoundPolicy
    phase: RoundPhase = RoundPhase.GATHERING
    place: ExchangeId = FIRST
    members: AbstractSet[str] = frozenset()
    """Devices that joined and have not left: a set that grows by one at constant cost, or a frozenset."""
    away: frozenset[str] = frozenset()
    """Members that missed a deadline or were reported lost, and have sent nothing since."""
    gone: frozenset[str] = frozenset()
    """Devices that were refused, that left, or that an operator took out."""
    draining: frozenset[str] = frozenset()
    """Members that an operator takes out: this round is their last."""
    stopping: bool = False
    """Whether an operator stops the run at the end of this round."""
    invited: frozenset[str] = frozenset()
    earlier: frozenset[str] = frozenset()
    """Devices that may have been invited to this exchange before it was skipped, before the coordinator's restart, or
    before they left and came back: their uploads still count."""
    folded: AbstractSet[str] = frozenset()
    """Devices whose uploads for this exchange are durable."""
    withheld: frozenset[str] = frozenset()
    """Devices that withheld their upload for this exchange, because their training diverged or failed."""
    declining: frozenset[str] = frozenset()
    """Devices whose owner's policy forbids computing, until they report otherwise."""
    sitting_out: frozenset[str] = frozenset()
    """Devices that have used up their budget for this round."""
    opens_at_s: float | None = None
    """While gathering: when to open without the remaining devices (s), or None before the first quorum."""
    due_s: float = 0.0
    rest_until_s: float = 0.0
    """While resting: when to ask the pace again (s)."""
    resting: str = ""
    """While resting: the reason."""
    retry_at_s: float = 0.0
    retry_wait_s: float = 0.0
    times: AnswerTimes = field(default_factory=AnswerTimes)
    """How long devices take for their answers."""
    misses: int = 0
    unlinked_s: float = 0.0
    """Seconds without a link to the broker since this exchange opened."""
    unrecorded: int | None = None
    """A round whose exchanges are all closed but whose end is not recorded, as after a restart, or None."""
    asked: int = 0
    """Devices asked in the first exchange of a round whose outcome is known, summed over the rounds."""
    answered: int = 0
    """How many of `asked` answered."""
    unheard: frozenset[str] = frozenset()
    """Devices whose answer is not counted yet, because the last round had enough answers before theirs."""
    work: Mapping[str, GivenWork] = field(default_factory=dict)
    """With a buffer: the devices that compute."""
    counted_to: Mapping[str, int] = field(default_factory=dict)
    """With a buffer: the newest version that each device has answered."""
    asked_to: int = -1
    """With a buffer: devices may have been asked for versions up to this one before a restart."""
    ahead: tuple[Persisted, ...] = ()
    """With a buffer: durable uploads that count in the next one."""
    took_s: Mapping[str, float] = field(default_factory=dict)
    """With a buffer: how long each device took for its last answer (s)."""
    reason: str = ""

    @property
    def wanted(self) -> int | None:
        """The number of answers that closes this exchange at once, or None if it waits for all invited devices."""
        return self.policy.buffer or self.policy.participants or None if not self.closing else None

    @property
    def between_rounds(self) -> bool:
        """Whether the run can stop here without losing the uploads of an unfinished round."""
        waiting = self.phase in (RoundPhase.GATHERING, RoundPhase.RESTING)
        gathering = waiting and self.unrecorded is None
        return gathering and not self.place.exchange and not self.folded

    @property
    def closing(self) -> bool:
        """Whether this is the closing exchange."""
        return self.place.round == self.policy.rounds

    def may_answer(self, device: str) -> bool:
        """Whether an upload of this device to this exchange counts."""
        return device in self.invited or (device in self.earlier and device in self.members)

    @property
    def waited_for(self) -> bool:
        """Whether an invited device has not answered.  Comparing sizes suffices: `folded` is a subset of `invited`."""
        return len(self.invited) > len(self.folded) and (not self.declined or bool(self.missing))

    @property
    def missing(self) -> frozenset[str]:
        """Invited devices that have neither uploaded nor declined."""
        return self.invited - self.folded - self.declined

    @property
    def silent(self) -> frozenset[str]:
        """Devices that missed a closing exchange; empty where it closed because it had enough uploads."""
        enough = self.wanted is not None and len(self.folded) >= self.wanted
        return frozenset() if enough else self.missing

    @property
    def declined(self) -> frozenset[str]:
        """Devices that reported that they do not compute now; their uploads still count."""
        return self.declining | self.sitting_out if self.sitting_out else self.declining

    @property
    def waits_for_consent(self) -> bool:
        """Whether this exchange lacks a quorum only because devices decline: they may take part later."""
        willing_or_here = self.folded | (self.declined & self.members)
        return bool(self.declined) and len(willing_or_here) >= self.policy.quorum - len(self.withheld)

    @property
    def stalled(self) -> bool:
        """Whether this exchange can continue only once declining devices take part again."""
        short = self.phase is RoundPhase.COLLECTING and len(self.folded) < self.needed
        return short and not self.missing and self.waits_for_consent

    @property
    def counted(self) -> AbstractSet[str]:
        """Devices that count for a quorum: members, and in the closing exchange also devices that answered and left."""
        return self.members | self.folded if self.closing else self.members

    @property
    def all_here(self) -> bool:
        """Whether a quorum is here and no other device is expected."""
        rest = self.policy.expected - len(self.gone - self.counted) - len(self.counted)
        return rest <= 0 and self.quorum_here

    @property
    def quorum_here(self) -> bool:
        """Whether enough devices are here."""
        return len(self.counted) >= self.policy.quorum

    @property
    def quorum_possible(self) -> bool:
        """Whether enough devices are here, or may still join; rounds without an end always wait for more."""
        return (
            self.quorum_here
            or self.policy.forever
            or self.policy.expected - len(self.gone - self.counted) >= self.policy.quorum
        )

    @property
    def yield_possible(self) -> bool:
        """Whether enough devices may still upload to this exchange; those that withheld theirs cannot."""
        lost = (self.gone - self.counted) | self.withheld
        most = max(len(self.counted - self.withheld), self.policy.expected - len(lost))
        return most >= self.needed

    @property
    def needed(self) -> int:
        """The number of uploads that this exchange needs to close.

        This is the quorum.  If the quorum is all devices, devices that withheld their upload or declined are
        subtracted, so that a device whose training diverged, or that is too hot, does not end the run.  A buffer needs
        one upload at its deadline.
        """
        policy = self.policy
        if policy.buffer and not self.closing:
            return 1
        if self.closing and policy.closed_with:
            return max(1, min(policy.quorum, len(policy.closed_with)) - len(self.withheld))
        if policy.quorum < policy.expected:
            return policy.quorum
        declined = (self.declined & self.members) - self.folded if self.declined else frozenset()
        return max(1, policy.quorum - len(self.withheld | declined))


# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """A device sent a Hello and was admitted."""

    device: str
    now_s: float
    instead_of: str = ""
    """A silent device that gives up its place to this one, or empty."""


@dataclass(frozen=True, slots=True)
class DeviceRefused:
    """A device on the roster was refused, when it joined or when it sent a Hello again."""

    device: str


@dataclass(frozen=True, slots=True)
class Left:
    """A device sent a Bye."""

    device: str
    now_s: float
    replaceable: bool = False
    """Whether another device may join in its place, so that it does not count against the quorum."""


@dataclass(frozen=True, slots=True)
class Drain:
    """An operator takes a device out of the run, or stops the run, at the end of this round."""

    now_s: float
    device: str = ""
    """The device, or empty for the whole run."""


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """An operator cancels a Drain."""

    device: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """The broker reports that a device lost its link; this may be wrong or out of date."""

    device: str


@dataclass(frozen=True, slots=True)
class Received:
    """A valid upload arrived that the ledger does not hold yet."""

    device: str
    place: ExchangeId
    upload: object
    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Withheld:
    """A device reported that it withholds its upload: the round neither waits for it nor counts it."""

    device: str
    place: ExchangeId
    reason: str


@dataclass(frozen=True, slots=True)
class Declined:
    """A device reported that its owner's policy does not allow it to compute now: the round does not wait for it."""

    device: str
    round: int | None
    """The only round affected, or None if it holds until the device is Willing."""
    now_s: float


@dataclass(frozen=True, slots=True)
class Willing:
    """A device that declined reported that it computes again."""

    device: str
    now_s: float


@dataclass(frozen=True, slots=True)
class Persisted:
    """An upload is durable now."""

    device: str
    place: ExchangeId
    upload: object
    now_s: float


@dataclass(frozen=True, slots=True)
class RoundTick:
    """Time passed."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The method has reduced the exchange."""

    now_s: float
    enough: bool = False
    """Whether the run ends with this round, because a budget is spent or a target is reached."""
    void: bool = False
    """Whether the round ends here without a result, because none of its uploads counts."""


@dataclass(frozen=True, slots=True)
class Rested:
    """The pace was asked whether a round may open."""

    now_s: float
    until_s: float | None
    """When to ask again (s), or None if the round opens now."""
    why: str = ""
    """The reason for not opening it."""
    enough: bool = False
    """Whether the run ends: the closing exchange opens instead of a round."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A failure that ends the run."""

    reason: str


RoundEvent: TypeAlias = (
    Joined
    | DeviceRefused
    | Left
    | Drain
    | CancelDrain
    | Lost
    | Received
    | Withheld
    | Declined
    | Willing
    | Persisted
    | RoundTick
    | Finished
    | Rested
    | Broken
)


# -- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Invite:
    """Send these devices the Assign of this place, for the first time or again."""

    devices: tuple[str, ...]
    place: ExchangeId
    left_s: float


@dataclass(frozen=True, slots=True)
class Persist:
    """Make the upload of this device durable, then report Persisted."""

    device: str
    place: ExchangeId
    upload: object


@dataclass(frozen=True, slots=True)
class Fold:
    """The upload counts: add it to the aggregate and send the receipt."""

    device: str
    place: ExchangeId
    upload: object
    answered: bool = False
    """Whether its receipt was sent when it became durable."""


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Send a receipt with this verdict."""

    device: str
    place: ExchangeId
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """Close the exchange with these contributors: let the method finish, then report Finished or Broken."""

    place: ExchangeId
    contributors: tuple[str, ...]
    partial: bool
    """Whether a device that could be invited after a restart did not contribute.

    If so, the contributors must be on record before any device learns the result; otherwise the durable uploads show
    who contributed."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Ask the pace whether the next round may open, then report Rested."""

    place: ExchangeId
    skipped: bool = False
    """Whether it has just been skipped, so that the next attempt is some time away."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Note that this exchange could not be filled: the same round is tried again later."""

    place: ExchangeId
    reason: str
    opened: bool = True
    """Whether devices were invited to it."""


@dataclass(frozen=True, slots=True)
class RoundDone:
    """All exchanges of this round are finished."""

    round: int


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Notify these devices that an operator took them out of the run."""

    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndRun:
    """The run is over; an empty reason is success."""

    reason: str


RoundCommand: TypeAlias = Invite | Persist | Fold | SendReceipt | Reduce | Rest | Skip | RoundDone | Dismiss | EndRun
RoundTransition: TypeAlias = tuple[RoundState, tuple[RoundCommand, ...]]

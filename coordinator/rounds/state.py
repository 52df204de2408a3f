"""The words of the rounds: where a run stands, what can happen to it, and what must then be done.

All of them are values.  What they mean is in machine.py.  Each event and each command carries what it is about.  An
`upload` is whatever the caller gave with Received: the rounds hand it on and never look into it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from edge_sdk.protocol.exchange_id import ExchangeId

FIRST = ExchangeId(0, 0)
"""The exchange with which a run begins."""


class RoundPhase(str, Enum):
    """Where a run is."""

    GATHERING = "gathering"
    COLLECTING = "collecting"
    FINISHING = "finishing"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When to go on and when to give up."""

    expected: int
    """Devices that this run was made for."""
    quorum: int
    """Fewest uploads that an exchange may close with."""
    rounds: int
    exchanges: int
    """Per round."""
    deadline_s: float = 60.0
    """After which an exchange closes with a quorum."""
    retry_s: float = 2.0
    """First wait before a silent device is invited again; doubles up to the deadline."""
    join_grace_s: float = 5.0
    """Wait for the rest once a quorum has joined."""
    patience: int = 3
    """Deadlines that an exchange may miss its quorum before the run ends."""
    participants: int = 0
    """Answers that a round is content with, of as many devices that it asks; 0: it asks everybody."""
    over_select: bool = False
    """Ask for more than `participants`, as the measured share of answers demands; the first ones count."""
    seed: int = 0
    """Of the draw of participants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """All that a coordinator must remember between two events."""

    policy: Policy
    phase: RoundPhase = RoundPhase.GATHERING
    place: ExchangeId = FIRST
    members: frozenset[str] = frozenset()
    """Joined and not left."""
    away: frozenset[str] = frozenset()
    """Members that missed a deadline or were reported lost, until they show up again."""
    gone: frozenset[str] = frozenset()
    """Refused, or left for good."""
    invited: frozenset[str] = frozenset()
    folded: AbstractSet[str] = frozenset()
    """Whose uploads for this exchange are durable."""
    withheld: frozenset[str] = frozenset()
    """Who answered this exchange with nothing, because what it learned diverged."""
    opens_at_s: float | None = None
    """While gathering: when to open without the rest; None: a quorum was not seen yet."""
    due_s: float = 0.0
    retry_at_s: float = 0.0
    retry_wait_s: float = 0.0
    misses: int = 0
    unrecorded: int | None = None
    """A round whose exchanges are all closed, and whose end is not on record: what a restart can find."""
    asked: int = 0
    """Devices of which is known whether they answered the first exchange of a round, each round anew."""
    answered: int = 0
    """How many of them did."""
    unheard: frozenset[str] = frozenset()
    """Of whom it is not known, because the last round had enough answers before theirs."""
    reason: str = ""

    @property
    def wanted(self) -> int | None:
        """Answers after which this exchange closes at once; None: it waits for everybody whom it asked."""
        return self.policy.participants or None if not self.closing else None

    @property
    def closing(self) -> bool:
        """Whether this is the closing exchange."""
        return self.place.round == self.policy.rounds

    @property
    def waited_for(self) -> bool:
        """Whether any upload is not in; whoever is folded was invited."""
        return len(self.invited) > len(self.folded)

    @property
    def missing(self) -> frozenset[str]:
        """Invited devices whose upload is not in."""
        return self.invited - self.folded

    @property
    def counted(self) -> AbstractSet[str]:
        """Whom a quorum can be made of: the members, and in the closing exchange whoever has answered and gone home."""
        return self.members | self.folded if self.closing else self.members

    @property
    def all_here(self) -> bool:
        """Whether a quorum is here and nobody else is expected."""
        rest = self.policy.expected - len(self.gone - self.counted) - len(self.counted)
        return rest <= 0 and self.quorum_here

    @property
    def quorum_here(self) -> bool:
        """Whether enough devices are here."""
        return len(self.counted) >= self.policy.quorum

    @property
    def quorum_possible(self) -> bool:
        """Whether enough devices are here, or may still come."""
        return self.quorum_here or self.policy.expected - len(self.gone - self.counted) >= self.policy.quorum

    @property
    def yield_possible(self) -> bool:
        """Whether, besides those who withheld theirs, enough devices may still give this exchange an upload."""
        lost = (self.gone - self.counted) | self.withheld
        most = max(len(self.counted - self.withheld), self.policy.expected - len(lost))
        return most >= self.needed

    @property
    def needed(self) -> int:
        """Uploads that this exchange cannot close without.

        The quorum; where that is everybody, one device whose learning diverged does not end the run: everybody else.
        """
        policy = self.policy
        return policy.quorum if policy.quorum < policy.expected else max(1, policy.quorum - len(self.withheld))


# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """A device said hello and was found fit."""

    device: str
    now_s: float


@dataclass(frozen=True, slots=True)
class DeviceRefused:
    """A device that the run was made for was refused: when it joined, or when it said hello again."""

    device: str


@dataclass(frozen=True, slots=True)
class Left:
    """A device said bye."""

    device: str
    now_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """The broker reports that a device fell silent: a hint, not the truth."""

    device: str


@dataclass(frozen=True, slots=True)
class Received:
    """A valid upload arrived that the ledger does not hold yet."""

    device: str
    place: ExchangeId
    upload: object


@dataclass(frozen=True, slots=True)
class Withheld:
    """A device answers that it has no upload to give: it need not be waited for, and does not count."""

    device: str
    place: ExchangeId
    reason: str


@dataclass(frozen=True, slots=True)
class Persisted:
    """That upload is durable now."""

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


@dataclass(frozen=True, slots=True)
class Broken:
    """Something without which the run cannot go on."""

    reason: str


RoundEvent: TypeAlias = (
    Joined | DeviceRefused | Left | Lost | Received | Withheld | Persisted | RoundTick | Finished | Broken
)


# -- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Invite:
    """Send these devices the Assign of this place (again)."""

    devices: tuple[str, ...]
    place: ExchangeId
    left_s: float


@dataclass(frozen=True, slots=True)
class Persist:
    """Make the upload of this device durable, then say Persisted."""

    device: str
    place: ExchangeId
    upload: object


@dataclass(frozen=True, slots=True)
class Fold:
    """The upload counts: add it to the aggregate and send the receipt."""

    device: str
    place: ExchangeId
    upload: object


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """Send a receipt with this verdict."""

    device: str
    place: ExchangeId
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """Close the exchange with these contributors: let the method finish, then say Finished or Broken."""

    place: ExchangeId
    contributors: tuple[str, ...]
    partial: bool
    """Closed without some device that could be invited after a restart: must be on record before anybody is told what
    came of it.  Otherwise the uploads themselves say who contributed."""


@dataclass(frozen=True, slots=True)
class RoundDone:
    """All exchanges of this round are finished."""

    round: int


@dataclass(frozen=True, slots=True)
class EndRun:
    """The run is over; an empty reason is success."""

    reason: str


RoundCommand: TypeAlias = Invite | Persist | Fold | SendReceipt | Reduce | RoundDone | EndRun
RoundTransition: TypeAlias = tuple[RoundState, tuple[RoundCommand, ...]]

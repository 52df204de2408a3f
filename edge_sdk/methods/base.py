"""What a method is: one class that holds a paper's both halves, and what all of them have in common.

On the device a method is a generator of requests.  It never touches a model: it yields what it wants done (train on
these samples with this objective; give me logits) and receives the results, so that an agent can stop between batches,
and a simulator may gather the equal requests of many devices into one.

On the coordinator it is a reduction: uploads are added up, in any order and any split, and then give the next state.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import typing
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import EmptyRound, MissingExtra, RemoteProtocolError
from edge_sdk.methods import params as parameters
from edge_sdk.methods.job import Job
from edge_sdk.methods.requests import Evaluate, Fit, Private, Request
from edge_sdk.objectives import CrossEntropy, Objective, Optim
from edge_sdk.objectives.optim import Part
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ClassRows, LogitGradients, Payload, PublicLogits, Slot, Weights
from edge_sdk.protocol.messages import FederationSpec, Scalar
from edge_sdk.protocol.public_batch import batch_digest
from edge_sdk.protocol.schema import tag_of, wire
from edge_sdk.protocol.wires import Exchange
from edge_sdk.reductions import Bag, Contribution

if TYPE_CHECKING:  # of the tools, not of a base install
    from typing_extensions import Self

__all__ = [
    "CAPABILITIES",
    "Caching",
    "Down",
    "Exchange",
    "Method",
    "Nets",
    "NoState",
    "OnDevice",
    "Slot",
    "Stage",
    "Step",
    "Up",
    "check_batch",
    "told",
    "torch_part",
]

P = TypeVar("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M", bound="Method[Any]")

CAPABILITIES = ("predict", "logit-gradients", "features", "head-rows", "weights", "cosine-head")
"""What a model can do: give logits; train on a gradient at its logits; give features; trade the rows of its last
layer; trade all of its weights; compare directions in its last layer."""

Up: TypeAlias = Mapping[str, Payload]
"""Knowledge by role."""
Down: TypeAlias = Mapping[str, Payload | None]
"""Likewise, on its way down; None: there is none yet."""
Stage: TypeAlias = Generator[Request, Any, R]
"""Part of an exchange: requests out, results in, and something to return."""
Step: TypeAlias = Generator[Request, Any, tuple[S, Up]]
"""A whole exchange; it returns the device's new state and what to upload."""


@dataclass(frozen=True, slots=True)
class Caching:
    """Which uploads outlive their round on the coordinator: the newest one of each device, in its slot."""

    first_round: int
    """Uploads of earlier rounds do not fit together, and get no slot."""
    max_age: int = 0
    """Rounds after which a slot whose device stays away is given up; 0: never."""

    def oldest(self, round_: int) -> int:
        """The earliest round whose uploads still count once this one is done."""
        return max(self.first_round, round_ - self.max_age) if self.max_age else self.first_round


@wire("no-state")
@dataclass(frozen=True, slots=True)
class NoState:
    """The state of a method that keeps none."""


@dataclass(eq=False)
class OnDevice(Generic[S]):
    """A device in one exchange, as the stages of a method see it."""

    job: Job
    state: S
    """What the method keeps on this device; what stands here at the end is kept."""
    down: Up
    """What came, by role."""
    kept: Any = None
    """What a stage leaves to a later one of this exchange."""

    def received(self, kind: type[T], role: str) -> T | None:
        """What came in a role, a payload of `kind`; None: nothing."""
        payload = self.down.get(role)
        return payload if isinstance(payload, kind) else None

    @property
    def batches(self) -> Private:
        """The mini-batches of the round, of the device's own samples."""
        return self.job.private_batches(self.job.local_steps)

    def fit(self, objective: Objective, *, part: Part = "all") -> Stage[None]:
        """Train on them, and let go of what came.

        That is in the model or in the objective by now, and there may be no room for another copy.
        """
        self.down = {}
        if self.job.local_steps:
            yield Fit(source=self.batches, objective=objective, optim=self.job.optim, part=part)


class Nets(Protocol):
    """Models of the devices' architectures, on the coordinator, and public samples that they see there."""

    @property
    def count(self) -> int:
        """How many public samples there are."""

    def check(self, layouts: Iterable[bytes]) -> None:
        """Raise UsageError unless there is a model of each layout."""

    def logits(self, weights: Weights) -> Floats:
        """What the model with these weights says of all public samples: (n, k)."""

    def fitted(self, weights: Weights, indices: Ints, objective: Objective, optim: Optim) -> Weights:
        """The weights after a step on each of these mini-batches of public samples, (steps, b)."""


class Method(Generic[P]):
    """A method under certain parameters.

    A method's file derives a class from `Method[Params]`, says in its attributes what the method is, and overrides the
    stages that its paper describes: `receive`, `measure`, `train`, `share` and `personalise` on the device; `begin`,
    `down`, `down_to` and `reduce` on the coordinator.
    """

    name: str
    """As it is registered."""
    title: str
    citation: str
    exchanges: tuple[Exchange, ...] = (Exchange(),)
    """What travels in the exchanges of a round; their number is constant over a run."""
    closing: Exchange = Exchange()
    """What comes after the last round; its upload carries metrics only."""
    result: Literal["own", "shared"] = "own"
    """The model that is measured: a device's own, as it was trained last; or the shared one, as it arrives."""
    needs: frozenset[str] = frozenset({"predict", "logit-gradients"})
    """Capabilities that a model must have to learn."""
    teaches: frozenset[str] = frozenset()
    """Capabilities that are enough to contribute without learning; empty: nobody may only teach."""
    terms: frozenset[str] = frozenset({"cross-entropy"})
    """Loss terms that a learning model must minimise."""
    needs_public_set: bool = False
    same_width: bool = False
    """Whether all models must have the federation's feature_dim: rows of other widths cannot be averaged (W12)."""
    holders_wanted: int = 0
    """Holders that a class should have in a round; with fewer its row follows the last few devices (W3).
    1: any will do; 0: no rows of classes travel."""
    shares_weights: bool = False
    same_layout: bool = True
    """Where weights are shared: whether all models must have one layout, or each layout is averaged by itself."""
    runs_nets: bool = False
    """Whether the coordinator runs models of the devices' architectures: see `nets`."""
    lock_step: bool = False
    """Every exchange waits for every device: a device that misses many holds up or misses out."""
    caching: Caching | None = None
    """The slots that the coordinator keeps, of a method with one exchange; None: uploads go with their round."""
    discloses: str
    """What an upload tells the coordinator about the device's data."""
    cautions: tuple[str, ...] = ()
    """When `warnings` has something to say, as `W0: condition`: for whoever chooses a method."""
    device_state: type = NoState
    """What the method keeps on a device: a @wire dataclass with defaults, stored at round starts, never sent."""
    reduction: type = Bag
    """What uploads are added up in: an Aggregate."""
    params_type: type[P]
    """The dataclass of its parameters; told by `Method[Params]`."""

    def __init_subclass__(cls) -> None:
        for base in vars(cls).get("__orig_bases__", ()):
            for argument in typing.get_args(base):
                if isinstance(argument, type) and dataclasses.is_dataclass(argument):
                    cls.params_type = typing.cast("type[P]", argument)

    def __init__(self, params: P | None = None) -> None:
        """params: None for the defaults."""
        self.params: P = self.params_type() if params is None else params
        self.nets: Nets | None = None
        """Given to a coordinator's method that runs nets, before the first round."""

    # -- parameters -------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, table: Mapping[str, Scalar]) -> P:
        """The parameters in a table.  Raises UsageError for an unknown key, a missing one, or an impossible value."""
        return parameters.read(cls.params_type, table, cls.name)

    @classmethod
    def under(cls, table: Mapping[str, Scalar]) -> Self:
        """The method under the parameters in a table.  Raises UsageError as `read` does."""
        return cls(cls.read(table))

    @property
    def table(self) -> dict[str, Scalar]:
        """All parameters and their values."""
        return parameters.as_table(self.params)

    @property
    def digest(self) -> bytes:
        """A name for what both sides must mean alike, 16 bytes.

        It covers the name, every slot of every exchange, and every parameter, those left at their defaults included:
        two versions with different defaults do not mean the same.
        """
        rows = [(_described(row.down), _described(row.up)) for row in self.every_exchange]
        table = sorted(parameters.as_table(self.read(self.table)).items())  # read again: 1 and 1.0 are the same
        return hashlib.sha256(repr((self.name, rows, table)).encode()).digest()[:16]

    @property
    def every_exchange(self) -> tuple[Exchange, ...]:
        """Those of a round and the closing one."""
        return (*self.exchanges, self.closing)

    def misfit(self, devices: int) -> str:
        """What is wrong with the parameters for so many devices: `key: what is allowed`; empty: nothing."""
        return ""

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """What the operator of such a run should hear of before it."""
        return ()

    def population(self, class_counts: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
        """What else to warn of, once it is known how many samples of each class the devices hold that tell."""
        return ()

    def learnt_by(self, capabilities: Collection[str], terms: Collection[str]) -> bool:
        """Whether a model with these can train under the method; else it may at most teach."""
        return self.needs <= set(capabilities) and self.terms <= set(terms)

    # -- on the device ----------------------------------------------------------------------------------------------

    def step(self, state: Any, down: Up, job: Job) -> Step[Any]:
        """One exchange: requests out, results in; at the end the new state and what to upload."""
        device: OnDevice[Any] = OnDevice(job=job, state=state, down=down)
        del down
        own = self.result == "own"
        if own and job.closing:
            yield Evaluate(job.round)
            return state, {}
        up = yield from self.exchange(device)
        if own and job.evaluates and job.exchange == len(self.exchanges) - 1:
            yield Evaluate(job.round + 1)
        return device.state, up

    def exchange(self, device: OnDevice[Any]) -> Stage[Up]:
        """The stages of a round that has one exchange."""
        job = device.job
        yield from self.receive(device)
        if self.result == "shared" and job.evaluates_last:
            yield from self.measure(device)
        if job.closing:
            return {}
        if job.learns and job.local_steps:
            yield from self.train(device)
        up = yield from self.share(device)
        yield from self.personalise(device)
        return up

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Take in what came."""
        yield from ()

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure the shared model, as the round before left it."""
        yield Evaluate(device.job.round)

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Learn from one's own samples."""
        yield from device.fit((CrossEntropy(),))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Make what goes up."""
        yield from ()
        return {}

    def personalise(self, device: OnDevice[Any]) -> Stage[None]:
        """Make the device's own model of what it shared."""
        yield from ()

    # -- on the coordinator -----------------------------------------------------------------------------------------

    def begin(self, spec: FederationSpec) -> Any:
        """The state before the first round: a @wire dataclass."""
        return NoState()

    def down(self, state: Any, at: ExchangeId) -> Down:
        """What goes to everybody in this exchange."""
        return {}

    def down_to(self, state: Any, at: ExchangeId, number: int) -> Down:
        """What goes to one device besides."""
        return {}

    def common(self, state: Any, at: ExchangeId) -> Up:
        """Knowledge that goes to everybody in this exchange."""
        return _there(self.down(state, at))

    def personal(self, state: Any, at: ExchangeId, number: int) -> Up:
        """Knowledge for one device in this exchange."""
        return _there(self.down_to(state, at, number))

    def zero(self) -> Any:
        """No uploads."""
        return self.reduction()

    def add(self, aggregate: Any, contribution: Contribution) -> Any:
        """The aggregate with one more upload; the old one stays as it was."""
        return aggregate.add(contribution)

    def merge(self, a: Any, b: Any) -> Any:
        """Two partial aggregates of different devices as one."""
        return a.merge(b)

    def finish(self, spec: FederationSpec, state: Any, at: ExchangeId, aggregate: Any) -> Any:
        """The state after this exchange; may train.  Raises EmptyRound rather than guess."""
        shared = [role for row in self.exchanges for role in row.up]
        if shared and not aggregate.answered:
            up = self.exchanges[at.exchange].up
            what = next((role for role, slot in up.items() if not slot.optional), "answers")
            raise EmptyRound(f"round {at.round}: no {what} arrived; wait for devices, or lower the quorum")
        return self.reduce(spec, state, at, aggregate)

    def reduce(self, spec: FederationSpec, state: Any, at: ExchangeId, uploads: Any) -> Any:
        """The state that follows from the uploads of an exchange, of at least one device."""
        return state


def torch_part(name: str, what: str) -> ModuleType:
    """A module of this room that needs torch, where a coordinator trains; what: for whoever lacks it.

    Raises MissingExtra.
    """
    try:
        return importlib.import_module(f"edge_sdk.methods.{name}")
    except ImportError:
        raise MissingExtra("torch", "coordinator", what) from None


def told(rows: ClassRows, weighting: str) -> ClassRows:
    """Class rows as they are sent: how many samples stand behind them is told only where it is needed."""
    return rows if weighting == "samples" else dataclasses.replace(rows, counts=np.ones_like(rows.counts))


def check_batch(payload: PublicLogits | LogitGradients, spec: FederationSpec, indices: Ints) -> None:
    """Raise RemoteProtocolError unless knowledge that came down was made on these public samples (warning W6)."""
    expected = batch_digest(spec, indices)
    if payload.batch != expected:
        raise RemoteProtocolError(
            "knowledge",
            f"{type(payload).__name__}: made on public batch {payload.batch.hex()}, expected {expected.hex()}",
        )


def _there(roles: Down) -> Up:
    return {role: payload for role, payload in roles.items() if payload is not None}


def _described(roles: Mapping[str, Slot]) -> list[tuple[object, ...]]:
    return [
        (role, tag_of(slot.kind), slot.personal, slot.optional, slot.rows, slot.extra_columns)
        + (("probabilities",) if slot.probabilities else ())
        + (("without-head",) if slot.without_head else ())
        + (("class-columns",) if slot.class_columns else ())
        + ((slot.times,) if slot.times > 1 else ())
        for role, slot in sorted(roles.items())
    ]

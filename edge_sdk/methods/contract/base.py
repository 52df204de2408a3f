"""The base class of methods: one class holds the device part and the coordinator part of a paper's method.

On the device a method is a generator of requests.  It never touches a model: it yields requests (train on these samples
with this objective; return logits) and receives the results, so that an agent can stop between batches, and a simulator
can merge equal requests of many devices.

On the coordinator it is a reduction: uploads are added up, in any order and any split, and give the next state.
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
from edge_sdk.errors import EmptyRound, LocalProtocolError, MissingExtra, RemoteProtocolError
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Evaluate, Fit, MeasuredModel, ModelRole, Private, Request
from edge_sdk.objectives import CrossEntropy, Objective, Optim
from edge_sdk.objectives.optim import Part
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import tag_of, wire
from edge_sdk.protocol.knowledge import ClassRows, LogitGradients, Payload, PublicFeatures, PublicLogits, Slot, Weights
from edge_sdk.protocol.messages import FederationSpec, Hello, Scalar
from edge_sdk.protocol.public_batch import batch_digest
from edge_sdk.protocol.toml_table import NO_KEYS, read_table, to_table
from edge_sdk.protocol.wires import Exchange
from edge_sdk.reductions import PAPERS, Bag

if TYPE_CHECKING:
    from typing_extensions import Self  # a development package, not in the base install

    from edge_sdk.privacy.release import Guarantee
    from edge_sdk.reductions import Contribution

__all__ = [
    "CAPABILITIES",
    "Caching",
    "Down",
    "Exchange",
    "Method",
    "Nets",
    "NoState",
    "OnDevice",
    "Registered",
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

CAPABILITIES = (
    "predict",
    "logit-gradients",
    "features",
    "head-rows",
    "head-weights",
    "weights",
    "cosine-head",
    "proxy",
    "width",
    "sample-codes",
    "guidance-gradients",
)
"""The capabilities of a model: give logits; train on a gradient at its logits; give features; share the rows of its
last layer with their bias; share them without bias; share all of its weights; compare directions in its last layer.
`proxy`: the device has a second model beside its own, whose weights it shares in place of the own model's.
`width`: run its last block at a share of its width.
`sample-codes`: the device's owner lets codes and labels of its single samples leave.
`guidance-gradients`: give the derivatives of its features and logits in a direction of its weights."""

Up: TypeAlias = Mapping[str, Payload]
"""Knowledge by role."""
Down: TypeAlias = Mapping[str, Payload | None]
"""Knowledge by role on its way down; None for a role without knowledge yet."""
Stage: TypeAlias = Generator[Request, Any, R]
"""Part of an exchange: yields requests, receives results, and returns a value."""
Step: TypeAlias = Generator[Request, Any, tuple[S, Up]]
"""A whole exchange; returns the device's new state and the upload."""


@dataclass(frozen=True, slots=True)
class Caching:
    """Rules for uploads that outlive their round: the coordinator keeps each device's newest one in its slot."""

    first_round: int
    """The first round whose uploads get a slot.  Uploads of earlier rounds cannot be averaged with later ones."""
    max_age: int = 0
    """The number of rounds after which the slot of an absent device is dropped, or 0 to keep it."""

    def oldest(self, round_: int) -> int:
        """Return the earliest round whose uploads still count when `round_` is done."""
        return max(self.first_round, round_ - self.max_age) if self.max_age else self.first_round


@wire("no-state")
@dataclass(frozen=True, slots=True)
class NoState:
    """The state of a method without memory."""


@dataclass(eq=False)
class OnDevice(Generic[S]):
    """A device in one exchange, as the stages of a method see it."""

    job: Job
    state: S
    """The method's state on this device.  The value at the end of the exchange is stored."""
    down: Up
    """The received knowledge, by role."""
    kept: Any = None
    """A value that one stage passes to a later stage of the same exchange."""

    def received(self, kind: type[T], role: str) -> T | None:
        """Return the payload received in a role, which must be of `kind`; None if nothing was received."""
        payload = self.down.get(role)
        return payload if isinstance(payload, kind) else None

    @property
    def batches(self) -> Private:
        """The mini-batches of this round, drawn from the device's own samples."""
        return self.job.private_batches(self.job.local_steps)

    def fit(self, objective: Objective, *, part: Part = "all") -> Stage[None]:
        """Train on this round's mini-batches, and release the received knowledge.

        The model or the objective now holds that knowledge, and memory may lack room for another copy.
        """
        self.down = {}
        if self.job.local_steps:
            yield Fit(source=self.batches, objective=objective, optim=self.job.optim, part=part)


@dataclass(frozen=True, slots=True)
class Registered:
    """The devices that have joined a federation so far."""

    devices: int = 0
    samples: int = 0
    """The sum of their declared private training samples."""
    layouts: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """The layout of the weights that each device would share, in hexadecimal digits, by device number."""


class Nets(Protocol):
    """Models of the devices' architectures on the coordinator, with the public samples that they are run on."""

    @property
    def count(self) -> int:
        """Return the number of public samples."""

    def check(self, layouts: Iterable[bytes]) -> None:
        """Raise UsageError unless there is a model of each layout."""

    def logits(self, weights: Weights) -> Floats:
        """Return the logits of the model with these weights for all public samples: (n, k)."""

    def fitted(self, weights: Weights, indices: Ints, objective: Objective, optim: Optim) -> Weights:
        """Return the weights after one step on each of these mini-batches of public samples; indices: (steps, b)."""


_REDUCING = ("reduce", "finish", "add", "mean", "reduction")
"""A class that combines uploads in its own way overrides some of these."""


class Method(Generic[P]):
    """A method with given parameters.

    A method's file derives a class from `Method[Params]`, describes the method in class attributes, and overrides the
    stages that its paper describes: `receive`, `measure`, `train`, `share` and `personalise` on the device; `begin`,
    `down`, `down_to` and `reduce` on the coordinator.
    """

    name: str
    """The name under which the method is registered."""
    title: str
    citation: str
    exchanges: tuple[Exchange, ...] = (Exchange(),)
    """What travels in each exchange of a round.  The number of exchanges is constant over a run."""
    closing: Exchange = Exchange()
    """The exchange after the last round; its upload carries metrics only."""
    global_model: bool = False
    """Whether all devices (of an architecture) share one model.  It is measured as it arrives, before devices train on
    it; the closing exchange brings the last one."""
    global_of: ModelRole = "own"
    """Which of the device's models receives the global model: its own, or the proxy."""
    personal_after: Literal["training", "arrival"] = "training"
    """When a device's own, personal model is measured: after its training in the round, or on arrival of the others'
    knowledge, for methods whose round ends with it."""
    needs: frozenset[str] = frozenset({"predict", "logit-gradients"})
    """The capabilities that a model must have to learn."""
    teaches: frozenset[str] = frozenset()
    """The capabilities that suffice to contribute without learning, or empty if every device must learn."""
    terms: frozenset[str] = frozenset({"cross-entropy"})
    """The loss terms that a learning model must minimise."""
    needs_public_set: bool = False
    same_width: bool = False
    """Whether all models must have the federation's feature_dim: rows of different widths cannot be averaged (W12)."""
    holders_wanted: int = 0
    """The number of holders that a class should have in a round; with fewer its row follows the last few devices
    (W3).  1 means that one holder is enough, 0 that no class rows travel."""
    releases: bool = False
    """Whether all uploads are releases under a device's privacy budget; a device with a budget takes part only in such
    methods."""
    shares_weights: bool = False
    same_layout: bool = True
    """Whether all models must have one layout, if weights are shared; otherwise each layout is averaged separately."""
    without_weights: str = ""
    """The setting under which the method shares no weights, so that nets may differ, or empty if there is none."""
    runs_nets: bool = False
    """Whether the coordinator runs models of the devices' architectures (`nets`)."""
    lock_step: bool = False
    """Whether every exchange waits for every device.  A slow device then delays all others, or misses the exchange."""
    caching: Caching | None = None
    """The slots that the coordinator keeps for a method with one exchange, or None if uploads last only one round."""
    discloses: str
    """What an upload reveals to the coordinator about the device's data."""
    cautions: tuple[str, ...] = ()
    """The conditions of `warnings`, as `W0: condition`, to help users choose a method."""
    device_state: type = NoState
    """The method's state on a device: a @wire dataclass with defaults, stored at round starts, never sent."""
    means: frozenset[str] = frozenset()
    """The roles of uploads that the method only combines by a weighted mean, so that an old upload can count for less
    (edge_sdk/reductions/ageing.py).  A class that reduces in its own way declares them again."""
    newest: frozenset[str] = frozenset()
    """The roles whose newest upload of each device the coordinator keeps, so that its age does not matter."""
    own_rounds: str = ""
    """Why the method needs rounds under its parameters, although `means` names its uploads; empty if it does not."""
    robust: frozenset[str] = frozenset()
    """The knowledge that the section [robust] may combine differently from the paper: `rows`, `logits`."""
    reduction: type = Bag
    """The aggregate class in which uploads are added up (an Aggregate)."""
    params_type: type[P]
    """The dataclass of the method's parameters, taken from `Method[Params]`."""

    def __init_subclass__(cls) -> None:
        if any(name in vars(cls) for name in _REDUCING):
            cls.means = vars(cls).get("means", frozenset())
            cls.newest = vars(cls).get("newest", frozenset())
        for base in vars(cls).get("__orig_bases__", ()):
            for argument in typing.get_args(base):
                if isinstance(argument, type) and dataclasses.is_dataclass(argument):
                    cls.params_type = typing.cast("type[P]", argument)

    def __init__(self, params: P | None = None) -> None:
        """Set the parameters; None for the defaults."""
        self.params: P = self.params_type() if params is None else params
        self.nets: Nets | None = None
        """The models that the coordinator gives to a method with `runs_nets`, before the first round."""
        self.registered = Registered()
        """The devices that have joined, on the coordinator, whenever it reduces."""
        self.combining = PAPERS
        """How the coordinator combines rows and logits, in methods that allow a choice (`robust`)."""

    # -- parameters -------------------------------------------------------------------------------------------------

    @classmethod
    def read(cls, table: Mapping[str, Scalar], prefix: str = "method.", elsewhere: Mapping[str, str] = NO_KEYS) -> P:
        """Read parameters from a table; prefix, elsewhere: as in `read_table`.

        Raises UsageError for an unknown or missing key, or an impossible value.
        """
        unknown = f"{cls.name} has no such parameter"
        return read_table(cls.params_type, table, prefix, unknown_key=unknown, elsewhere=elsewhere)

    @classmethod
    def under(cls, table: Mapping[str, Scalar]) -> Self:
        """Make the method with the parameters in a table.  Raises UsageError as `read` does."""
        return cls(cls.read(table))

    @property
    def table(self) -> dict[str, Scalar]:
        """All parameters and their values."""
        return to_table(self.params, defaults=True)

    @property
    def digest(self) -> bytes:
        """Return 16 bytes that identify the method's contract, which both sides share.

        The digest covers the name, every slot of every exchange, and every parameter, including those at defaults:
        two versions with different defaults have different digests.
        """
        rows = [(_described(row.down), _described(row.up)) for row in self.every_exchange]
        table = sorted(to_table(self.read(self.table), defaults=True).items())  # read again, so that 1 equals 1.0
        return hashlib.sha256(repr((self.name, rows, table)).encode()).digest()[:16]

    @property
    def every_exchange(self) -> tuple[Exchange, ...]:
        """Return the exchanges of a round, then the closing exchange."""
        return (*self.exchanges, self.closing)

    def misfit(self, devices: int) -> str:
        """Return the fault of the parameters for this number of devices, as `key: allowed values`, or ""."""
        return ""

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """Return the warnings that the operator should read before such a run."""
        return ()

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee of a release for one training record, in a method that `releases`, if there is one."""
        return None

    def objection(self, hello: Hello) -> str:
        """Return why a device may not take part, and after "; " what to do, or "".

        In a method that `releases` it is why the guarantee would not hold for the device, without what to do.
        """
        return ""

    def promise(self, hellos: Iterable[Hello]) -> Mapping[str, Scalar]:
        """Return the privacy guarantee of a run with these devices in one line, or empty without a statement."""
        return {}

    def size_of(self, knowledge: Mapping[str, Payload]) -> float | None:
        """Return the size of an upload for comparison with the others', or None for the norm of its update.

        For methods whose uploads legitimately grow with an undisclosed number of samples.
        """
        return None

    def population(self, class_counts: Sequence[tuple[int, ...]]) -> tuple[str, ...]:
        """Return further warnings, given the samples of each class on the devices that disclose them."""
        return ()

    def course(self, state: Any) -> tuple[str, ...]:
        """Return warnings about the state after a round, each always in the same words."""
        return ()

    def learnt_by(self, capabilities: Collection[str], terms: Collection[str]) -> bool:
        """Return whether a model with these capabilities and terms can train; otherwise it can at most teach."""
        return self.needs <= set(capabilities) and self.terms <= set(terms)

    def taught_by(self, capabilities: Collection[str]) -> bool:
        """Return whether a model that cannot do what the method needs can at least teach."""
        held = set(capabilities)
        return bool(self.teaches) and self.teaches <= held and not self.needs <= held

    # -- on the device ----------------------------------------------------------------------------------------------

    def step(self, state: Any, down: Up, job: Job) -> Step[Any]:
        """Run one exchange: yield requests, receive their results, return the new state and the upload."""
        device: OnDevice[Any] = OnDevice(job=job, state=state, down=down)
        del down
        trained = self.personal_after == "training"
        if job.closing and trained and not self.global_model:
            yield Evaluate(job.round)
            return state, {}
        up = yield from self.exchange(device)
        if trained and job.evaluates and not job.closing and job.exchange == len(self.exchanges) - 1:
            yield Evaluate(job.round + 1)
        return device.state, up

    def exchange(self, device: OnDevice[Any]) -> Stage[Up]:
        """Run the stages of a round that has one exchange, and return the upload."""
        job = device.job
        yield from self.receive(device)
        if job.evaluates_last and (self.global_model or self.personal_after == "arrival"):
            yield from self.measure(device)
        if job.closing:
            return {}
        if job.learns and job.local_steps:
            yield from self.train(device)
        up = yield from self.share(device)
        yield from self.personalise(device)
        return up

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Process the received knowledge."""
        yield from ()

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure the last round's result on arrival: the global model, or without one the personal model."""
        model = self.arrives(closing=device.job.closing)
        yield Evaluate(device.job.round, model=model, of="own" if model == "personal" else self.global_of)

    def measure_personal(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure the personal model of a device that does not train this round; a simulation does this on a copy."""
        yield Evaluate(device.job.round)

    def arrives(self, *, closing: bool) -> MeasuredModel:
        """Return which model `measure` measures first, in a round or in the closing exchange."""
        return "global" if self.global_model else "personal"

    @property
    def measured_models(self) -> tuple[MeasuredModel, ...]:
        """Return the models that exist to be measured."""
        if not self.global_model:
            return ("personal",)
        return ("personal", "global", "active") if self.caching else ("personal", "global")

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train on the device's own samples."""
        yield from device.fit((CrossEntropy(),))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Make the upload."""
        yield from ()
        return {}

    def personalise(self, device: OnDevice[Any]) -> Stage[None]:
        """Make the device's own model from the shared one."""
        yield from ()

    # -- on the coordinator -----------------------------------------------------------------------------------------

    def begin(self, spec: FederationSpec) -> Any:
        """Return the state before the first round: a @wire dataclass."""
        return NoState()

    def down(self, state: Any, at: ExchangeId) -> Down:
        """Return what goes to all devices in this exchange."""
        return {}

    def down_to(self, state: Any, at: ExchangeId, number: int) -> Down:
        """Return what goes to one device in addition."""
        return {}

    def shared_models(self, spec: FederationSpec, state: Any, number: int) -> Mapping[MeasuredModel, Up]:
        """Return the knowledge that brings the shared models to a device if the run ends now, by model.

        A model without knowledge does not exist yet.
        """
        if not self.global_model:
            return {}
        end, before = ExchangeId(spec.rounds, 0), ExchangeId(spec.rounds - 1, 0)
        found: dict[MeasuredModel, Up] = {"global": self._brought(state, end, number)}
        if self.caching:
            found["active"] = self._brought(state, before, number)
        return {model: knowledge for model, knowledge in found.items() if knowledge}

    def _brought(self, state: Any, at: ExchangeId, number: int) -> Up:
        knowledge = {**self.common(state, at), **self.personal(state, at, number)}
        return {role: payload for role, payload in knowledge.items() if role in self.closing.down}

    def common(self, state: Any, at: ExchangeId) -> Up:
        """Return the knowledge that goes to all devices in this exchange, without empty roles.

        Raises LocalProtocolError for anything else than a dict.
        """
        return _there(self.down(state, at))

    def shown(self, state: Any, at: ExchangeId) -> Up:
        """Return the knowledge whose class rows reports show: what goes to all devices, unless a method has more."""
        return self.common(state, at)

    def personal(self, state: Any, at: ExchangeId, number: int) -> Up:
        """Return the knowledge for one device in this exchange, without empty roles.

        Raises LocalProtocolError for anything else than a dict.
        """
        return _there(self.down_to(state, at, number))

    def zero(self) -> Any:
        """Return an aggregate without uploads."""
        return self.reduction()

    def add(self, aggregate: Any, contribution: Contribution) -> Any:
        """Return the aggregate with one more upload; the old aggregate stays unchanged."""
        return aggregate.add(contribution)

    def merge(self, a: Any, b: Any) -> Any:
        """Merge two partial aggregates of different devices."""
        return a.merge(b)

    def finish(self, spec: FederationSpec, state: Any, at: ExchangeId, aggregate: Any) -> Any:
        """Return the state after this exchange; this may train a model.  Raises EmptyRound if no device answered."""
        shared = [role for row in self.exchanges for role in row.up]
        if shared and not aggregate.answered:
            up = self.exchanges[at.exchange].up
            what = next((role for role, slot in up.items() if not slot.optional), "answers")
            raise EmptyRound(f"round {at.round}: no {what} arrived; wait for devices, or lower the quorum")
        return self.reduce(spec, state, at, aggregate)

    def reduce(self, spec: FederationSpec, state: Any, at: ExchangeId, uploads: Any) -> Any:
        """Return the next state, given the uploads of an exchange from at least one device."""
        return state

    def instruments(
        self, spec: FederationSpec, before: Any, after: Any, at: ExchangeId, uploads: Any
    ) -> Mapping[str, float]:
        """Return what the coordinator's half did in an exchange, by name; before, after: the states around `reduce`.

        The device's half reports its values by the request `Report`.
        """
        return {}

    def without_effect(self, spec: FederationSpec, newest: Mapping[str, float]) -> tuple[str, ...]:
        """Return a sentence for each part of the method that has no effect.

        newest: the mean over devices of each instrument in the newest round that has it.
        """
        return ()


def torch_part(name: str, what: str) -> ModuleType:
    """Import a module of edge_sdk.methods.parts that needs torch.  what: the feature that needs it, for the message.

    Raises MissingExtra.
    """
    try:
        return importlib.import_module(f"edge_sdk.methods.parts.{name}")
    except ImportError:
        raise MissingExtra("torch", "coordinator", what) from None


def told(rows: ClassRows, weighting: str) -> ClassRows:
    """Return class rows as they are sent: with the numbers of samples only if the weighting needs them."""
    return rows if weighting == "samples" else dataclasses.replace(rows, counts=np.ones_like(rows.counts))


def check_batch(payload: PublicLogits | LogitGradients | PublicFeatures, spec: FederationSpec, indices: Ints) -> None:
    """Raise RemoteProtocolError unless knowledge that came down was made on these public samples (warning W6)."""
    expected = batch_digest(spec, indices)
    if payload.batch != expected:
        raise RemoteProtocolError(
            "knowledge",
            f"{type(payload).__name__}: made on public batch {payload.batch.hex()}, expected {expected.hex()}",
        )


def _there(roles: Down) -> Up:
    if not isinstance(roles, Mapping):
        raise LocalProtocolError(
            f"down() or down_to() gave {type(roles).__name__}, expected a dict of payloads by role"
        )
    return {role: payload for role, payload in roles.items() if payload is not None}


def _described(roles: Mapping[str, Slot]) -> list[tuple[object, ...]]:
    return [
        (role, tag_of(slot.kind), slot.personal, slot.optional, slot.rows, slot.extra_columns)
        + (("probabilities",) if slot.probabilities else ())
        + (("without-head",) if slot.without_head else ())
        + (("class-columns",) if slot.class_columns else ())
        + (("class-times",) if slot.class_times else ())
        + ((slot.times,) if slot.times > 1 else ())
        + (("numbers", slot.numbers) if slot.numbers else ())
        + (("samples", slot.samples) if slot.samples else ())
        for role, slot in sorted(roles.items())
    ]

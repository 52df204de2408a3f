"""A method: one class in three parts, its description, the part on a device, the part on the coordinator.

The device part is a generator.  It never touches a model: it yields requests (train on these samples with this
objective; return logits) and receives the results.  So an agent can stop between batches, and a simulator can merge
equal requests of many devices.

The coordinator part is a reduction.  Uploads are summed, in any order and any split, and give the next state.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import EmptyRound, LocalProtocolError, MissingExtra, RemoteProtocolError
from edge_sdk.methods.contract.description import CAPABILITIES, Caching, Description, NoState
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Evaluate, Fit, MeasuredModel, Private, Request
from edge_sdk.objectives import CrossEntropy, Objective, Optim
from edge_sdk.objectives.optim import Part
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ClassRows, LogitGradients, Payload, PublicFeatures, PublicLogits, Slot, Weights
from edge_sdk.protocol.messages import FederationSpec, Hello, Scalar
from edge_sdk.protocol.public_batch import batch_digest
from edge_sdk.protocol.wires import Exchange
from edge_sdk.reductions import PAPERS, Bag

if TYPE_CHECKING:
    from edge_sdk.reductions import Contribution


__all__ = [
    "CAPABILITIES",
    "Caching",
    "CoordinatorPart",
    "Description",
    "DevicePart",
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
    "as_sent",
    "check_batch",
    "torch_part",
]

P = TypeVar("P")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

Up: TypeAlias = Mapping[str, Payload]
"""Knowledge by role."""
Stage: TypeAlias = Generator[Request, Any, R]
"""Part of an exchange: yields requests, receives results, and returns a value."""
Step: TypeAlias = Generator[Request, Any, tuple[S, Up]]
"""A whole exchange; returns the device's new state and the upload."""


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
        """Return the payload received in a role, which must be of `kind`, or None if nothing was received."""
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


class DevicePart(Description[P]):
    """The second part of a method.  A method's file overrides the stages that its paper describes."""

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


def as_sent(rows: ClassRows, weighting: str) -> ClassRows:
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


Down: TypeAlias = Mapping[str, Payload | None]
"""Knowledge by role on its way down, or None for a role without knowledge yet."""


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
        """Raise UsageError if a layout has no model."""

    def logits(self, weights: Weights) -> Floats:
        """Return the logits of the model with these weights for all public samples: (n, k)."""

    def fitted(self, weights: Weights, indices: Ints, objective: Objective, optim: Optim) -> Weights:
        """Return the weights after one step on each of these mini-batches of public samples; indices: (steps, b)."""


_REDUCING = ("reduce", "finish", "add", "mean", "reduction")
"""A class that combines uploads in its own way overrides some of these."""


class CoordinatorPart(Description[P]):
    """The third part of a method.  A method's file overrides `begin`, `down`, `down_to` and `reduce`."""

    means: frozenset[str] = frozenset()
    """The roles of uploads that the method only combines by a weighted mean, so that an old upload can count for less
    (edge_sdk/reductions/influence.py).  A class that reduces in its own way declares them again."""
    newest: frozenset[str] = frozenset()
    """The roles whose newest upload of each device the coordinator keeps, so that its age does not matter."""
    own_rounds: str = ""
    """Why the method needs rounds under its parameters, although `means` names its uploads; empty if it does not."""
    robust: frozenset[str] = frozenset()
    """The knowledge that the section [robust] may combine differently from the paper: `rows`, `logits`."""
    reduction: type = Bag
    """The aggregate class that sums uploads (an Aggregate)."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if any(name in vars(cls) for name in _REDUCING):
            cls.means = vars(cls).get("means", frozenset())
            cls.newest = vars(cls).get("newest", frozenset())

    def __init__(self, params: P | None = None) -> None:
        super().__init__(params)
        self.nets: Nets | None = None
        """The models that the coordinator gives to a method with `runs_nets`, before the first round."""
        self.registered = Registered()
        """The devices that have joined, on the coordinator, whenever it reduces."""
        self.combining = PAPERS
        """How the coordinator combines rows and logits, in methods that allow a choice (`robust`)."""

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

    def instruments(
        self, spec: FederationSpec, before: Any, after: Any, at: ExchangeId, uploads: Any
    ) -> Mapping[str, float]:
        """Return the instruments of the coordinator's part, by name; before, after: the states around `reduce`.

        The device's part reports its values by the request `Report`.
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


def _there(roles: Down) -> Up:
    if not isinstance(roles, Mapping):
        raise LocalProtocolError(
            f"down() or down_to() gave {type(roles).__name__}, expected a dict of payloads by role"
        )
    return {role: payload for role, payload in roles.items() if payload is not None}


class Method(DevicePart[P], CoordinatorPart[P]):
    """A method with given parameters.

    A method's file derives a class from `Method[Params]` and writes three parts, in this order:

    - `Description`: class attributes, and the warnings that follow from the parameters.
    - `DevicePart`: the stages that the paper describes: `receive`, `measure`, `train`, `share`, `personalise`.
    - `CoordinatorPart`: `begin`, `down`, `down_to` and `reduce`.
    """

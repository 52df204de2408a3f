"""The part of a method that runs on the coordinator: a reduction.

Uploads are summed, in any order and any split, and give the next state.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from edge_sdk.arrays import Floats, Ints
from edge_sdk.errors import EmptyRound, LocalProtocolError, MissingExtra
from edge_sdk.methods.contract.description import Description, NoState
from edge_sdk.methods.contract.device_part import Up
from edge_sdk.methods.contract.requests import MeasuredModel
from edge_sdk.objectives import Objective, Optim
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import Payload, Weights
from edge_sdk.protocol.messages import FederationSpec, Hello, Scalar
from edge_sdk.reductions import PAPERS, Bag

if TYPE_CHECKING:
    from edge_sdk.reductions import Contribution

P = TypeVar("P")

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
    (edge_sdk/reductions/ageing.py).  A class that reduces in its own way declares them again."""
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

"""A method's description: its name, what travels, what it needs of a device, and its parameters."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, TypeVar

from edge_sdk.methods.contract.requests import MeasuredModel, ModelRole
from edge_sdk.protocol.frames.leaves import Range, Text
from edge_sdk.protocol.frames.schema import tag_of, wire
from edge_sdk.protocol.knowledge import Slot
from edge_sdk.protocol.messages import FederationSpec, Hello, Scalar
from edge_sdk.protocol.toml_table import NO_KEYS, read_table, to_table
from edge_sdk.protocol.wires import Exchange

if TYPE_CHECKING:
    from typing_extensions import Self  # a development package, not in the base install

    from edge_sdk.privacy.release import Guarantee


__all__ = ["ProxyFamily", "Range", "SlotAge", "Start", "Weighting"]

Weighting: TypeAlias = Literal["samples", "uniform"]
"""How devices are weighted in a mean: by their samples, or all equally."""
Start: TypeAlias = Literal["first", "equal"]
"""How round 0 begins, when the federation has no weights yet.  With `first` all devices continue from the model of the
contributor with the lowest number.  With `equal` all devices start from equal weights (one file, one seed), so round 0
is averaged.  If `federation.start` is equal, `equal` is the default of every method's `start`."""


ProxyFamily: TypeAlias = Annotated[str, Text(200, r"[\w.:-]+", "a model family or MODULE:FACTORY")]
"""The family of the proxy in a simulated fleet, or MODULE:FACTORY (docs/reference/models.md)."""
SlotAge: TypeAlias = Annotated[int, Range(0, paper="0: slots never expire")]
"""Rounds after which the upload of an absent device no longer counts; 0 keeps it."""


def has_start(params: type[Any]) -> bool:
    """Return whether a method has the parameter `start` in this common meaning."""
    return bool(_annotations(typing.cast("Any", params)).get("start") == Start)


@functools.cache
def _annotations(params: type) -> dict[str, Any]:
    """Return the annotations of a dataclass, cached: each lookup compiles them again."""
    return typing.get_type_hints(params, include_extras=True)


P = TypeVar("P")

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
"""The capabilities of a model.
`predict`: gives logits.  `logit-gradients`: trains on a gradient at its logits.  `features`: gives features.
`head-rows`: shares the rows of its last layer with their bias.  `head-weights`: shares them without bias.
`weights`: shares all of its weights.  `cosine-head`: compares directions in its last layer.
`proxy`: the device has a second model beside its own, and shares its weights instead of the own model's.
`width`: runs its last block at a share of its width.
`sample-codes`: the device's owner lets codes and labels of its single samples leave.
`guidance-gradients`: gives the derivatives of its features and logits in a direction of its weights."""


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


class Description(Generic[P]):
    """The first part of a method.  Most of it is class attributes, which a method's file sets."""

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
    """The number of holders that a class should have in a round.  With fewer, its row follows the last few devices
    (W3).  1 means that one holder is enough, 0 that no class rows travel."""
    releases: bool = False
    """Whether all uploads are releases under a device's privacy budget.  A device with a budget takes part only in such
    methods."""
    shares_weights: bool = False
    same_layout: bool = True
    """Whether all models must have one layout, if weights are shared; otherwise each layout is averaged separately."""
    without_weights: str = ""
    """The setting under which the method shares no weights, so that nets may differ, or empty without such a
    setting."""
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
    params_type: type[P]
    """The dataclass of the method's parameters, taken from `Method[Params]`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            for argument in typing.get_args(base):
                if isinstance(argument, type) and dataclasses.is_dataclass(argument):
                    cls.params_type = typing.cast("type[P]", argument)

    def __init__(self, params: P | None = None) -> None:
        """Set the parameters, or None for the defaults."""
        self.params: P = self.params_type() if params is None else params

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
        """Return why a device may not take part, then "; " and the remedy, or "" if it may.

        In a method that `releases` it is why the guarantee would not hold for the device, without a remedy.
        """
        return ""

    def arrives(self, *, closing: bool) -> MeasuredModel:
        """Return which model `measure` measures first, in a round or in the closing exchange."""
        return "global" if self.global_model else "personal"

    @property
    def measured_models(self) -> tuple[MeasuredModel, ...]:
        """Return the models that exist to be measured."""
        if not self.global_model:
            return ("personal",)
        return ("personal", "global", "active") if self.caching else ("personal", "global")

    def learnt_by(self, capabilities: Collection[str], terms: Collection[str]) -> bool:
        """Return whether a model with these capabilities and terms can train; otherwise it can at most teach."""
        return self.needs <= set(capabilities) and self.terms <= set(terms)

    def taught_by(self, capabilities: Collection[str]) -> bool:
        """Return whether a model that cannot do what the method needs can at least teach."""
        held = set(capabilities)
        return bool(self.teaches) and self.teaches <= held and not self.needs <= held


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

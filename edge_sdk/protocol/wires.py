"""What both halves of a method must agree on, stated once: its contract.

A contract names the hyper-parameters with their ranges, what a model must be able to do, and the *wire row*: which
knowledge travels down and up in each exchange.  Our own contracts stand in `edge_sdk/protocol/contracts/`; both
halves carry theirs as the attribute `contract`, and this module collects them through the halves' registration.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.protocol import registry
from edge_sdk.protocol.codec import CONTROL_LIMITS, Limits
from edge_sdk.protocol.knowledge import Expect, Payload
from edge_sdk.protocol.messages import FederationSpec, Scalar
from edge_sdk.protocol.schema import tag_of
from edge_sdk.protocol.toml_table import read_table

P = TypeVar("P")

CAPABILITIES = ("predict", "logit-gradients", "features", "head-rows", "weights", "cosine-head")
"""What a model can do: give logits; train on a gradient at its logits; give features; trade the rows of its last
layer; trade all of its weights; compare directions in its last layer."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One role in an exchange: which kind of knowledge stands there."""

    kind: type[Payload]
    personal: bool = False
    """Differs from device to device (downlink only)."""
    optional: bool = False
    """May be missing: a teacher gets no gradient, a first exchange has no past."""
    rows: int = 0
    """Samples of the public batch, for the kinds that have one."""
    extra_columns: int = 0
    """Columns of class rows beyond the width of the features: 1 for header rows, whose last one is the bias; for
    weights, numbers that stand behind them."""
    without_head: bool = False
    """Weights without those of the last layer."""
    probabilities: bool = False
    """Class rows that are predictions: as wide as there are classes, and each on the simplex (W14)."""
    times: int = 1
    """Class rows of so many vectors as wide as the features, side by side."""
    class_columns: bool = False
    """Class rows with one more column for each class."""
    remainder: bool = False
    """Class rows of the classes that another slot beside it leaves out: together they are of all classes."""

    def expect(self, expect: Expect) -> Expect:
        """What a payload in this slot must fit, where the federation expects `expect`."""
        return _expected(self, expect)

    def columns(self, classes: int) -> int:
        """Columns of class rows beyond the width of the features."""
        return self.extra_columns + (classes if self.class_columns else 0)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One Assign(down) -> Upload(up): the roles that travel each way."""

    down: Mapping[str, Slot] = field(default_factory=dict)
    up: Mapping[str, Slot] = field(default_factory=dict)


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


@dataclass(frozen=True)
class Contract(Generic[P]):
    """A method as both sides see it."""

    name: str
    title: str
    citation: str
    params: type[P]
    exchanges: Callable[[P], tuple[Exchange, ...]]
    """The exchanges of one round; their number is constant over a run."""
    closing: Callable[[P], Exchange]
    """What the closing Assign brings; its upload carries metrics only."""
    needs: frozenset[str]
    """Capabilities that a model must have to learn."""
    teaches: frozenset[str] = frozenset()
    """Capabilities that are enough to contribute without learning; empty: nobody may only teach."""
    terms: frozenset[str] = frozenset()
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
    """Whether the coordinator runs models of the devices' architectures, on public samples of its own."""
    lock_step: bool = False
    """Every exchange waits for every device: a device that misses many holds up or misses out."""
    caching: Callable[[P], Caching | None] = lambda _params: None
    """The slots that the coordinator keeps, of a method with one exchange; None: uploads go with their round."""
    discloses: str = ""
    """What an upload tells the coordinator about the device's data."""
    misfit: Callable[[P, int], str] = lambda _params, _devices: ""
    """What is wrong with these parameters for so many devices: `key: what is allowed`; empty: nothing."""
    warnings: Callable[[P, FederationSpec], tuple[str, ...]] = lambda _params, _spec: ()
    population: Callable[[P, Sequence[tuple[int, ...]]], tuple[str, ...]] = lambda _params, _class_counts: ()
    """What else to warn of, once it is known how many samples of each class the devices hold that tell."""
    cautions: tuple[str, ...] = ()
    """When `warnings` has something to say, as `W0: condition`: for whoever chooses a method."""
    variant: Callable[[P], Mapping[str, Any]] = lambda _params: {}
    """The fields of this contract that are others under these parameters."""

    def under(self, table: Mapping[str, Scalar]) -> Contract[P]:
        """The contract as these parameters make it.  Raises UsageError as `read` does."""
        changed = self.variant(self.read(table))
        return dataclasses.replace(self, **changed) if changed else self

    def learnt_by(self, capabilities: Collection[str], terms: Collection[str]) -> bool:
        """Whether a model with these can train under the method; else it may at most teach."""
        return self.needs <= set(capabilities) and self.terms <= set(terms)

    def read(self, table: Mapping[str, Scalar]) -> P:
        """The hyper-parameters in a table.  Raises UsageError for an unknown key, wrong type or impossible value."""
        return read_table(self.params, table, "method.", unknown_key=f"{self.name} has no such parameter")

    def digest(self, params: P) -> bytes:
        """A name for this contract under these parameters, 16 bytes; both halves must have the same.

        It covers the name, every slot of every exchange, and every parameter, those left at their defaults included:
        two versions with different defaults do not mean the same.
        """
        rows = [(_described(row.down), _described(row.up)) for row in (*self.exchanges(params), self.closing(params))]
        table = sorted(_table(self.read(_table(params))).items())  # read once more: 1 and 1.0 are the same temperature
        return hashlib.sha256(repr((self.name, rows, table)).encode()).digest()[:16]


def _table(params: Any) -> dict[str, Scalar]:
    return dataclasses.asdict(params)


def _described(roles: Mapping[str, Slot]) -> list[tuple[object, ...]]:
    return [
        (role, tag_of(slot.kind), slot.personal, slot.optional, slot.rows, slot.extra_columns)
        + (("probabilities",) if slot.probabilities else ())
        + (("without-head",) if slot.without_head else ())
        + (("class-columns",) if slot.class_columns else ())
        + ((slot.times,) if slot.times > 1 else ())
        for role, slot in sorted(roles.items())
    ]


def check_roles(given: Mapping[str, Payload], slots: Mapping[str, Slot], expect: Expect) -> None:
    """Raise RemoteProtocolError unless `given` is exactly what `slots` allow, each payload fit to use."""
    for role, payload in given.items():
        slot = slots.get(role)
        if slot is None:
            raise RemoteProtocolError("knowledge", f"role {role!r} does not belong to this exchange")
        if type(payload) is not slot.kind:
            raise RemoteProtocolError(
                "knowledge", f"{role}: expected {slot.kind.__name__}, found {type(payload).__name__}"
            )
        payload.check(slot.expect(expect))
    for role, slot in slots.items():
        if role not in given and not slot.optional:
            raise RemoteProtocolError("knowledge", f"role {role!r} is missing")


@functools.lru_cache(maxsize=2**12)
def _expected(slot: Slot, expect: Expect) -> Expect:
    """The same for all devices of a kind, in every exchange."""
    width = expect.feature_dim * slot.times + slot.columns(expect.classes) if expect.feature_dim else 0
    left_out = expect.head_count if slot.without_head else 0
    count = expect.weight_count + slot.extra_columns - left_out if expect.weight_count else 0
    return dataclasses.replace(
        expect,
        rows=slot.rows or expect.rows,
        feature_dim=width,
        weight_count=count,
        probabilities=slot.probabilities,
    )


def expectation(spec: FederationSpec) -> Expect:
    """The sizes that a federation's spec fixes for every payload."""
    return _sizes(spec.classes, spec.feature_dim)


@functools.lru_cache
def _sizes(classes: int, feature_dim: int) -> Expect:
    return Expect(classes=classes, feature_dim=feature_dim)


@functools.lru_cache(maxsize=2**12)
def expected_upload(expect: Expect, *, samples: int) -> Expect:
    """What one device gives back, which declared so many samples; 0: it did not."""
    return dataclasses.replace(expect, contributors=1, samples=samples)


@functools.lru_cache(maxsize=2**12)
def expected_weights(expect: Expect, *, count: int, feature_dim: int, layout: bytes) -> Expect:
    """With the size of one device's model; a count of 0: it shares no weights."""
    head = expect.classes * (feature_dim + 1)
    return dataclasses.replace(expect, weight_count=count, head_count=head, layout=layout)


def frame_limits(exchange_rows: tuple[Exchange, ...], expect: Expect) -> Limits:
    """The largest frame that a method may legally send in either direction, with f4 tensors.

    Messages without knowledge come on the same topics, so these limits are never below CONTROL_LIMITS; a payload that
    is too large for its method and still below those is for `check_roles` to refuse.
    """
    frames = [
        [size for slot in roles.values() for size in _tensor_bytes(slot, expect)]
        for row in exchange_rows
        for roles in (row.down, row.up)
    ]
    return Limits(
        frame_bytes=max(map(sum, frames), default=0) + CONTROL_LIMITS.frame_bytes,
        tensor_bytes=max((CONTROL_LIMITS.tensor_bytes, *(size for sizes in frames for size in sizes))),
    )


MAX_FEATURE_DIM = 65536
"""The width assumed for a limit while no feature width is agreed on."""
MAX_WEIGHT_COUNT = 2**26
"""Likewise for weights: 256 MiB of f4."""


def _tensor_bytes(slot: Slot, expect: Expect) -> tuple[int, ...]:
    """The sizes of the tensors in the largest payload that fits a slot."""
    sizes = dataclasses.replace(
        expect,
        feature_dim=expect.feature_dim or MAX_FEATURE_DIM,
        weight_count=expect.weight_count or MAX_WEIGHT_COUNT,
        head_count=0,
    )
    return slot.kind.most_bytes(slot.expect(sizes))


def load_registered(group: str, name: str) -> Any:
    """The half that is registered under `name` in an entry-point group.  Raises UsageError with the known names."""
    if not registry.value(group, name):
        known = ", ".join(registry.names(group)) or "none"
        raise UsageError(f"federation.method: no method {name!r}; registered are {known}")
    half = registry.load(group, name, "method")
    if not isinstance(getattr(half, "contract", None), Contract):
        raise UsageError(f"method {name!r}: {registry.value(group, name)} does not carry a contract")
    return half


def registered_names(group: str) -> tuple[str, ...]:
    """The names in an entry-point group, sorted."""
    return registry.names(group)

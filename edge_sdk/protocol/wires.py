"""What both halves of a method must agree on, stated once: its contract.

A contract names the hyper-parameters with their ranges, what a model must be able to do, and the *wire row*: which
knowledge travels down and up in each exchange.  Our own contracts stand in `edge_sdk/protocol/contracts/`; both
halves carry theirs as the attribute `contract`, and this module collects them through the halves' registration.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.protocol.codec import HEADER_BYTES, SIGNATURE_BYTES, Limits
from edge_sdk.protocol.knowledge import Expect, HyperKnowledge, LogitGradients, Payload, PublicLogits, Weights
from edge_sdk.protocol.messages import FederationSpec, Scalar

P = TypeVar("P")

CAPABILITIES = ("predict", "logit-gradients", "features", "head-rows", "weights")
"""What a model can do: give logits; train on a gradient at its logits; give features; trade the rows of its last
layer; trade all of its weights."""


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


@dataclass(frozen=True, slots=True)
class Exchange:
    """One Assign(down) -> Upload(up): the roles that travel each way."""

    down: Mapping[str, Slot] = field(default_factory=dict)
    up: Mapping[str, Slot] = field(default_factory=dict)


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
    shares_weights: bool = False
    discloses: str = ""
    """What an upload tells the coordinator about the device's data."""
    warnings: Callable[[P, FederationSpec], tuple[str, ...]] = lambda _params, _spec: ()

    def read(self, table: Mapping[str, Scalar]) -> P:
        """The hyper-parameters in a table.  Raises UsageError for an unknown key, wrong type or impossible value."""
        known = {f.name: f for f in dataclasses.fields(self.params)}  # type: ignore[arg-type]  # params is a dataclass
        for key in table:
            if key not in known:
                raise UsageError(
                    f"method.{key}: {self.name} has no such parameter; it has {', '.join(sorted(known)) or 'none'}"
                )
        try:
            return self.params(**table)
        except (TypeError, ValueError) as error:
            raise UsageError(f"method.{error}") from None

    def digest(self, params: P) -> bytes:
        """A name for this contract under these parameters; both halves must have the same."""
        rows = (*self.exchanges(params), self.closing(params))
        text = repr(
            [
                (side, role, slot.kind.__name__, slot.personal, slot.optional, slot.rows)
                for row in rows
                for side, roles in (("down", row.down), ("up", row.up))
                for role, slot in sorted(roles.items())
            ]
        )
        table = repr(sorted(dataclasses.asdict(params).items()))  # type: ignore[call-overload]  # params is a dataclass
        return hashlib.sha256(f"{self.name}{len(rows)}{text}{table}".encode()).digest()[:16]


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
        payload.check(dataclasses.replace(expect, rows=slot.rows or expect.rows))
    for role, slot in slots.items():
        if role not in given and not slot.optional:
            raise RemoteProtocolError("knowledge", f"role {role!r} is missing")


FRAME_ALLOWANCE_BYTES = 8 * 1024 + HEADER_BYTES + SIGNATURE_BYTES
"""Everything in a frame but tensors: ids, role names, up to 64 metrics of 64 characters."""


def frame_limits(exchange_rows: tuple[Exchange, ...], expect: Expect) -> Limits:
    """The largest frame that a method may legally send in either direction, with f4 tensors."""
    largest = max(
        sum(_slot_bytes(slot, expect) for slot in roles.values())
        for row in exchange_rows
        for roles in (row.down, row.up)
    )
    return Limits(frame_bytes=largest + FRAME_ALLOWANCE_BYTES, tensor_bytes=max(largest, 1024))


MAX_FEATURE_DIM = 65536
"""The width assumed for a limit while no feature width is agreed on."""
MAX_WEIGHT_COUNT = 2**26
"""Likewise for weights: 256 MiB of f4."""


def _slot_bytes(slot: Slot, expect: Expect) -> int:
    width = expect.feature_dim or MAX_FEATURE_DIM
    if slot.kind in (PublicLogits, LogitGradients):
        return 4 * (slot.rows or expect.rows) * expect.classes
    if slot.kind is Weights:
        return 4 * (expect.weight_count or MAX_WEIGHT_COUNT)
    if slot.kind is HyperKnowledge:
        return 4 * expect.classes * (width + expect.classes + 2)
    return 4 * expect.classes * (width + 2)


def load_registered(group: str, name: str) -> Any:
    """The half that is registered under `name` in an entry-point group.  Raises UsageError with the known names."""
    points = {point.name: point for point in importlib.metadata.entry_points(group=group)}
    if name not in points:
        raise UsageError(f"federation.method: no method {name!r}; registered are {', '.join(sorted(points)) or 'none'}")
    half = points[name].load()
    if not isinstance(getattr(half, "contract", None), Contract):
        raise UsageError(f"method {name!r}: {points[name].value} does not carry a contract")
    return half


def registered_names(group: str) -> tuple[str, ...]:
    """The names in an entry-point group, sorted."""
    return tuple(sorted({point.name for point in importlib.metadata.entry_points(group=group)}))

"""The roles of an exchange, each with a slot for one kind of knowledge, and the checks of payloads in slots."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS, Limits
from edge_sdk.protocol.knowledge import Expect, Payload, Slot
from edge_sdk.protocol.messages import FederationSpec


@dataclass(frozen=True, slots=True)
class Exchange:
    """One Assign(down) -> Upload(up): the roles that travel each way."""

    down: Mapping[str, Slot] = field(default_factory=dict)
    up: Mapping[str, Slot] = field(default_factory=dict)


def slots_of(rows: Iterable[Exchange]) -> list[Slot]:
    """Return all slots of some exchanges."""
    return [slot for row in rows for roles in (row.down, row.up) for slot in roles.values()]


def down_slots(exchange: Exchange) -> tuple[Mapping[str, Slot], Mapping[str, Slot]]:
    """Return the slots of an Assign's common and personal knowledge."""
    personal = {role: slot for role, slot in exchange.down.items() if slot.personal}
    common = {role: slot for role, slot in exchange.down.items() if role not in personal} if personal else exchange.down
    return common, personal


def check_roles(given: Mapping[str, Payload], slots: Mapping[str, Slot], expect: Expect) -> None:
    """Raise RemoteProtocolError unless `given` matches `slots`, and each payload passes its own check."""
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


def expectation(spec: FederationSpec) -> Expect:
    """The sizes that a federation's spec fixes for every payload."""
    return _sizes(spec.classes, spec.feature_dim)


@functools.lru_cache
def _sizes(classes: int, feature_dim: int) -> Expect:
    return Expect(classes=classes, feature_dim=feature_dim)


# A new copy takes 5 to 10 us, and a kept one 1; a coordinator takes in an upload of 1 kB in some 300 us.
@functools.lru_cache(maxsize=2**12)
def expected_upload(expect: Expect, *, samples: int) -> Expect:
    """Return the expectation for one device's upload; samples: the declared number, or 0 without a declaration."""
    return dataclasses.replace(expect, contributors=1, samples=samples)


@functools.lru_cache(maxsize=2**12)
def expected_batch(expect: Expect, *, rows: int, batch: bytes) -> Expect:
    """Return the expectation with the public batch of one exchange: its number of samples, and its digest."""
    return dataclasses.replace(expect, rows=rows, batch=batch)


@functools.lru_cache(maxsize=2**12)
def expected_weights(expect: Expect, *, count: int, feature_dim: int, layout: bytes) -> Expect:
    """Return the expectation with the size of one device's model; count: 0 if it shares no weights."""
    head = expect.classes * (feature_dim + 1)
    return dataclasses.replace(expect, weight_count=count, head_count=head, layout=layout)


def frame_limits(exchange_rows: tuple[Exchange, ...], expect: Expect) -> Limits:
    """Return the largest frame that a method may send in either direction, with f4 tensors.

    Messages without knowledge use the same topics, so these limits are never below CONTROL_LIMITS; `check_roles`
    refuses a payload that is below CONTROL_LIMITS but too large for its method.
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
"""The width assumed for a limit while the feature width is unknown."""
MAX_WEIGHT_COUNT = 2**26
"""The number of weights assumed for a limit while it is unknown: 256 MiB of f4."""


def _tensor_bytes(slot: Slot, expect: Expect) -> tuple[int, ...]:
    """Return the sizes of the tensors in the largest payload that fits a slot."""
    sizes = dataclasses.replace(
        expect,
        feature_dim=expect.feature_dim or MAX_FEATURE_DIM,
        weight_count=expect.weight_count or MAX_WEIGHT_COUNT,
        head_count=0,
    )
    return slot.kind.most_bytes(slot.expect(sizes))

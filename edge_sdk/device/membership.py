"""What a Welcome brings: the federation and our place in it, and what may be exchanged in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_sdk.device import divergence
from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.methods.base import Method
from edge_sdk.methods.registry import method_of
from edge_sdk.models.base import ModelSpec
from edge_sdk.protocol import codec, transforms
from edge_sdk.protocol.codec import Limits
from edge_sdk.protocol.knowledge import Expect, Payload
from edge_sdk.protocol.messages import Assign, FederationSpec, Message, PublicSetSpec, Upload, Welcome
from edge_sdk.protocol.wires import Exchange, check_roles, expectation, expected_weights, frame_limits


@dataclass(frozen=True)
class Membership:
    """A federation as one of its devices sees it."""

    welcome: Welcome
    method: Method[Any]
    """Under the federation's parameters."""
    expect: Expect
    """What payloads must fit: weights, those of this device's own model."""
    limits: Limits
    """Of its frames."""
    chain: transforms.Chain

    @property
    def spec(self) -> FederationSpec:
        """What all its devices have in common."""
        return self.welcome.spec

    @property
    def public(self) -> PublicSetSpec | None:
        """The public set without which nothing is computed; None: the method needs none."""
        return self.spec.public if self.method.needs_public_set else None

    def is_last(self, exchange: int) -> bool:
        """Whether a round ends with this exchange."""
        return exchange == len(self.method.exchanges) - 1

    def row_of(self, assign: Assign) -> Exchange:
        """What travels in the exchange that an Assign opens.  Raises RemoteProtocolError where there is none."""
        if assign.closing:
            return self.method.closing
        if assign.exchange >= len(self.method.exchanges):
            raise RemoteProtocolError(
                "knowledge", f"exchange {assign.exchange}: this method has {len(self.method.exchanges)} a round"
            )
        return self.method.exchanges[assign.exchange]

    def received(self, assign: Assign) -> Assign:
        """An Assign with its knowledge as the method takes it.  Raises RemoteProtocolError where it does not fit."""
        rounds = self.spec.rounds
        if assign.closing != (assign.round == rounds) or assign.round > rounds:
            raise RemoteProtocolError("knowledge", f"round {assign.round} of {rounds}: out of place")
        row = self.row_of(assign)
        assign = self.chain.received(assign, "common", "personal")
        check_roles(assign.common, {r: s for r, s in row.down.items() if not s.personal}, self.expect)
        check_roles(assign.personal, {r: s for r, s in row.down.items() if s.personal}, self.expect)
        return assign

    def sendable(self, knowledge: Mapping[str, Payload], assign: Assign, *, withheld: bool) -> dict[str, Payload]:
        """The answer to an Assign as it travels; withheld: an empty one.

        Raises Diverged for numbers that are unfit to use, LocalProtocolError for what is too large for the
        federation's encoding, RemoteProtocolError for whatever else may not be sent.
        """
        slots = {} if withheld else self.row_of(assign).up
        try:
            check_roles(knowledge, slots, self.expect)  # which looks at the numbers, too
        except RemoteProtocolError:
            divergence.check_knowledge(knowledge)
            raise
        return self.chain.apply(knowledge)

    def stored_assign(self, frame: bytes) -> Assign:
        """An Assign that was received before, from its frame."""
        message: Message = codec.decode(frame, self.limits).message
        if not isinstance(message, Assign):
            raise RemoteProtocolError("schema", "the stored frame is no Assign")
        return self.chain.received(message, "common", "personal")

    def withheld_in(self, frame: bytes) -> str:
        """Why the upload in a stored frame shares nothing; empty: it does."""
        message: Message = codec.decode(frame, self.limits).message
        return message.withheld if isinstance(message, Upload) else ""


def enter(welcome: Welcome, own: ModelSpec, *, shares_weights: bool) -> Membership:
    """Load the method and check that both sides mean the same by it.

    own: this device's model; shares_weights: whether its owner lets its weights leave.  Raises RemoteProtocolError
    where this device cannot take part.
    """
    spec = welcome.spec
    try:
        method = method_of(spec)
    except UsageError as error:
        raise RemoteProtocolError("knowledge", f"{error}: install or upgrade this device's SDK") from None
    if method.digest != spec.contract:
        raise RemoteProtocolError("knowledge", f"{spec.method}: the two halves differ: upgrade the older side")
    if method.shares_weights and not shares_weights:
        raise RemoteProtocolError("knowledge", f"{spec.method}: shares weights, and share_weights is not set here")
    expect = _expected(spec, own)
    return Membership(
        welcome=welcome,
        method=method,
        expect=expect,
        limits=frame_limits(method.every_exchange, expect),
        chain=transforms.chain(spec),
    )


def _expected(spec: FederationSpec, own: ModelSpec) -> Expect:
    """What payloads must fit: weights, those of this device's own model."""
    count = own.parameters if own.layout else 0
    return expected_weights(expectation(spec), count=count, feature_dim=own.feature_dim, layout=own.layout)

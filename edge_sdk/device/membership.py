"""A device's membership in a federation: the settings from its Welcome, and the legal exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edge_sdk.device.training import divergence
from edge_sdk.errors import Diverged, LearningLost, RemoteProtocolError, UsageError
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import method_of, requests_of
from edge_sdk.methods.contract.requests import handler_of
from edge_sdk.models.base import ModelSpec
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import CommonKnowledge, Limits
from edge_sdk.protocol.knowledge import Expect, Payload
from edge_sdk.protocol.messages import Assign, FederationSpec, Message, PublicSetSpec, Upload, Welcome
from edge_sdk.protocol.transforms import Coding
from edge_sdk.protocol.wires import Exchange, check_roles, down_slots, expectation, expected_weights, frame_limits


@dataclass(frozen=True)
class Membership:
    """A federation as one of its devices sees it."""

    welcome: Welcome
    method: Method[Any]
    """The method with the federation's parameters."""
    expect: Expect
    """The shapes and bounds that payloads must fit; for weights, those of the model that this device shares."""
    limits: Limits
    """The limits of the federation's frames."""
    coding: Coding
    """The transforms of knowledge between the method and the wire."""

    @property
    def spec(self) -> FederationSpec:
        """The settings that all devices of the federation share."""
        return self.welcome.spec

    @property
    def public(self) -> PublicSetSpec | None:
        """The public set that the method needs, if any."""
        return self.spec.public if self.method.needs_public_set else None

    def is_last(self, exchange: int) -> bool:
        """Whether a round ends with this exchange."""
        return exchange == len(self.method.exchanges) - 1

    def completes_personal(self, at: Assign) -> bool:
        """Return whether the device's own, personal model is complete after an exchange, not in the middle of a round.

        Reports measure the personal model here: after a round's training, or at the closing exchange.
        """
        return self.method.personal_after == "arrival" if at.closing else self.is_last(at.exchange)

    def exchange_for(self, assign: Assign) -> Exchange:
        """Return the exchange that an Assign opens.  Raises RemoteProtocolError if the method has no such exchange."""
        if assign.closing:
            return self.method.closing
        if assign.exchange >= len(self.method.exchanges):
            raise RemoteProtocolError(
                "knowledge", f"exchange {assign.exchange}: this method has {len(self.method.exchanges)} a round"
            )
        return self.method.exchanges[assign.exchange]

    def undo_transforms(self, assign: Assign, known: CommonKnowledge | None = None) -> Assign:
        """Return an Assign with its knowledge decoded for the method.  Raises RemoteProtocolError if it is illegal.

        known: common knowledge already decoded by another device of this process.  If it is the same, decoding and
        checks are skipped: a simulation of many devices does them once for all.
        """
        rounds = self.spec.rounds
        if assign.closing != (assign.round == rounds) or assign.round > rounds or (assign.closing and assign.exchange):
            place = f"round {assign.round} of {rounds}, exchange {assign.exchange}"
            raise RemoteProtocolError("knowledge", f"{place}: out of place, or its closing flag is wrong")
        common, personal = down_slots(self.exchange_for(assign))
        if assign.alone:
            check_roles(assign.down, {}, self.expect)
            return assign
        if known is None or known.decoded is not assign.common:
            assign = self.coding.received(assign, "common", "personal")
            check_roles(assign.common, common, self.expect)
        else:
            purpose = self.expect, assign.closing, assign.exchange
            if known.checked_for != purpose:
                restored = self.coding.undo(assign.common)
                check_roles(restored, common, self.expect)
                known.checked_for, known.restored = purpose, restored
            assign = self.coding.received(assign, "personal")
            if known.restored is not assign.common:
                assign = replace(assign, common=known.restored)
        check_roles(assign.personal, personal, self.expect)
        return assign

    def apply_transforms(
        self, knowledge: Mapping[str, Payload], assign: Assign, *, withheld: bool
    ) -> dict[str, Payload]:
        """Return the knowledge of an upload in the form in which it is sent; withheld: it must be empty.

        Raises Diverged for numbers that are not finite or beyond MAX_MAGNITUDE, LocalProtocolError for numbers that
        the federation's encoding cannot carry, and RemoteProtocolError for any other misfit.
        """
        slots = {} if withheld or assign.alone else self.exchange_for(assign).up
        if not isinstance(knowledge, Mapping):
            found = f"{self.method.name}: share() gave {type(knowledge).__name__}"
            raise RemoteProtocolError("knowledge", f"{found}, expected a dict of payloads by role")
        try:
            check_roles(knowledge, slots, self.expect)
        except RemoteProtocolError:
            divergence.check_knowledge(knowledge)  # reports bad numbers as Diverged, which withholds the round
            raise
        return self.coding.apply(knowledge)

    def stored_assign(self, frame: bytes) -> Assign:
        """Decode an Assign that was received and stored before."""
        message: Message = codec.decode(frame, self.limits).message
        if not isinstance(message, Assign):
            raise RemoteProtocolError("schema", "the stored frame is not an Assign")
        return self.coding.received(message, "common", "personal")

    def withheld_in(self, frame: bytes) -> LearningLost | None:
        """Return why the upload in a stored frame has no knowledge, or None if it has some."""
        message: Message = codec.decode(frame, self.limits).message
        if not isinstance(message, Upload) or not message.withheld:
            return None
        kinds = (kind for kind in LearningLost.__subclasses__() if kind.code == message.withheld_cause)
        return next(kinds, Diverged)(message.withheld)


def join(welcome: Welcome, own: ModelSpec, *, shares_weights: bool, has_proxy: bool = False) -> Membership:
    """Load the method that a Welcome names, and check that both sides have the same version of it.

    own: the model whose weights are shared, if any: the proxy, or else the device's own.  shares_weights: whether the
    owner lets weights leave the device.  has_proxy: whether `own` is a proxy, so that the own model's weights stay.
    Raises RemoteProtocolError if this device cannot take part.
    """
    spec = welcome.spec
    try:
        method = method_of(spec)
        for request in requests_of(type(method)):
            handler_of(request)
    except UsageError as error:
        raise RemoteProtocolError("knowledge", f"{error}: install or upgrade this device's SDK") from None
    if method.digest != spec.contract:
        raise RemoteProtocolError("knowledge", f"{spec.method}: the two halves differ: upgrade the older side")
    if method.shares_weights and not shares_weights:
        raise RemoteProtocolError("knowledge", f"{spec.method}: shares weights, and share_weights is not set here")
    if method.shares_weights and has_proxy and "proxy" not in method.needs:
        raise RemoteProtocolError("knowledge", f"{spec.method}: shares the own model's weights, and proxy= is set here")
    expect = _expected(spec, own)
    return Membership(
        welcome=welcome,
        method=method,
        expect=expect,
        limits=frame_limits(method.every_exchange, expect),
        coding=Coding(spec.encoding),
    )


def _expected(spec: FederationSpec, own: ModelSpec) -> Expect:
    count = own.parameters if own.layout else 0
    return expected_weights(expectation(spec), count=count, feature_dim=own.feature_dim, layout=own.layout)

"""Checks of what the method gives the coordinator to send: devices would refuse it, each in its own log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.methods.base import Method
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import Payload, Slot
from edge_sdk.protocol.messages import FederationSpec, Hello
from edge_sdk.protocol.wires import Exchange, check_roles, down_slots, expectation, expected_weights


class AssignChecks:
    """Checks the knowledge of Assigns against the exchanges of the method, as each device does."""

    def __init__(self, spec: FederationSpec, method: Method[Any]) -> None:
        self._method, self._rounds = method, spec.rounds
        self._sizes = expectation(spec)

    def check_common(self, at: ExchangeId, hello: Hello, common: Mapping[str, Payload]) -> None:
        """Raise LocalProtocolError, which names the method, for knowledge that is not of the exchange at `at`.

        common: of all devices, before the federation's transforms.  hello: that of one of them.
        """
        self._check(common, down_slots(self._exchange(at))[0], hello)

    def check_personal(self, at: ExchangeId, hello: Hello, personal: Mapping[str, Payload]) -> None:
        """Raise LocalProtocolError for knowledge for the device of this Hello, as `check_common` does."""
        slots = down_slots(self._exchange(at))[1]
        if slots or personal:
            self._check(personal, slots, hello)

    def _exchange(self, at: ExchangeId) -> Exchange:
        return self._method.closing if at.round == self._rounds else self._method.exchanges[at.exchange]

    def _check(self, given: Mapping[str, Payload], slots: Mapping[str, Slot], hello: Hello) -> None:
        expect = expected_weights(
            self._sizes, count=hello.weight_count, feature_dim=hello.feature_dim, layout=hello.layout or b""
        )
        try:
            check_roles(given, slots, expect)
        except RemoteProtocolError as error:
            raise LocalProtocolError(
                f"what the method {self._method.name} gives to send is not what its exchange declares: {error}"
            ) from error

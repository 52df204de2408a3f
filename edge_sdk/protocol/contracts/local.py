"""Local training alone: nothing is exchanged; the line that every method must beat."""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.wires import Contract, Exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParams:
    """No hyper-parameters."""


LOCAL: Contract[LocalParams] = Contract(
    name="local",
    title="Local training, no exchange",
    citation="baseline",
    params=LocalParams,
    exchanges=lambda _params: (Exchange(),),
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients"}),
    teaches=frozenset({"predict"}),
    terms=frozenset({"cross-entropy"}),
    discloses="the number of samples and the device's own accuracies",
)

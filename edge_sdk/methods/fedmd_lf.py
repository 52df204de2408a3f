"""FedMD-LF: FedMD in several iterations a round, with less-forgetting; FedAL without its discriminator.

The ablation of Han, Shi and Huang, "FedAL: Black-Box Federated Knowledge Distillation Enabled by Adversarial Learning",
IEEE JSAC 2024, section V.  Its rounds on the device are those of transfer.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from edge_sdk.methods.contract.base import Down
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.transfer import Transfer, targets
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import wire
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import Bag


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedMD-LF: those of FedAL that do not concern the discriminator."""

    tau: Annotated[int, Range(1, 1000, paper="5 to 15")] = 5
    """tau: iterations of the transfer stage, each one round trip."""
    public_batch: Annotated[int, Range(1, 65536, paper="32")] = 32
    """B: public samples per iteration."""
    temperature: Annotated[float, Range(0.01, 100, paper="1")] = 1.0
    """E: temperature of the KL terms."""
    less_forgetting: Annotated[float, Range(0, 1000, paper="1")] = 1.0
    """Weight of both less-forgetting terms; 0 leaves FedMD with tau iterations."""
    target: Literal["leave-one-out", "all"] = "leave-one-out"
    """Whose mean a device learns from: the others' (`leave-one-out`), or `all`, itself included."""


@wire("fedmd-lf-coordinator-state")
@dataclass(frozen=True, slots=True)
class State:
    """The means for the next exchange."""

    means: Mapping[str, PublicLogits] = field(default_factory=dict)
    """The mean that a device learns from, by device number."""


class FedMDLF(Transfer[Params]):
    """Runs without a discriminator, so the coordinator needs no torch."""

    name = "fedmd_lf"
    title = "FedMD-LF: mean logits of the others over several iterations, less forgetting"
    citation = "Han, Shi and Huang 2024, IEEE JSAC, FedAL (its ablation)"

    def begin(self, spec: FederationSpec) -> State:
        """Start without means."""
        return State()

    def down_to(self, state: State, at: ExchangeId, number: int) -> Down:
        """Send the mean of the iteration before; none in the first exchange or to a device that missed it."""
        return {"mean": state.means.get(str(number))} if at.exchange > 0 else {}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Compute the mean for each device; the last exchange of a round only confirms."""
        if at.exchange == self.params.tau:
            return State()
        found = targets(uploads.payloads(PublicLogits, "logits"), self.params.target)
        return State({str(number): mean for number, mean in found.items()})

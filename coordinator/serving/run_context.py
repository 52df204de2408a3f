"""The parts of one running coordinator that its handlers share: each of them receives this one object."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from coordinator.ledger import Ledger
from coordinator.record.observer import RunObserver
from coordinator.record.run_record import RunRecord
from coordinator.rounds import Persist, RoundPolicy, RoundState
from coordinator.rounds.queue import RoundQueue
from coordinator.serving.devices.device_registry import DeviceRegistry
from coordinator.serving.intake.signatures import LabSecurity
from coordinator.serving.operators.orders import Orders
from coordinator.serving.round_pacing import RoundPacing
from coordinator.serving.run_warnings import RunWarnings
from edge_sdk.protocol.messages import FederationSpec


@dataclass
class RunContext:
    """The specification, the stores, the state and the observer of a run."""

    spec: FederationSpec
    policy: RoundPolicy
    ledger: Ledger
    registry: DeviceRegistry
    record: RunRecord
    orders: Orders
    warnings: RunWarnings
    observer: RunObserver
    security: LabSecurity | None
    """The keys of the lab, or None to leave frames unsigned."""
    run: bytes | None
    """The id that messages carry, if any."""
    pacing: RoundPacing
    """Decides when rounds open."""
    queue: RoundQueue = field(init=False)
    """Set once the handler of its commands exists, which needs this context."""
    unwritten: list[Persist] = field(default_factory=list)
    """Uploads that share the next commit."""
    refused: list[Persist] = field(default_factory=list)
    """Uploads that the disk refused; the round waits until they are written."""

    @property
    def rounds(self) -> RoundState:
        """The state of the rounds."""
        return self.queue.state

    @property
    def revoked(self) -> Collection[str]:
        """The devices whose keys the lab has revoked."""
        return self.security.revoked if self.security else ()

    def note(self, line: str) -> None:
        """Give a line to the owner of the run."""
        self.observer.noted(line)

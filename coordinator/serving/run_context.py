"""The parts of one running coordinator that its handlers share, as one object; and the warnings of the run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.ledger import Ledger
from coordinator.record import remarks
from coordinator.record.observer import RunObserver
from coordinator.record.run_record import RunRecord
from coordinator.rounds import Persist, RoundPolicy, RoundState
from coordinator.rounds.queue import RoundQueue
from coordinator.serving.devices.device_registry import DeviceRegistry
from coordinator.serving.intake.signatures import LabSecurity
from coordinator.serving.operators.orders import Orders
from coordinator.serving.round_pacing import RoundPacing
from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol.messages import FederationSpec, Hello


class RunWarnings:
    """The warnings of one run.  Their texts are in remarks.py."""

    def __init__(self, method: Method[Any], spec: FederationSpec, policy: RoundPolicy) -> None:
        self._method, self._spec, self._policy = method, spec, policy
        self._said = method.warnings(spec)
        """Stored warnings; those about devices and the record are recomputed at each call."""

    def all(self, hellos: Mapping[str, Hello], record: RunRecord) -> tuple[str, ...]:
        """All warnings so far, in the order of a report."""
        method = self._method
        told = [hello.class_counts for hello in hellos.values() if hello.class_counts]
        everybody = not self._policy.participants
        return (
            *self._said,
            *(remarks.left(device, reason) for device, reason in sorted(record.left.items())),
            *map(remarks.contested, sorted(record.contested)),
            *remarks.logits_taken(hellos),
            *remarks.batch_norm(method, hellos),
            *method.population(told),
            *remarks.frozen(method, hellos),
            *remarks.withheld(record.sums["withheld"], record.why_withheld),
            *remarks.not_served(record.sums["not_served"], record.why_not_served),
            *remarks.far_off(record.outliers, record.left_out),
            *remarks.left_out(record.left_out, record.why_left_out),
            *remarks.claimed_too_much(record.capped),
            *remarks.without_effect(method, self._spec, record.instruments),
            *remarks.laggards(record.laggards() if method.lock_step and everybody else ()),
        )

    def first_joined(self, hello: Hello, free_bytes: Callable[[], int | None]) -> Iterator[str]:
        """The warnings once the first device has joined and its model is known: W18, and W8 for all devices' slots.

        free_bytes: returns the free bytes where the slots are stored, or None if unknown.
        """
        told = remarks.labels_told(self._method)
        if told is not None:
            yield told
        if self._method.caching:
            yield from self._new(
                remarks.slot_room(self._method, self._policy.expected, hello.weight_count, free_bytes())
            )

    def round_ended(self, record: RunRecord, state: Any) -> Iterator[str]:
        """Warnings about the course of a run, each once: W3, W20 and those of the method.

        record: before it closes the round; state: of the method, after the round.
        """
        wanted = self._policy.participants or self._policy.expected
        yield from self._new(remarks.few_holders(self._method, record.holders.values(), record.sharers, wanted))
        yield from self._new(remarks.constant(record.metrics.values(), record.done, self._policy.rounds))
        for warning in self._method.course(state):
            yield from self._new(warning)

    def _new(self, warning: str | None) -> Iterator[str]:
        if warning is not None and warning not in self._said:
            self._said = (*self._said, warning)
            yield warning


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

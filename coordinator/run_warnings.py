"""What the users of a run should hear of, gathered: of its parameters, of its devices, and of how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from coordinator import remarks
from coordinator.record import Record
from coordinator.rounds import Policy
from edge_sdk.methods.base import Method
from edge_sdk.protocol.messages import FederationSpec, Hello


class RunWarnings:
    """The warnings of one run.  Their words are in remarks.py."""

    def __init__(self, method: Method[Any], spec: FederationSpec, policy: Policy) -> None:
        self._method, self._policy = method, policy
        self._said = method.warnings(spec)
        """Those that stay: what follows from devices and record is found anew each time."""

    def all(self, hellos: Mapping[str, Hello], record: Record) -> tuple[str, ...]:
        """Everything so far, in the order of a report."""
        method = self._method
        told = [hello.class_counts for hello in hellos.values() if hello.class_counts]
        everybody = not self._policy.participants
        return (
            *self._said,
            *(remarks.left(device, reason) for device, reason in sorted(record.left.items())),
            *remarks.batch_norm(method, hellos),
            *method.population(told),
            *remarks.frozen(method, hellos),
            *remarks.diverged(record.withheld, record.why_withheld),
            *remarks.far_off(record.outliers),
            *remarks.laggards(record.laggards() if method.lock_step and everybody else ()),
        )

    def first_joined(self, hello: Hello, free_bytes: Callable[[], int | None]) -> Iterator[str]:
        """What to say once the first device is in, and its model known: W18, and W8 for its fellows' slots.

        free_bytes: where they will lie.
        """
        told = remarks.labels_told(self._method)
        if told is not None:
            yield told
        if self._method.caching:
            yield from self._new(
                remarks.slot_room(self._method, self._policy.expected, hello.weight_count, free_bytes())
            )

    def round_ended(self, record: Record) -> Iterator[str]:
        """What to say, once, where too few devices stand behind the rows of a class (W3); record: before it forgets."""
        wanted = self._policy.participants or self._policy.expected
        yield from self._new(remarks.few_holders(self._method, record.holders.values(), record.sharers, wanted))

    def _new(self, warning: str | None) -> Iterator[str]:
        if warning is not None and warning not in self._said:
            self._said = (*self._said, warning)
            yield warning

"""The seats of a federation without a roster: any device may join until all seats are taken.

A newcomer is on probation until its first upload counts.  It is welcomed and invited, but has no seat yet: so devices
that only say Hello cannot keep others out.
"""

from __future__ import annotations

from coordinator.serving.devices.admission import RefusalReason
from coordinator.serving.run_context import RunContext

MOST_ON_PROBATION = 16
"""Maximum number of devices on probation beyond the free seats."""


class Seats:
    """Open enrolment: which devices hold a seat, and which may still join."""

    def __init__(self, context: RunContext) -> None:
        self._context, self._registry, self._record = context, context.registry, context.record
        self._count = max(context.policy.expected, context.policy.most_devices)

    def on_probation(self, device: str) -> bool:
        """Whether a device has no seat yet: it is not on a roster and has not uploaded."""
        if self._registry.place_on_roster(device) is not None or device in self._context.rounds.folded:
            return False
        answered = self._record.contributed[device] or self._record.sums["withheld"][device]
        return not answered and all(
            each.device != device for each in [*self._context.refused, *self._context.unwritten]
        )

    def refusal(self, device: str) -> RefusalReason | None:
        """Why a newcomer may not join, or None if a seat is left or a device on probation may give up its place."""
        seated = sum(not self.on_probation(each) for each in self._here())
        if seated < self._count:
            return None
        return RefusalReason(
            "full",
            f"{device}: all {self._count} seats of this federation are taken",
            "raise federation.most_devices, or name the devices in federation.roster; a device that will not come back "
            "gives up its seat by edge-sdk forget",
        )

    @property
    def crowded(self) -> bool:
        """Whether a further device gets on probation only if another one gives up its place."""
        return len(self._here()) >= self._count + MOST_ON_PROBATION

    def to_displace(self) -> str | None:
        """The device on probation that gives up its place: one that was invited and silent, or None."""
        away = self._context.rounds.away
        return next((each for each in self._registry.numbers if each in away and self.on_probation(each)), None)

    def _here(self) -> list[str]:
        return [each for each in self._registry.numbers if each not in self._record.left]

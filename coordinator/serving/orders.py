"""What an operator has ordered and a restart must know: devices taken out or forgotten, and whether the run stops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.ledger import Ledger
from coordinator.serving.device_registry import DeviceRegistry


@dataclass(frozen=True, slots=True)
class Standing:
    """The orders that are in force."""

    drained: frozenset[str] = frozenset()
    """Devices that are taken out at the end of the round, or were: they are refused until an operator lets them in."""
    forgotten: frozenset[str] = frozenset()
    """Devices to be deleted from the ledger once no upload of theirs is needed any more."""
    stopping: bool = False
    """Whether the run stops at the end of this round."""


class Orders:
    """The orders that are in force; every change is durable before it counts."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        plain = ledger.orders()
        self._standing = Standing(
            frozenset(plain.get("drained", ())), frozenset(plain.get("forgotten", ())), bool(plain.get("stopping"))
        )

    @property
    def drained(self) -> frozenset[str]:
        """Devices that are taken out, or will be at the end of the round."""
        return self._standing.drained

    @property
    def forgotten(self) -> frozenset[str]:
        """Devices that are still to be deleted from the ledger."""
        return self._standing.forgotten

    @property
    def stopping(self) -> bool:
        """Whether the run stops at the end of this round."""
        return self._standing.stopping

    @property
    def gone(self) -> frozenset[str]:
        """The devices that nobody waits for after a restart."""
        return self.drained | self.forgotten

    def stop(self, *, wanted: bool) -> None:
        """Note that the run stops at the end of this round, or no longer does.  Raises StoreError."""
        self._keep(replace(self._standing, stopping=wanted))

    def drain(self, device: str) -> None:
        """Note that a device is taken out.  Raises StoreError."""
        self._keep(replace(self._standing, drained=self.drained | {device}))

    def let_in(self, device: str) -> None:
        """Note that a device may take part again.  Raises StoreError."""
        self._keep(replace(self._standing, drained=self.drained - {device}, forgotten=self.forgotten - {device}))

    def forget(self, device: str) -> None:
        """Note that a device is to be deleted.  Raises StoreError."""
        self._keep(replace(self._standing, drained=self.drained - {device}, forgotten=self.forgotten | {device}))

    def delete_forgotten(self, registry: DeviceRegistry) -> None:
        """Delete the forgotten devices of which no upload is needed: between two rounds, those without a slot.

        Raises StoreError.
        """
        for device in sorted(self.forgotten):
            if self._ledger.slot(device) is None:
                self._ledger.forget(device)
                registry.forget(device)
                self._keep(replace(self._standing, forgotten=self.forgotten - {device}))

    def _keep(self, standing: Standing) -> None:
        if standing != self._standing:
            plain = {"drained": sorted(standing.drained), "forgotten": sorted(standing.forgotten)}
            self._ledger.keep_orders({**plain, "stopping": standing.stopping})
            self._standing = standing

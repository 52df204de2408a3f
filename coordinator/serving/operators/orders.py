"""Operators' orders that outlive a restart: devices taken out, paused or forgotten, and whether the run stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator.ledger import Ledger
from coordinator.serving.devices.device_registry import DeviceRegistry
from edge_sdk.protocol.frames.codec import Stamp


@dataclass(frozen=True, slots=True)
class Standing:
    """The orders in force."""

    drained: frozenset[str] = frozenset()
    """Devices that are, or will be at the end of the round, taken out: refused until an operator lets them in."""
    forgotten: frozenset[str] = frozenset()
    """Devices to delete from the ledger once their uploads are no longer needed."""
    stopping: bool = False
    """Whether the run stops at the end of this round."""
    paused: frozenset[str] = frozenset()
    """Devices that are not invited until an operator resumes them."""
    commands: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(start, sequence) of the last signed command of each operator's key, which is in hexadecimal digits."""
    rollouts: Sequence[Mapping[str, Any]] = ()
    """The models that were rolled out last, as plain values (rollout.py)."""


class Orders:
    """The orders in force; every change is durable before it counts."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        plain = ledger.orders()
        self._standing = Standing(
            frozenset(plain.get("drained", ())),
            frozenset(plain.get("forgotten", ())),
            bool(plain.get("stopping")),
            frozenset(plain.get("paused", ())),
            {key: (int(start), int(sequence)) for key, (start, sequence) in plain.get("commands", {}).items()},
            plain.get("rollouts", ()),
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
    def paused(self) -> frozenset[str]:
        """Devices that are not invited until an operator resumes them."""
        return self._standing.paused

    @property
    def stopping(self) -> bool:
        """Whether the run stops at the end of this round."""
        return self._standing.stopping

    @property
    def rollouts(self) -> Sequence[Mapping[str, Any]]:
        """The models that were rolled out last, as plain values."""
        return self._standing.rollouts

    def keep_rollouts(self, plain: Sequence[Mapping[str, Any]]) -> None:
        """Record the models that are rolled out, and their stages.  Raises StoreError."""
        self._keep(replace(self._standing, rollouts=plain))

    @property
    def gone(self) -> frozenset[str]:
        """The devices that a restarted run does not wait for."""
        return self.drained | self.forgotten

    def take_note(self, stamp: Stamp) -> bool:
        """Record a signed command durably; returns whether it is newer than its operator's last one.

        Raises StoreError.
        """
        key, at = stamp.key_id.hex(), (stamp.boot_epoch, stamp.sequence)
        if at <= self._standing.commands.get(key, (0, 0)):
            return False
        self._keep(replace(self._standing, commands={**self._standing.commands, key: at}))
        return True

    def stop(self, *, wanted: bool) -> None:
        """Record whether the run stops at the end of this round.  Raises StoreError."""
        self._keep(replace(self._standing, stopping=wanted))

    def pause(self, device: str, *, wanted: bool) -> None:
        """Record whether a device is invited.  Raises StoreError."""
        others = self._standing.paused - {device}
        self._keep(replace(self._standing, paused=others | {device} if wanted else others))

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
        """Delete the forgotten devices whose uploads are not needed: between two rounds, those without a slot.

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
            later: dict[str, Any] = {"paused": sorted(standing.paused), "commands": dict(standing.commands)}
            later["rollouts"] = [*standing.rollouts]
            given = {name: value for name, value in later.items() if value}
            self._ledger.keep_orders({**plain, "stopping": standing.stopping, **given})
            self._standing = standing

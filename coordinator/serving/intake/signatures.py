"""Signatures and encryption of a federation with a lab: signs its frames, and verifies those of others.

A frame of a device must be signed with the key that the lab's registry has for the device that its topic names, and one
of an operator with the key of an operator.  This is checked before the frame is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.identity.folder import COORDINATOR_FOLDER, Identity, crypto_keys, open_identity
from edge_sdk.identity.key_files import used_alone
from edge_sdk.identity.registry import RegistryReader, change_registry, with_revoked
from edge_sdk.identity.sealing import Sealing, sealed_limits
from edge_sdk.identity.signatures import FrameSigner, Genuine, Role, signed_text
from edge_sdk.protocol.frames.codec import Limits, Stamp, Verify

LOOK_EVERY_S = 1.0
"""Seconds between two reads of the registry, which is how soon a revocation takes effect."""


class LabSecurity:
    """The keys of a lab, as a coordinator uses them."""

    def __init__(self, lab: Path) -> None:
        """Raises UsageError if the folder is not a lab, is damaged, or open to other users."""
        self._lab, self._reader = lab, RegistryReader(lab)
        self.identity: Identity = open_identity(lab / COORDINATOR_FOLDER, Role.COORDINATOR)
        self._genuine: Genuine = crypto_keys().is_genuine
        self._look_again_s = float("-inf")
        self._sealings: dict[tuple[str, str], Sealing] = {}
        """By federation and device."""
        self._read()

    def _read(self) -> None:
        registry = self._reader.registry
        self._devices, self._operators = registry.device_keys(), registry.operator_keys()
        self._sealing_keys = registry.sealing_keys()
        self.revoked = registry.revoked_devices
        """The devices that may no longer take part."""

    @property
    def encrypts(self) -> bool:
        """Whether frames between devices and coordinator must be encrypted."""
        return self.identity.exchange_key is not None

    def carried(self, limits: Limits) -> Limits:
        """Return the limits of frames as the broker carries them: larger than `limits` if they are encrypted."""
        return sealed_limits(limits) if self.encrypts else limits

    def sealing(self, federation: str, device: str) -> Sealing | None:
        """Return the encryption to and from a device, or None if the lab does not encrypt or the device has no key."""
        peer, found = self._sealing_keys.get(device, b""), self._sealings.get((federation, device))
        if found is None or found.peer != peer:
            found = self.identity.sealing(peer, federation, device)
            if found is not None:
                self._sealings[federation, device] = found
        return found

    @contextmanager
    def serving_alone(self, federation: str, *, one_connection: bool) -> Iterator[None]:
        """Keep other coordinators on this machine from serving the federation with these keys, within this context.

        one_connection: the broker gives each certificate one connection, so a second coordinator may not serve another
        federation there, either.  Raises UsageError if another coordinator is running: devices would trust only the one
        that was started last.
        """
        folder, running = self._lab / COORDINATOR_FOLDER, f"{self._lab}: another coordinator"
        with ExitStack() as locks:
            text = f"{running} of {federation!r} is running with this lab: stop it"
            locks.enter_context(used_alone(folder, f"serving-{federation}", text))
            if one_connection:
                text = (
                    f"{running} is running with this lab, whose broker gives each certificate one connection: stop it, "
                    "or make a lab for each federation"
                )
                locks.enter_context(used_alone(folder, "serving", text))
            yield

    def started(self, epoch: int) -> FrameSigner:
        """Count a start of the coordinator, durably; returns the signer of its frames.

        epoch: of the ledger; it may be ahead if the run was begun without these keys.
        """
        return self.identity.started(least=epoch)

    def look(self, now_s: float) -> bool:
        """Reload the registry if it is due and has changed; returns whether it has.

        An unreadable registry changes nothing until it can be read.
        """
        if now_s < self._look_again_s:
            return False
        self._look_again_s = now_s + LOOK_EVERY_S
        try:
            changed = self._reader.refresh()
        except UsageError:
            return False
        if changed:
            self._read()
        return changed

    def revoke(self, device: str) -> str:
        """Revoke a device in the registry, durably; returns why it cannot be revoked, or empty on success."""
        try:
            change_registry(self._lab, lambda registry: (with_revoked(registry, device), None))
        except UsageError as error:
            return str(error)
        self._look_again_s = float("-inf")
        return ""

    def of_device(self, device: str) -> Verify:
        """Return the check of a frame that came on a topic of this device."""

        def verify(key: bytes, signed: bytes, signature: bytes) -> bool:
            owner, public = self._devices.get(key, ("", b""))
            if device in self.revoked:
                raise RemoteProtocolError("signature", f"{device} is revoked")
            if owner != device:
                known = f"the key of {owner}" if owner else f"the unknown key {key.hex()[:8]}"
                raise RemoteProtocolError("signature", f"on the topic of {device}, signed with {known}")
            return self._genuine(public, signed_text(Role.DEVICE, signed), signature)

        return verify

    def of_operator(self, key: bytes, signed: bytes, signature: bytes) -> bool:
        """Check a frame that came on the topic of commands."""
        public = self._operators.get(key)
        if public is None:
            raise RemoteProtocolError("signature", f"signed with {key.hex()[:8]}, which is not an operator's key")
        return self._genuine(public, signed_text(Role.OPERATOR, signed), signature)


def newer(stamp: Stamp, last: Stamp | None) -> bool:
    """Whether a frame is newer than another one; frames with different keys cannot be compared."""
    if last is None or last.key_id != stamp.key_id:
        return True
    return (stamp.boot_epoch, stamp.sequence) > (last.boot_epoch, last.sequence)


def counts_again(stamp: Stamp, last: Stamp | None) -> bool:
    """Whether two frames share key and start: one process made both, unless the keys were copied."""
    return last is not None and (stamp.key_id, stamp.boot_epoch) == (last.key_id, last.boot_epoch)

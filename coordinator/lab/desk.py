"""The desk that enrols boards: checks a claim and issues the certificate, over the lab's broker.

Each answer follows from the registry, which is on disk before the answer is sent.  So a board that asks again gets the
same answer, and of two boards with one claim the first wins.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from coordinator.lab import broker_settings, owner
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.identity.claims import (
    CLAIMS_ROOT,
    EnrolmentRequest,
    pack_enrolment_answer,
    pack_enrolment_fault,
    unpack_enrolment_request,
)
from edge_sdk.identity.folder import COORDINATOR_FOLDER, crypto_keys, open_identity
from edge_sdk.identity.registry import EnrolledDevice, Registry, change_registry, read_registry
from edge_sdk.identity.signatures import Role
from edge_sdk.protocol.entry_guard import EntryGuard

SUBSCRIPTION = f"{CLAIMS_ROOT}/+"
_CLOSED = {
    "replaced": "the lab has issued a newer claim for {device} since: use that one",
    "revoked": "the claim for {device} was revoked: ask the owner of the lab for a new one",
    "used": "the claim for {device} was already used by other keys, and each works once; ask the owner of the lab for "
    "a new one, and, unless you used it yourself, to revoke {device}",
}
_DIFFERS = "the secret in this claim is not the one that the lab issued: copy the file again"


class EnrolmentDesk:
    """Answers the messages of boards that hold a claim."""

    def __init__(self, lab: Path) -> None:
        """Raises UsageError if the folder is not a lab."""
        read_registry(lab)
        self._lab, self._guard = lab, EntryGuard("desk")
        self.refused = self._guard.refused
        """Unanswered messages, by word."""
        self._issuer = owner.authority_of(lab)
        self._encrypts = bool(open_identity(lab / COORDINATOR_FOLDER, Role.COORDINATOR).about.sealing)

    def answer(self, topic: str, message: bytes) -> tuple[str, bytes, str] | None:
        """Return the topic and message of the answer, and a line about it, or None for no answer.

        Raises StoreError if the disk fails.
        """
        user = topic.removeprefix(f"{CLAIMS_ROOT}/")
        with self._guard.message(topic):
            answer, line = change_registry(self._lab, lambda registry: self._enrol(registry, user, message))
            return f"{CLAIMS_ROOT}/{user}/card", answer, line
        return None

    def _enrol(self, registry: Registry, user: str, message: bytes) -> tuple[Registry, tuple[bytes, str]]:
        """Return the registry after a request, the answer, and a line for the owner.

        Raises RemoteProtocolError for a message from anyone but the holder of a claim.
        """
        claim = registry.claims.get(user)
        if claim is None:
            return registry, (pack_enrolment_fault("the lab knows no such claim"), f"an unknown claim {user[:64]!r}")
        device = claim.device
        closed = (
            registry,
            (
                pack_enrolment_fault(_CLOSED.get(claim.state, "").format(device=device)),
                f"{device}: a claim that is {claim.state} was shown again",
            ),
        )
        if claim.state in ("replaced", "revoked"):
            return closed  # without reading the message
        try:
            request = unpack_enrolment_request(claim.secret, message)
        except RemoteProtocolError as error:
            if error.kind != "signature" or claim.state != "open":
                raise
            return registry, (pack_enrolment_fault(_DIFFERS), f"{device}: a claim with a wrong secret was shown")
        public = request.public.hex()
        enrolled = registry.devices.get(device)
        if claim.state == "used" and claim.public == public and enrolled is not None and not enrolled.revoked:
            return registry, (
                pack_enrolment_answer(claim.secret, enrolled.certificate.encode()),
                f"{device} asked again",
            )
        if claim.state != "open":
            return closed
        fault = self._sealing_fault(request)
        if fault:
            return registry, (pack_enrolment_fault(fault), f"{device}: {fault}")
        after, besides = self._enrolled(registry, user, request)
        certificate = after.devices[device].certificate.encode()
        return after, (pack_enrolment_answer(claim.secret, certificate), f"{device} is enrolled{besides}")

    def _sealing_fault(self, request: EnrolmentRequest) -> str:
        """Return why a device cannot use this lab's encryption, or empty if it can."""
        if not self._encrypts:
            return ""
        if not request.sealing:
            return (
                "this lab encrypts, and the board sent no key for that: upgrade its edge-sdk, and use the claim again"
            )
        return (
            "" if crypto_keys("encryption").is_public(request.sealing) else "the board's key for encryption is invalid"
        )

    def _enrolled(self, registry: Registry, user: str, request: EnrolmentRequest) -> tuple[Registry, str]:
        """Return the registry with a device enrolled, and what else the owner must do, or empty.

        Earlier keys of the device are replaced.  The broker reloads its rules before the board gets its answer, because
        it would still refuse a device that was revoked before.
        """
        claim = registry.claims[user]
        try:
            certificate = self._issuer.issue_for_request(claim.device, request.signing_request)
        except ValueError as error:
            raise RemoteProtocolError("schema", f"signing request: {error}") from None
        public = request.public.hex()
        before = registry.devices.get(claim.device)
        after = dataclasses.replace(
            registry,
            claims={**registry.claims, user: dataclasses.replace(claim, state="used", public=public)},
            devices={
                **registry.devices,
                claim.device: EnrolledDevice(
                    public=public, certificate=certificate.decode(), sealing=request.sealing.hex()
                ),
            },
        )
        if before is None:
            return after, ""
        revoked = registry.revoked if before.revoked else [*registry.revoked, before.certificate]
        after = dataclasses.replace(after, revoked=revoked)
        owner.write_broker_files(self._lab, after)
        if broker_settings.reload_broker(self._lab):
            return after, ""
        return after, "; the broker is not running here: reload its settings (kill -HUP its process)"

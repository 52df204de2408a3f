"""The command `edge-sdk enroll`: creates a device's keys on the device, and requests its certificate from the lab."""

from __future__ import annotations

import argparse
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_sdk.at_rest.files import make_folder
from edge_sdk.errors import TransportError, UsageError
from edge_sdk.identity import key_files
from edge_sdk.identity.claims import (
    CLAIMS_ROOT,
    Claim,
    EnrolmentRequest,
    pack_enrolment_request,
    read_claim,
    unpack_enrolment_answer,
)
from edge_sdk.identity.folder import (
    ABOUT,
    AUTHORITY,
    CERTIFICATE,
    SEALING,
    SIGNING,
    TLS_KEY,
    IdentityCard,
    crypto_keys,
)
from edge_sdk.identity.signatures import Key, Role
from edge_sdk.protocol.entry_guard import EntryGuard
from edge_sdk.tools.operator.link import checked_timeout_s
from edge_sdk.transport.base import Connected, Disconnected, Incoming, Transport
from edge_sdk.transport.mqtt.tls import OF_CLAIM, TlsFiles

AGAIN_S = 2.0
"""Seconds after which a request without an answer is sent again."""
POLL_S = 0.1


def command(args: argparse.Namespace) -> int:
    """Enrol this device."""
    timeout_s = checked_timeout_s(args.timeout)
    claim = read_claim(args.claim)
    folder = args.identity or Path(claim.device)
    if (folder / ABOUT).exists():
        raise UsageError(f"{folder} is already an identity; name another folder with --identity, or remove this one")
    make_folder(folder, f"--identity {folder}", private=True)
    key, tls_key = _own_keys(folder)
    sealing = _own_sealing_key(folder) if claim.sealing else b""
    request = EnrolmentRequest(key.public, crypto_keys("a certificate").new_request(tls_key, claim.device), sealing)
    with _connected(claim, folder, args.claim) as transport:
        certificate = _ask(transport, claim, pack_enrolment_request(claim.secret, request), timeout_s)
    fault = crypto_keys("a certificate").fault_of(certificate, tls_key, claim.device, claim.authority.encode())
    if fault:
        raise UsageError(f"the certificate that the lab sent {fault}")
    key_files.write_whole(folder / CERTIFICATE, certificate)
    key_files.write_whole(folder / AUTHORITY, claim.authority.encode())
    about = IdentityCard(
        role=Role.DEVICE.value,
        name=claim.device,
        broker=claim.broker,
        coordinator=claim.coordinator,
        sealing=claim.sealing,
        own=key.public.hex(),
        own_sealing=sealing.hex(),
    )
    key_files.write_whole(folder / ABOUT, about.to_json())
    sys.stdout.write(
        f"{claim.device} is enrolled; its keys are in {folder}, and {args.claim} is used up\n"
        f"take part: edge-sdk device --identity {shlex.quote(str(folder))} --federation NAME --app my_app:make\n"
    )
    return 0


def _own_keys(folder: Path) -> tuple[Key, bytes]:
    """Return the signing key and the key of the certificate; an interrupted enrolment continues with its own."""
    keys = crypto_keys()
    if not (folder / SIGNING).exists():
        key_files.write_whole(folder / SIGNING, keys.new_signing_key().to_pem(), key_files.PRIVATE)
    if not (folder / TLS_KEY).exists():
        key_files.write_whole(folder / TLS_KEY, crypto_keys("a certificate").new_tls_key(), key_files.PRIVATE)
    key: Key = keys.read_signing_key(key_files.read_secret(folder / SIGNING), folder / SIGNING)
    return key, key_files.read_secret(folder / TLS_KEY)


def _own_sealing_key(folder: Path) -> bytes:
    """Return the public key for encryption, and create the private one if it is missing."""
    sealing = crypto_keys("encryption")
    if not (folder / SEALING).exists():
        key_files.write_whole(folder / SEALING, sealing.new_exchange_key().to_pem(), key_files.PRIVATE)
    public: bytes = sealing.read_exchange_key(key_files.read_secret(folder / SEALING), folder / SEALING).public
    return public


@contextmanager
def _connected(claim: Claim, folder: Path, shown: Path) -> Iterator[Transport]:
    """Connect with the claim's certificate, which is in the folder during the `with` block."""
    from edge_sdk.transport.mqtt.transport import MqttTransport

    authority, certificate, tls_key = (folder / f"claim.{name}" for name in ("ca", "pem", "key"))
    key_files.write_whole(authority, claim.authority.encode())
    key_files.write_whole(certificate, claim.certificate.encode())
    key_files.write_whole(tls_key, claim.tls_key.encode(), key_files.PRIVATE)
    try:
        files = TlsFiles(authority, certificate, tls_key, OF_CLAIM)
        transport = MqttTransport(claim.broker, claim.user, tls=files, clean=True, seed=secrets.randbits(32))
        try:
            transport.connect((f"{CLAIMS_ROOT}/{claim.user}/card",))
            yield transport
        finally:
            transport.close()
    except UsageError as error:
        raise UsageError(f"{shown}: {error}") from None
    finally:
        for path in (authority, certificate, tls_key):
            path.unlink(missing_ok=True)


def _ask(transport: Transport, claim: Claim, request: bytes, timeout_s: float) -> bytes:
    """Send the request until its answer comes; returns the certificate.

    Raises UsageError if the lab or its broker refuses the claim, TransportError if no answer comes in time.
    """
    end_s, again_s, guard = time.monotonic() + timeout_s, 0.0, EntryGuard("enrolment")
    linked, fault = False, "it does not answer"
    while time.monotonic() < end_s:
        if linked and time.monotonic() >= again_s:
            transport.send(f"{CLAIMS_ROOT}/{claim.user}", request)
            again_s = time.monotonic() + AGAIN_S
        event = transport.poll(POLL_S)
        if isinstance(event, Connected):
            linked, again_s = True, 0.0
        elif isinstance(event, Disconnected):
            linked, fault = False, event.reason
            if event.final:
                raise UsageError(fault)
        elif isinstance(event, Incoming):
            event.acknowledge()
            with guard.message(event.topic):
                return unpack_enrolment_answer(claim.secret, event.frame)
    if guard.refused:
        count = guard.refused.total()
        raise TransportError(f"none of {count} answers was the lab's: is {claim.broker} its broker?")
    if linked:
        raise TransportError(f"the lab's desk did not answer within {timeout_s:g} s: is edge-sdk lab serve running?")
    raise TransportError(f"no broker within {timeout_s:g} s: {fault}")

"""Claims: the file with which a board enrols once, and the two messages by which it does.

The file holds a secret and a certificate that opens one topic of the broker.  The board sends its public key and a
signing request, with an HMAC of the secret; the desk answers with the certificate.  A refusal has no HMAC, because it
only ends the command.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from pathlib import Path

from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.identity import key_files
from edge_sdk.identity.signatures import PUBLIC_BYTES
from edge_sdk.protocol.entry_guard import digested_json, foreign_json, undigested_json
from edge_sdk.protocol.topics import is_id

FORMAT = 1
CLAIMS_ROOT = "fl/claim"
"""A board with a claim publishes on CLAIMS_ROOT/USER, and hears on CLAIMS_ROOT/USER/card."""
MOST_BYTES = 16 * 1024
"""A longer message of enrolment is refused unread."""
_SEALED = re.compile(rb'\s*\{\s*"body":\s*"([A-Za-z0-9+/]*={0,2})",\s*"mac":\s*"([0-9a-f]{64})"\s*\}\s*')
"""A body and its HMAC, which is checked before the body is parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The contents of a claim file."""

    device: str
    user: str
    """The user name of its certificate."""
    secret: str
    """The key of its messages, in hexadecimal digits."""
    broker: str
    authority: str
    """The certificate of the lab's authority, in PEM form."""
    certificate: str
    tls_key: str
    """The private key of the claim's certificate, in PEM form."""
    coordinator: str
    """The public key of the coordinator, in hexadecimal digits."""
    sealing: str = ""
    """The coordinator's public key for encryption, or empty if the lab does not encrypt."""
    version: int = FORMAT

    def to_json(self) -> bytes:
        """Return the contents of the file."""
        return digested_json(asdict(self))


def claim_user(device: str, number: int) -> str:
    """Return the user name of a device's claim; its dot, illegal in device ids, keeps it distinct from all devices."""
    return f"claim.{device}.{number}"


def new_claim_secret() -> str:
    """Draw the secret of a claim."""
    return secrets.token_hex(32)


def read_claim(path: Path) -> Claim:
    """Read a claim file.  Raises UsageError, in one line that shows none of its contents, if it is not one."""
    text = key_files.read_part(path)
    try:
        claim = Claim(**undigested_json(text))
        texts = [value for name, value in asdict(claim).items() if name != "version"]
        whole = claim.version == FORMAT and all(isinstance(each, str) for each in texts)
        whole = whole and len(bytes.fromhex(claim.coordinator)) == PUBLIC_BYTES and bool(bytes.fromhex(claim.secret))
        whole = whole and is_id(claim.device) and claim.user.startswith(f"claim.{claim.device}.")
        whole = whole and all((claim.broker, claim.authority, claim.certificate, claim.tls_key))
    except (ValueError, TypeError):
        whole = False
    if not whole:
        raise UsageError(f"{path} is not a claim, or was damaged; copy it again from the lab's claims folder")
    return claim


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """A board's request: its public key, and the signing request for its certificate in PEM form."""

    public: bytes
    signing_request: bytes
    sealing: bytes = b""
    """The public key for encryption, or empty without one."""


def pack_enrolment_request(secret: str, request: EnrolmentRequest) -> bytes:
    """Return the message of a board."""
    body = {"public": request.public.hex(), "request": request.signing_request.decode()}
    if request.sealing:
        body["sealing"] = request.sealing.hex()
    return _sealed(secret, b"request", json.dumps(body).encode())


def unpack_enrolment_request(secret: str, message: bytes) -> EnrolmentRequest:
    """Return what a board sent.  Raises RemoteProtocolError if it is not from the holder of the secret."""
    body = _opened(secret, b"request", message)
    try:
        plain = foreign_json(body)
        public, request = bytes.fromhex(plain["public"]), str(plain["request"]).encode()
        sealing = bytes.fromhex(plain.get("sealing", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RemoteProtocolError("schema", "an enrolment request that cannot be read") from None
    if len(public) != PUBLIC_BYTES or len(sealing) not in (0, PUBLIC_BYTES):
        raise RemoteProtocolError("schema", "a public key of the wrong length")
    return EnrolmentRequest(public, request, sealing)


def pack_enrolment_answer(secret: str, certificate: bytes) -> bytes:
    """Return the answer of the desk: the device's certificate, in PEM form."""
    return _sealed(secret, b"answer", certificate)


def pack_enrolment_fault(line: str) -> bytes:
    """Return the answer of the desk to a claim that it refuses."""
    return json.dumps({"fault": line}).encode()


def unpack_enrolment_answer(secret: str, message: bytes) -> bytes:
    """Return the certificate in an answer, in PEM form.

    Raises UsageError with the desk's line if it refuses the claim, RemoteProtocolError if the answer is not genuine.
    """
    try:
        plain = foreign_json(message) if len(message) <= MOST_BYTES else None
    except ValueError:
        plain = None
    if isinstance(plain, dict) and isinstance(plain.get("fault"), str):
        raise UsageError("".join(c if c.isprintable() else " " for c in plain["fault"])[:512])
    return _opened(secret, b"answer", message)


def _sealed(secret: str, kind: bytes, body: bytes) -> bytes:
    return json.dumps({"body": b64encode(body).decode(), "mac": _mac(secret, kind, body)}).encode()


def _opened(secret: str, kind: bytes, message: bytes) -> bytes:
    if len(message) > MOST_BYTES:
        raise RemoteProtocolError("limit", f"a message of {len(message)} bytes")
    found = _SEALED.fullmatch(message)
    try:
        body = b64decode(found[1], validate=True) if found else None
    except ValueError:
        body = None
    if found is None or body is None:
        raise RemoteProtocolError("schema", "an enrolment message that cannot be read")
    if not hmac.compare_digest(found[2], _mac(secret, kind, body).encode()):
        raise RemoteProtocolError("signature", "not from the holder of this claim")
    return body


def _mac(secret: str, kind: bytes, body: bytes) -> str:
    return hmac.new(bytes.fromhex(secret), b"edge-sdk claim v1 " + kind + b"\0" + body, hashlib.sha256).hexdigest()

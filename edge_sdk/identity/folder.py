"""An identity folder: the keys and certificates of one device, coordinator or operator of a lab.

identity.json   role, name, the broker's address, the public keys of the holder and the coordinator, and a digest
signing.key     Ed25519, signs frames; only its owner reads it
sealing.key     X25519, encrypts frames; only in labs that encrypt; only its owner reads it
tls.key         P-256, of the certificate; only its owner reads it
tls.pem         the certificate that the broker asks for
ca.pem          the authority of the lab
starts          the number of starts of the holder
seen/NAME       the coordinator's highest start that was seen in the federation NAME
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.identity import key_files
from edge_sdk.identity.sealing import ExchangeKey, Sealing
from edge_sdk.identity.signatures import PUBLIC_BYTES, FrameSigner, Key, Role, key_id, newest_key, verifier
from edge_sdk.protocol.entry_guard import digested_json, undigested_json
from edge_sdk.protocol.frames.codec import Verify

ABOUT, SIGNING, SEALING = "identity.json", "signing.key", "sealing.key"
SUCCESSION = "succession"
"""Of a coordinator: how its signing keys followed each other, in hexadecimal digits."""
TLS_KEY, CERTIFICATE, AUTHORITY = "tls.key", "tls.pem", "ca.pem"
STARTS, SEEN = "starts", "seen"
COORDINATOR_FOLDER, OPERATOR_FOLDER = "coordinator", "operator"
"""The identity folders in the folder of a lab."""
FORMAT = 1
"""The version of identity.json."""
BROKER_NEEDED = "give --broker URL, or --identity DIR with the folder that edge-sdk enroll made"
"""The remedy for a device without either."""
AFTER_BACKUP = 1 << 20
"""Added to a counter after its folder was restored from a backup; it exceeds the number of lost starts."""


def crypto_keys(what: str = "an identity with keys") -> ModuleType:
    """Return the module with the keys.  Raises MissingExtra without pyca/cryptography, which `what` needs."""
    try:
        from edge_sdk.identity import crypto_keys as module
    except ImportError:
        raise MissingExtra("cryptography", "secure", what) from None
    return module


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityCard:
    """The content of identity.json."""

    role: str
    name: str
    broker: str
    """The broker's URL."""
    coordinator: str
    """The public key of the lab's coordinator, in hexadecimal digits."""
    sealing: str = ""
    """The coordinator's public key for encryption, or empty if the lab does not encrypt."""
    own: str = ""
    """The public key of signing.key, in hexadecimal digits, or empty if unknown."""
    own_sealing: str = ""
    """The public key of sealing.key, in hexadecimal digits, or empty if unknown or missing."""
    version: int = FORMAT

    def to_json(self) -> bytes:
        """Return the contents of the file."""
        return digested_json(asdict(self))


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """A folder whose files were read and checked."""

    folder: Path
    about: IdentityCard
    key: Key
    exchange_key: ExchangeKey | None = None
    """Agrees on keys for encryption, or None if the lab does not encrypt."""

    def sealing(self, peer: bytes, federation: str, device: str) -> Sealing | None:
        """Return the encryption between a device and its coordinator; one of them is the holder.

        peer: the other end's public key.  Returns None if the lab does not encrypt, or the other end has no key.
        """
        if self.exchange_key is None or not peer:
            return None
        try:
            return Sealing(self.exchange_key, peer, federation=federation, device=device, role=Role(self.about.role))
        except ValueError:
            return None

    @property
    def name(self) -> str:
        """The id of the device, or the user name of a coordinator or an operator."""
        return self.about.name

    @property
    def broker(self) -> str:
        """The broker's URL."""
        return self.about.broker

    @property
    def authority(self) -> Path:
        """The certificate of the lab's authority."""
        return self.folder / AUTHORITY

    @property
    def certificate(self) -> Path:
        """The holder's certificate."""
        return self.folder / CERTIFICATE

    @property
    def tls_key(self) -> Path:
        """The private key of the certificate."""
        return self.folder / TLS_KEY

    @property
    def coordinator_key(self) -> bytes:
        """The public key with which the coordinator signs."""
        return bytes.fromhex(self.about.coordinator)

    @property
    def succession(self) -> bytes:
        """How the coordinator's signing keys followed each other; empty if it has its first one."""
        path = self.folder / SUCCESSION
        try:
            return bytes.fromhex(key_files.read_part(path).decode()) if path.exists() else b""
        except ValueError:
            raise UsageError(f"{path} is damaged: copy it back from a backup") from None

    def believing(self, chain: bytes) -> Identity | None:
        """Return this identity with the newest of the coordinator's keys to which a chain leads, or None if none.

        Nothing is written; `keep` does that.
        """
        key = newest_key(chain, self.coordinator_key, crypto_keys().is_genuine)
        return None if key == self.coordinator_key else replace(self, about=replace(self.about, coordinator=key.hex()))

    def keep(self) -> None:
        """Write identity.json, durably.  Raises StoreError."""
        key_files.write_whole(self.folder / ABOUT, self.about.to_json())

    def started(self, least: int = 0) -> FrameSigner:
        """Count a start, durably and to `least` at least, and return the signer of its frames.  Raises StoreError."""
        start = key_files.raise_counter(self.folder / STARTS, least)
        return FrameSigner(self.key, Role(self.about.role), start)

    def coordinator_verifier(self) -> Verify:
        """Return the check of frames that the lab's coordinator sends."""
        public = self.coordinator_key
        return verifier(Role.COORDINATOR, {key_id(public): public}, crypto_keys().is_genuine)


def open_identity(folder: Path, role: Role) -> Identity:
    """Read an identity folder, and check that its parts belong together.

    Raises UsageError, in one line, for files that are missing, damaged, of another role, or readable by other users.
    """
    about = _read_about(folder, role)
    if about.role != role.value:
        found = _HOLDER.get(about.role, "an unknown role")
        raise UsageError(
            f"{folder} is the identity of {found}, expected that of {_HOLDER[role.value]}; {_ORIGIN[role]}"
        )
    key = _signing_key(folder, about)
    _check_certificates(folder, about)
    return Identity(folder, about, key, _exchange_key(folder, about))


def _signing_key(folder: Path, about: IdentityCard) -> Key:
    """Return the signing key.  Raises UsageError if it differs from the holder's public key in identity.json."""
    path = folder / SIGNING
    key: Key = crypto_keys().read_signing_key(key_files.read_secret(path), path)
    known = {about.own, about.coordinator if about.role == Role.COORDINATOR.value else ""} - {""}
    if known - {key.public.hex()}:
        raise _not_of(path, folder / ABOUT)
    return key


def _not_of(path: Path, about: Path) -> UsageError:
    """Return the error for a key that differs from identity.json."""
    return UsageError(f"{path} does not belong to {about}: restore both from one backup, or enrol again")


def _check_certificates(folder: Path, about: IdentityCard) -> None:
    """Raise UsageError if the certificates, or the key beside them, are damaged or do not belong together."""
    certificates, authority = crypto_keys("a certificate"), key_files.read_part(folder / AUTHORITY)
    if fault := certificates.authority_fault(authority):
        raise UsageError(f"{folder / AUTHORITY} {fault}")
    tls_key, certificate = key_files.read_secret(folder / TLS_KEY), key_files.read_part(folder / CERTIFICATE)
    if fault := certificates.fault_of(certificate, tls_key, about.name, authority):
        raise UsageError(f"{folder / CERTIFICATE} {fault}")


def open_device_identity(folder: Path, device: str | None) -> Identity:
    """Read the identity folder of a device.  Raises UsageError as `open_identity` does, and if it is of another device.

    device: the id that was given together with the folder, if any.
    """
    own = open_identity(folder, Role.DEVICE)
    if device not in (None, own.name):
        raise UsageError(f"--id {device}: {folder} is the identity of {own.name}; give one of the two")
    return own


def _exchange_key(folder: Path, about: IdentityCard) -> ExchangeKey | None:
    """Return the holder's key for encryption, or None for an operator, and in a lab that does not encrypt."""
    if not about.sealing:
        return None
    path, sealing = folder / SEALING, crypto_keys("encryption")
    if not path.exists():
        raise UsageError(f"{path} is missing, and the lab encrypts: restore it from a backup, or enrol again")
    key: ExchangeKey = sealing.read_exchange_key(key_files.read_secret(path), path)
    public, own = bytes.fromhex(about.sealing), about.own_sealing
    mine = public.hex() if about.role == Role.COORDINATOR.value else own or key.public.hex()
    if not sealing.is_public(public) or key.public.hex() != mine:
        raise _not_of(path, folder / ABOUT)
    return key


_HOLDER = {
    Role.DEVICE.value: "a device",
    Role.COORDINATOR.value: "a coordinator",
    Role.OPERATOR.value: "an operator",
}
"""The holder of each role, in words."""
_ORIGIN = {
    Role.DEVICE: "edge-sdk enroll --claim FILE makes one",
    Role.COORDINATOR: "restore it from a backup of its lab",
    Role.OPERATOR: f"give the folder {OPERATOR_FOLDER} of a lab, which edge-sdk lab init makes",
}
"""The origin of each role's identity folder."""


def _read_about(folder: Path, role: Role) -> IdentityCard:
    path = folder / ABOUT
    if not path.exists():
        raise UsageError(f"{folder} is not an identity folder: it lacks {ABOUT}; {_ORIGIN[role]}")
    try:
        about = IdentityCard(**undigested_json(key_files.read_part(path)))
        well_formed = len(bytes.fromhex(about.coordinator)) == PUBLIC_BYTES and about.version == FORMAT
        others = (about.sealing, about.own, about.own_sealing)
        well_formed = well_formed and all(len(bytes.fromhex(key)) in (0, PUBLIC_BYTES) for key in others)
    except (ValueError, TypeError):
        well_formed = False
    if not well_formed:
        raise UsageError(
            f"{path} is damaged or was edited, or is of another version of edge-sdk; copy it back from a backup, or "
            "enrol again"
        )
    return about

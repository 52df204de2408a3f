"""Keys to sign (Ed25519) and encrypt frames (X25519, ChaCha20-Poly1305), and certificates for a broker.

Needs pyca/cryptography.  Boards without a battery-backed clock start in 1970.  So certificates have no dates that
matter: they are valid from 1970 to 9999, and a device is taken out by revoking it.
"""

from __future__ import annotations

import ipaddress
import warnings
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edge_sdk.errors import UsageError

KEY_BYTES = 32
"""The length of a key for encryption."""


def _pem(key: Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(pem: bytes, path: object) -> PrivateKeyTypes:
    """Read a private key.  Raises UsageError, which shows nothing of the file's contents."""
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError):
        raise UsageError(
            f"{path} holds no private key in PEM form, or is damaged; copy it back from a backup, or enrol again"
        ) from None


def _of_another_kind(path: object, expected: str) -> UsageError:
    return UsageError(f"{path} holds a key of another kind, expected {expected}; enrol again")


class SigningKey:
    """A private key.  Its text form never shows the key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public: bytes = key.public_key().public_bytes_raw()
        """The public key, 32 bytes."""

    def sign(self, text: bytes) -> bytes:
        """Return the signature of a text, 64 bytes."""
        return self._key.sign(text)

    def to_pem(self) -> bytes:
        """Return the private key as PKCS #8 in PEM form, for a file that only its owner reads."""
        return _pem(self._key)


def new_signing_key() -> SigningKey:
    """Draw a key from the system's randomness."""
    return SigningKey(Ed25519PrivateKey.generate())


def read_signing_key(pem: bytes, path: object) -> SigningKey:
    """Read a key in PEM form.  Raises UsageError, which names the file `path` and shows nothing of its contents."""
    key = _read(pem, path)
    if not isinstance(key, Ed25519PrivateKey):
        raise _of_another_kind(path, "Ed25519")
    return SigningKey(key)


def is_genuine(public: bytes, text: bytes, signature: bytes) -> bool:
    """Whether a signature of a text was made with the private key of this public key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


class AgreedSecret:
    """The secret that two X25519 keys agree on.  Its text form never shows it."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def encrypt(self, salt: bytes, context: bytes, nonce: bytes, text: bytes, header: bytes) -> bytes:
        """Return a text encrypted with the key for this salt and context, and its tag; header: is protected, too."""
        return self._cipher(salt, context).encrypt(nonce, text, header)

    def decrypt(self, salt: bytes, context: bytes, nonce: bytes, sealed: memoryview, header: bytes) -> bytes | None:
        """Return the text, or None if it was changed, or encrypted with another key."""
        try:
            return self._cipher(salt, context).decrypt(nonce, sealed, header)
        except (InvalidTag, ValueError):
            return None

    def _cipher(self, salt: bytes, context: bytes) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(HKDF(hashes.SHA256(), KEY_BYTES, salt, context).derive(self._secret))


class X25519Key:
    """A private key.  Its text form never shows the key."""

    def __init__(self, key: X25519PrivateKey) -> None:
        self._key = key
        self.public: bytes = key.public_key().public_bytes_raw()
        """The public key, 32 bytes."""

    def agreed(self, peer: bytes) -> AgreedSecret:
        """Return the agreement with the holder of another key.  Raises ValueError for an invalid public key."""
        return AgreedSecret(self._key.exchange(X25519PublicKey.from_public_bytes(peer)))

    def to_pem(self) -> bytes:
        """Return the private key as PKCS #8 in PEM form, for a file that only its owner reads."""
        return _pem(self._key)


def new_exchange_key() -> X25519Key:
    """Draw a key from the system's randomness."""
    return X25519Key(X25519PrivateKey.generate())


def read_exchange_key(pem: bytes, path: object) -> X25519Key:
    """Read a key in PEM form.  Raises UsageError, which names the file `path` and shows nothing of its contents."""
    key = _read(pem, path)
    if not isinstance(key, X25519PrivateKey):
        raise _of_another_kind(path, "X25519")
    return X25519Key(key)


def is_public(public: bytes) -> bool:
    """Whether these bytes are a public key with which a secret can be agreed on."""
    try:
        new_exchange_key().agreed(public)
    except ValueError:
        return False
    return True


FIRST = datetime(1970, 1, 1, tzinfo=timezone.utc)
LAST = datetime(9999, 12, 31, tzinfo=timezone.utc)

MOST_NAME = 64
"""The longest common name in a certificate, in characters."""
_DAMAGED = "is damaged; copy it back from a backup, or enrol again"
PEM = serialization.Encoding.PEM


def new_tls_key() -> bytes:
    """Draw a P-256 key; returns it in PEM form."""
    return _pem_of(ec.generate_private_key(ec.SECP256R1()))


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _key_in(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a key.  Raises ValueError if it is damaged, or of another kind."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (TypeError, UnsupportedAlgorithm, InternalError) as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic-curve key")  # noqa: TRY004  # callers tell of a file, not of a type
    return key


def _certificate_in(pem: bytes) -> x509.Certificate:
    """Read a certificate whose subject and key can be read, too.  Raises ValueError if it is damaged."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", CryptographyDeprecationWarning)  # of what no authority writes
            found = x509.load_pem_x509_certificate(pem)
            found.public_key(), found.subject  # both are parsed when they are asked for
    except (
        TypeError,
        UnsupportedAlgorithm,
        InternalError,
        x509.InvalidVersion,
        CryptographyDeprecationWarning,
    ) as error:
        raise ValueError(str(error)) from None
    return found


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority issued the certificate, and no bit of it has changed since."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, InternalError):
        return False
    return True


def new_request(tls_key: bytes, name: str) -> bytes:
    """Return a signing request for a certificate of this key, in PEM form."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(_named(name))
    return builder.sign(_key_in(tls_key), hashes.SHA256()).public_bytes(PEM)


def authority_fault(authority: bytes) -> str:
    """Return the fault of an authority's certificate in PEM form, or empty if it is valid."""
    try:
        found = _certificate_in(authority)
    except ValueError:
        return _DAMAGED
    return "" if _signed_by(found, found) else _DAMAGED


def fault_of(certificate: bytes, tls_key: bytes, name: str, authority: bytes) -> str:
    """Return the fault of a certificate for this name and this key, or empty if it is valid.

    All are in PEM form.  authority: the certificate of the lab's authority, in which no fault was found.
    """
    try:
        found, issuer = _certificate_in(certificate), _certificate_in(authority)
    except ValueError:
        return _DAMAGED
    owner, signed = name_in(found.subject), _signed_by(found, issuer)
    if owner != name and signed:
        return f"is a certificate of {owner}, this identity is {name}; copy the right one back, or enrol again"
    if not signed:
        return "is damaged, or not signed by the authority in ca.pem beside it; copy both back, or enrol again"
    try:
        key = _key_in(tls_key)
    except ValueError:
        return "is useless: tls.key beside it is damaged; copy that back from a backup, or enrol again"
    if found.public_key() != key.public_key():
        return "belongs to another key than tls.key beside it; copy the right one back, or enrol again"
    return ""


def name_in(subject: x509.Name) -> str:
    """Return the common name of a subject, or empty without one."""
    found = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


class LabAuthority:
    """The certificate authority of a lab."""

    def __init__(self, certificate: bytes, key: bytes) -> None:
        """Both are in PEM form.  Raises UsageError if they are damaged."""
        try:
            self._certificate, self._key = _certificate_in(certificate), _key_in(key)
            whole = _signed_by(self._certificate, self._certificate)
            whole = whole and self._certificate.public_key() == self._key.public_key()
        except ValueError:
            whole = False
        if not whole:
            raise UsageError("the authority of this lab is damaged; restore ca.pem and ca.key from a backup")

    def issue(self, name: str, public: ec.EllipticCurvePublicKey, hosts: Sequence[str] = ()) -> bytes:
        """Return a certificate for a user of the broker, in PEM form; hosts: of the broker itself."""
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = _blank(name, self._certificate.subject, public)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        builder = builder.add_extension(self._authority_id(), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([*map(_host, hosts)]), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)

    def issue_for_key(self, name: str, tls_key: bytes, hosts: Sequence[str] = ()) -> bytes:
        """Return a certificate for a private key that this machine holds; both in PEM form."""
        return self.issue(name, _key_in(tls_key).public_key(), hosts)

    def issue_for_request(self, name: str, request: bytes) -> bytes:
        """Return a certificate for a signing request, and ignore the name in it.

        Raises ValueError if the request is damaged, or not signed with its own key.
        """
        try:
            found = x509.load_pem_x509_csr(request)
            public, genuine = found.public_key(), found.is_signature_valid
        except (TypeError, UnsupportedAlgorithm, InternalError, InvalidSignature, x509.InvalidVersion) as error:
            raise ValueError(str(error)) from None
        if not genuine or not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("the signing request is not genuine")
        return self.issue(name, public)

    def revocations(self, certificates: Iterable[bytes], number: int) -> bytes:
        """Return the list of revoked certificates, for the broker, in PEM form; number: counts the lists.

        Raises ValueError if a certificate is damaged.
        """
        builder = x509.CertificateRevocationListBuilder().issuer_name(self._certificate.subject)
        builder = builder.last_update(FIRST).next_update(LAST)
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        builder = builder.add_extension(self._authority_id(), critical=False)
        for each in certificates:
            serial = _certificate_in(each).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(FIRST).build()
            builder = builder.add_revoked_certificate(entry)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(PEM)

    def _authority_id(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())


def new_authority(name: str) -> tuple[bytes, bytes]:
    """Make an authority; returns its certificate and its key, in PEM form.

    name: shown by other tools; shortened to what a certificate has room for.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    shown = name[:MOST_NAME]
    builder = _blank(shown, _named(shown), key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(PEM), _pem_of(key)


def _blank(name: str, issuer: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(_named(name)).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(FIRST).not_valid_after(LAST)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)

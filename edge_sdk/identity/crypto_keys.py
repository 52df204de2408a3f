"""Keys: Ed25519 to sign frames, X25519 to encrypt them with ChaCha20-Poly1305.  Needs pyca/cryptography."""

from __future__ import annotations

import functools

from cryptography.exceptions import InternalError, InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

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


@functools.lru_cache(maxsize=2**14)
def _loaded(public: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(public)


def is_genuine(public: bytes, text: bytes, signature: bytes) -> bool:
    """Whether a signature of a text was made with the private key of this public key."""
    try:
        _loaded(public).verify(signature, text)
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

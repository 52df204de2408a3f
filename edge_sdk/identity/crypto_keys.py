"""Ed25519 keys: they sign frames, and say whether a signature is genuine.  Needs pyca/cryptography."""

from __future__ import annotations

import functools

from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from edge_sdk.errors import UsageError


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
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def new_signing_key() -> SigningKey:
    """Draw a key from the system's randomness."""
    return SigningKey(Ed25519PrivateKey.generate())


def read_signing_key(pem: bytes, path: object) -> SigningKey:
    """Read a key in PEM form.  Raises UsageError, which names the file `path` and shows nothing of its contents."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError):
        raise UsageError(
            f"{path} holds no private key in PEM form, or is damaged; copy it back from a backup, or enrol again"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} holds a key of another kind, expected Ed25519; enrol again")
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

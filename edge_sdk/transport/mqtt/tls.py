"""TLS for MQTT: who is trusted, who we are, and where a fault is kept that the client library would swallow.

The broker's certificate and host name are always checked, and its name is always sent (SNI); TLS 1.2 is the minimum.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from edge_sdk.errors import UsageError
from edge_sdk.transport.mqtt.url import BrokerAddress

HANDSHAKE_S = 5.0
"""A peer that stays silent for so long, in seconds, does not speak TLS."""
_CERTIFICATE, _KEY = "CERTIFICATE-----", "PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for a broker at mqtts://, read again for each connection, so that renewed ones need no restart.

    ca: the authorities that may have signed the broker's certificate; None: those that the system trusts.
    certificate: our own, with the chain up to the authority; None: we show none.  key: the private key that belongs
    to it, without a pass phrase; None: it stands in the file of the certificate.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None


NO_FILES = TlsFiles()
"""The system's authorities, and no certificate of our own."""


class TlsContext(ssl.SSLContext):
    """What one connection is made with; `fault` is what ended it, where TLS did."""

    fault: ssl.SSLError | None = None


class _Connection(ssl.SSLSocket):
    """Bounds the handshake, closes itself when it fails, and keeps a fault that comes after it.

    With TLS 1.3 a broker refuses our certificate after the handshake, and the client library says only "lost".
    """

    def do_handshake(self, block: bool = False) -> None:
        self.settimeout(HANDSHAKE_S)
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        try:
            return super().recv(buflen, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if isinstance(self.context, TlsContext):
                self.context.fault = error
            raise


def tls_context(files: TlsFiles, address: BrokerAddress) -> TlsContext | None:
    """The context for a broker, None for one without TLS.

    Raises UsageError, in one line, for files that cannot be read or used, and for files that no TLS would use.
    """
    if not address.tls:
        if files != NO_FILES:
            raise UsageError(f"certificates are given, and {address} is addressed without TLS; write mqtts://{address}")
        return None
    context = TlsContext(ssl.PROTOCOL_TLS_CLIENT)  # which demands a trusted certificate for the right host
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _Connection
    _trust(context, files.ca)
    _introduce(context, files.certificate, files.key)
    return context


def _trust(context: ssl.SSLContext, ca: str | Path | None) -> None:
    if ca is None:
        context.load_default_certs()
    else:
        _load_certificates(context, ca, "CA certificate")


def _introduce(context: ssl.SSLContext, certificate: str | Path | None, key: str | Path | None) -> None:
    if certificate is None:
        if key is not None:
            raise UsageError(f"the private key {key} is given without a certificate; add --cert FILE")
        return
    _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, "certificate")  # tells it from a bad key
    holder = certificate if key is None else key
    _look_into(holder, _KEY, "private key")
    try:
        context.load_cert_chain(certificate, key, lambda: _encrypted(holder))
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            raise UsageError(
                f"the private key in {holder} does not belong to the certificate in {certificate}; give the two that "
                "were made together"
            ) from None
        raise _damaged(holder, "private key", error) from None


def _load_certificates(context: ssl.SSLContext, path: str | Path, name: str) -> None:
    _look_into(path, _CERTIFICATE, name)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise _damaged(path, name, error) from None


def _look_into(path: str | Path, kind: str, name: str) -> None:
    """Raise UsageError for a file that cannot be read or holds nothing of the kind: OpenSSL would not say which."""
    try:
        text = Path(path).read_text(encoding="latin-1")
    except OSError as error:
        raise UsageError(f"the {name} {path} cannot be read: {error.strerror or error}") from None
    if kind not in text:
        raise UsageError(f"{path} holds no {name} in PEM form (-----BEGIN ... {kind}); name the right file")


def _damaged(path: str | Path, name: str, error: ssl.SSLError) -> UsageError:
    return UsageError(f"the {name} in {path} is damaged ({error.reason or error.strerror}); copy or make it again")


def _encrypted(path: str | Path) -> NoReturn:
    raise UsageError(
        f"the private key in {path} has a pass phrase, and nobody is there to type it when a device starts; write one "
        f"without: openssl pkey -in {path} -out NEW_FILE"
    )

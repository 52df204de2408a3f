"""TLS for MQTT: the certificates of both sides, and a connection that remembers the TLS error which ended it.

The broker's certificate and host name are always checked, its name is always sent (SNI), and TLS 1.2 is the minimum.

Lines warn of the end of a certificate 30, 14, 7 and 3 days before it, and on each of the last two days.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import NoReturn

from edge_sdk.errors import UsageError
from edge_sdk.transport.mqtt.url import BrokerAddress

HANDSHAKE_S = 5.0
"""A peer that stays silent for this many seconds does not speak TLS."""
_CERTIFICATE, _KEY = "CERTIFICATE-----", "PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class CertificateAdvice:
    """Remedies for a certificate that one side does not accept, which depend on the origin of our files."""

    own: str
    """The remedy if the broker does not accept ours."""
    authority: str
    """The remedy if we do not trust the authority of the broker's."""


OF_FILES = CertificateAdvice(
    "give one that its authority signed (--cert, --key)", "name the authority that signed it (--ca FILE)"
)
OF_DEVICE = CertificateAdvice(
    "ask the owner of the lab for a new claim, and enrol again (edge-sdk enroll --claim FILE)",
    "the broker is not of the lab in which this device enrolled: give the identity of the broker's lab (--identity)",
)
OF_CLAIM = CertificateAdvice(
    "ask the owner of the lab for a new claim",
    "the broker is not of the lab that made this claim: ask the owner of the broker's lab for one",
)
OF_LAB = CertificateAdvice(
    "give the folder of the lab to which the broker belongs (--lab, --identity)",
    "give the folder of the lab to which the broker belongs (--lab, --identity)",
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for a broker at mqtts://.  They are read for each connection, so renewing them needs no restart.

    ca: the authorities that may sign the broker's certificate.  By default those that the system trusts.
    certificate: this client's certificate with the chain up to its authority, if the broker demands one.
    key: the private key of that certificate, without a pass phrase.  By default in the file of the certificate.
    """

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    advice: CertificateAdvice = field(default=OF_FILES, repr=False)
    """The remedies if one side does not accept a certificate."""

    def absolute(self) -> TlsFiles:
        """Return the same files by absolute paths, which survive a change of the working directory."""
        ca, certificate, key = (each and Path(each).absolute() for each in (self.ca, self.certificate, self.key))
        return TlsFiles(ca, certificate, key, self.advice)


NO_FILES = TlsFiles()
"""The authorities that the system trusts, without a certificate of this client."""


class TlsContext(ssl.SSLContext):
    """The TLS settings of one connection."""

    fault: ssl.SSLError | None = None
    """The TLS error that ended the connection, if one did."""


class _Connection(ssl.SSLSocket):
    """A TLS socket with a time limit on the handshake, which closes on failure and remembers later errors.

    With TLS 1.3 a broker refuses a client's certificate after the handshake, and paho reports that only as a lost
    connection.
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
    """Return the TLS settings for a broker, or None for a broker without TLS.

    Raises UsageError, in one line, for files that cannot be read or used, and for files given without TLS.
    """
    if not address.tls:
        if files != NO_FILES:
            raise UsageError(f"certificates are given, and {address} is addressed without TLS; write mqtts://{address}")
        return None
    context = TlsContext(ssl.PROTOCOL_TLS_CLIENT)  # this protocol demands a trusted certificate for the right host
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = _Connection
    _load_authorities(context, files.ca)
    _load_own_certificate(context, files.certificate, files.key)
    return context


def _load_authorities(context: ssl.SSLContext, ca: str | Path | None) -> None:
    if ca is None:
        context.load_default_certs()
    else:
        _load_certificates(context, ca, "CA certificate")


def _load_own_certificate(context: ssl.SSLContext, certificate: str | Path | None, key: str | Path | None) -> None:
    if certificate is None:
        if key is not None:
            raise UsageError(f"the private key {key} is given without a certificate; add --cert FILE")
        return
    _load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, "certificate")  # or the key is at fault
    key_file = certificate if key is None else key
    _check_pem(key_file, _KEY, "private key")
    try:
        context.load_cert_chain(certificate, key, lambda: _refuse_pass_phrase(key_file))
    except ssl.SSLError as error:
        if error.reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
            raise UsageError(
                f"the private key in {key_file} does not belong to the certificate in {certificate}; give the two that "
                "were made together"
            ) from None
        raise _damaged(key_file, "private key", error) from None


def _load_certificates(context: ssl.SSLContext, path: str | Path, name: str) -> None:
    _check_pem(path, _CERTIFICATE, name)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise _damaged(path, name, error) from None


def _check_pem(path: str | Path, kind: str, name: str) -> None:
    """Raise UsageError for a file that cannot be read or has no PEM block of the kind; OpenSSL does not say which."""
    try:
        text = Path(path).read_text(encoding="latin-1")
    except OSError as error:
        raise UsageError(f"the {name} {path} cannot be read: {error.strerror or error}") from None
    if kind not in text:
        raise UsageError(f"{path} holds no {name} in PEM form (-----BEGIN ... {kind}); name the right file")


def _damaged(path: str | Path, name: str, error: ssl.SSLError) -> UsageError:
    return UsageError(f"the {name} in {path} is damaged ({error.reason or error.strerror}); copy or make it again")


def _refuse_pass_phrase(path: str | Path) -> NoReturn:
    raise UsageError(
        f"the private key in {path} has a pass phrase, which a device cannot type when it starts unattended; write a "
        f"key without one: openssl pkey -in {path} -out NEW_FILE"
    )


LOOK_EVERY_S = 3600.0
DAY_S = 86_400.0
SAID_AT_DAYS = (30, 14, 7, 3, 2, 1, 0)
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17


def ends_s(certificate: bytes) -> float:
    """Return when a certificate in DER form ends, in seconds since 1970 (RFC 5280, 4.1).  Raises ValueError."""
    _, at, _ = _value(certificate, 0)
    _, at, _ = _value(certificate, at)
    tag, _, end = _value(certificate, at)
    if tag == _VERSION:
        at = end
    for _ in range(3):  # serial number, algorithm, issuer
        _, _, at = _value(certificate, at)
    tag, at, _ = _value(certificate, at)
    if tag != _SEQUENCE:
        raise ValueError("no validity in the certificate")
    _, _, at = _value(certificate, at)
    tag, begin, end = _value(certificate, at)
    text = certificate[begin:end].decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()


def _value(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag at a place, and where its value begins and ends.  Raises ValueError."""
    try:
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            octets = length & 0x7F
            length, at = int.from_bytes(data[at : at + octets], "big"), at + octets
    except IndexError:
        raise ValueError("a truncated certificate") from None
    if at + length > len(data):
        raise ValueError("a truncated certificate")
    return tag, at, at + length


def file_ends_s(path: str | Path) -> float | None:
    """Return when the first certificate of a PEM file to end does so, in seconds since 1970, or None if unreadable."""
    try:
        found = _PEM.findall(Path(path).read_text(encoding="ascii"))
        return min((ends_s(ssl.PEM_cert_to_DER_cert(each)) for each in found), default=None)
    except (OSError, ValueError):
        return None


class CertificateWatch:
    """Looks at the certificates of a link once an hour; each threshold is said once for each certificate."""

    def __init__(self, files: TlsFiles, wall: Callable[[], float]) -> None:
        """wall: returns seconds since 1970."""
        self._files, self._wall, self._look_at_s = files, wall, 0.0
        self._said: dict[tuple[str, float], int] = {}
        self.first_end_s: float | None = None
        """When the first certificate ends, in seconds since 1970, by the last look, or None without certificates."""

    def lines(self, now_s: float, broker: bytes | None) -> Iterator[str]:
        """Yield what is to be said now.  now_s: of any clock.  broker: the broker's certificate in DER form."""
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + LOOK_EVERY_S
        found = list(self._ends(broker))
        self.first_end_s = min((end_s for _, _, end_s in found), default=None)
        for what, remedy, end_s in found:
            left_days = (end_s - self._wall()) / DAY_S
            due = [days for days in SAID_AT_DAYS if left_days <= days]
            if due and self._said.get((what, end_s), 1000) > min(due):
                self._said[what, end_s] = min(due)
                ends = datetime.fromtimestamp(end_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
                count = f"{left_days:.0f} day{'s' * (round(left_days) != 1)}"
                how = f"ends in {count}, at {ends}" if left_days >= 0 else f"has ended at {ends}"
                yield f"{what} {how}: {remedy}; until then connections last, and after it none opens"

    def _ends(self, broker: bytes | None) -> Iterator[tuple[str, str, float]]:
        if broker is not None:
            yield "the broker's certificate", "renew it where the broker runs, and reload the broker", ends_s(broker)
        for file, what in ((self._files.certificate, "certificate"), (self._files.ca, "authority")):
            if file is not None and (end_s := file_ends_s(file)) is not None:
                yield f"the {what} in {file}", "replace the file; it is read at each connection", end_s

"""Checks the dates of certificates: the broker's, and the files on this machine."""

from __future__ import annotations

import socket
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

from edge_sdk.tools.doctor.finding import Finding, fail, ok, warn
from edge_sdk.transport.mqtt.tls import HANDSHAKE_S
from edge_sdk.transport.mqtt.url import BrokerAddress

SOON = timedelta(days=30)
"""A certificate that ends sooner should be renewed now."""
_RENEW = "docs/how-to/tls.md has the commands that renew it"


def judge_dates(dates: tuple[datetime, datetime] | None, now: datetime, look: str) -> Finding:
    """Judge the validity of a certificate.  dates: None if unreadable.  look: a command that shows them."""
    if dates is None:
        return warn("its dates cannot be read", f"check that it is a certificate: {look}")
    begins, ends = dates
    if now < begins:
        return fail(
            f"valid from {begins:%Y-%m-%d} on, and it is {now:%Y-%m-%d} here",
            f"date; where that is wrong: sudo timedatectl set-ntp true; else {_RENEW}",
        )
    if now > ends:
        return fail(f"ended on {ends:%Y-%m-%d}", f"{_RENEW}; to see its dates: {look}")
    days = (ends - now).days
    if ends - now < SOON:
        return warn(f"ends in {days} days, on {ends:%Y-%m-%d}", f"{_RENEW}; to see its dates: {look}")
    return ok(f"until {ends:%Y-%m-%d}")


def check_file_dates(path: Path, now: datetime) -> Finding:
    """Judge the first certificate in a PEM file."""
    return judge_dates(file_dates(path), now, f"openssl x509 -in {path} -noout -dates")


def check_broker_dates(address: BrokerAddress, now: datetime) -> Finding:
    """Judge the certificate that a broker shows, regardless of its signer."""
    shown = broker_certificate(address)
    host = f"openssl s_client -connect {address} </dev/null | openssl x509 -noout -dates"
    return judge_dates(None if shown is None else validity(shown), now, host)


def file_dates(path: Path) -> tuple[datetime, datetime] | None:
    """Return the dates of the first certificate in a PEM file, or None if none can be read."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
        begin = text.index(ssl.PEM_HEADER)
        end = text.index(ssl.PEM_FOOTER, begin) + len(ssl.PEM_FOOTER)
        return validity(ssl.PEM_cert_to_DER_cert(text[begin:end]))
    except (OSError, ValueError):
        return None


def broker_certificate(address: BrokerAddress) -> bytes | None:
    """Return the certificate (DER) that a broker shows, if any.

    Nothing is sent over the connection, so it need not be trusted; the check `broker` tests the trust.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=HANDSHAKE_S) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as secure,
        ):
            return secure.getpeercert(binary_form=True)
    except OSError:
        return None


def validity(der: bytes) -> tuple[datetime, datetime] | None:
    """Return the validity of a certificate (DER), or None for other bytes.

    The dates are the fifth part of the signed part, after version, serial number, algorithm and issuer (RFC 5280); the
    version may be left out.
    """
    try:
        _, certificate, _ = _part(der)
        _, rest, _ = _part(certificate)
        tag, _, after = _part(rest)
        rest = after if tag == _VERSION else rest
        for _ in range(3):
            rest = _part(rest)[2]
        dates = _part(rest)[1]
        begin_tag, begin, dates = _part(dates)
        end_tag, end, _ = _part(dates)
        return _time(begin_tag, begin), _time(end_tag, end)
    except (IndexError, ValueError):
        return None


_VERSION, _UTC_TIME = 0xA0, 0x17
"""Tags of ASN.1: the version of a certificate, and a time with two digits of the year."""


def _part(der: bytes) -> tuple[int, bytes, bytes]:
    """Return the tag and the content of the first ASN.1 value, and what follows it.  Raises IndexError, ValueError."""
    length, start = der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    if len(der) < start + length:
        raise ValueError("shorter than it says")
    return der[0], der[start : start + length], der[start + length :]


def _time(tag: int, text: bytes) -> datetime:
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=timezone.utc)

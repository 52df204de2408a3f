"""When certificates end, and lines that say so long before: 30, 14, 7, 3 days and each of the last two days."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from edge_sdk.transport.mqtt.tls import TlsFiles

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
    """Return when the first certificate of a PEM file to end does so, in seconds since 1970; None if unreadable."""
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
        """When the first certificate ends, in seconds since 1970, by the last look; None if there is none."""

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

"""Explains why an MQTT connection ended, in words for the person who has to repair it."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass

from edge_sdk.errors import UsageError
from edge_sdk.transport.mqtt.tls import OF_FILES, CertificateAdvice
from edge_sdk.transport.mqtt.url import BrokerAddress

UNSUPPORTED_VERSION = 132
SESSION_TAKEN_OVER = 142
_LOGIN_REFUSALS = {
    134: "wrong user name or password",
    135: "the login is wrong or missing, or may not connect",
    138: "this client is banned",
}
_CLIENT_ID_REFUSED = 133
_FIRST_FAILURE = 128


@dataclass(frozen=True, slots=True)
class DisconnectReason:
    """Why one connection ended, and whether it makes sense to try again."""

    reason: str
    final: bool = False
    """Whether a retry is pointless."""
    slow: bool = False
    """Whether to retry only after some time, because a clock must be set or a certificate renewed first."""
    taken_over: bool = False
    """Another client has connected with this client's id."""
    unexplained: bool = False
    """The broker closed an accepted connection without a reason."""


_NOT_YET_VALID, _EXPIRED, _OTHER_HOST, _OTHER_IP = 9, 10, 62, 64
"""OpenSSL's codes for faults of the broker's certificate."""
_LATER = "trying again within a minute"
_OWN = "{own}"
"""Placeholder in texts for the remedy of a refused certificate of ours."""
_ALERTS = {
    "CERTIFICATE_REQUIRED": DisconnectReason(
        "demands a certificate of this client: give --cert FILE and --key FILE", final=True
    ),
    "HANDSHAKE_FAILURE": DisconnectReason(
        "refuses the TLS handshake: it demands a certificate of this client (give --cert FILE and --key FILE), or "
        "knows no cipher in common",
        final=True,
    ),
    "UNKNOWN_CA": DisconnectReason(f"does not know the authority of our certificate: {_OWN}", final=True),
    "CERTIFICATE_REVOKED": DisconnectReason(f"says that our certificate is revoked: {_OWN}", final=True),
    "CERTIFICATE_UNKNOWN": DisconnectReason(f"does not accept our certificate: {_OWN}", final=True),
    "DECRYPT_ERROR": DisconnectReason(f"finds our certificate or its key not genuine: {_OWN}", final=True),
    "UNSUPPORTED_CERTIFICATE": DisconnectReason(
        "does not accept our certificate: make one for TLS clients", final=True
    ),
    "ACCESS_DENIED": DisconnectReason(f"does not let our certificate in: {_OWN}", final=True),
    "CERTIFICATE_EXPIRED": DisconnectReason(
        f"says that our certificate has expired: renew it, or set the broker's clock; {_LATER}", slow=True
    ),
    "BAD_CERTIFICATE": DisconnectReason(
        "says that our certificate is not valid (yet, by the broker's clock): set the broker's clock, or renew the "
        f"certificate; {_LATER}",
        slow=True,
    ),
    "PROTOCOL_VERSION": DisconnectReason(
        "speaks no TLS as new as 1.2: set tls_version tlsv1.2 on the broker", final=True
    ),
}
"""The meaning of each TLS alert that a broker sends; the text follows the broker's address."""


def connection_failed(
    error: Exception, address: BrokerAddress, timeout_s: float, advice: CertificateAdvice = OF_FILES
) -> DisconnectReason:
    """Explain an exception from the network stack."""
    if isinstance(error, ssl.SSLError):
        return tls_failed(error, address, advice)
    if isinstance(error, UsageError):  # for example a certificate file that is being replaced just now
        return DisconnectReason(str(error))
    if isinstance(error, socket.gaierror):
        return DisconnectReason(f"host name {address.host} cannot be resolved")
    if isinstance(error, ConnectionRefusedError):
        return DisconnectReason(f"connection refused by {address} (is the broker running?)")
    if isinstance(error, TimeoutError):
        return DisconnectReason(f"no answer from {address} within {timeout_s:g} s")
    if isinstance(error, ConnectionError):
        hint = f" ({_wrong_port(address)})" if address.tls else ""
        return DisconnectReason(f"{address} closed the connection while it was being made{hint}")
    if isinstance(error, OSError):
        return DisconnectReason(f"{address} cannot be reached: {error.strerror or error}")
    return DisconnectReason(f"the connection with {address} failed: {error!r}")


def tls_failed(error: ssl.SSLError, address: BrokerAddress, advice: CertificateAdvice = OF_FILES) -> DisconnectReason:
    """Explain a TLS error, and say which side has to repair it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_rejected(error, address, advice)
    fault = error.reason or str(error)
    _, _, alert = fault.partition("ALERT_")
    if alert in _ALERTS:
        known = _ALERTS[alert]
        return DisconnectReason(f"{address} {known.reason}".replace(_OWN, advice.own), known.final, known.slow)
    if fault == "UNSUPPORTED_PROTOCOL":
        return DisconnectReason(f"{address} {_ALERTS['PROTOCOL_VERSION'].reason}", final=True)
    return DisconnectReason(f"no TLS with {address}: {fault} ({_wrong_port(address)})")


def _certificate_rejected(
    error: ssl.SSLCertVerificationError, address: BrokerAddress, advice: CertificateAdvice
) -> DisconnectReason:
    """Explain why this side does not accept the broker's certificate."""
    theirs, today = f"the TLS certificate of {address}", time.strftime("%Y-%m-%d", time.gmtime())
    if error.verify_code == _NOT_YET_VALID:
        return DisconnectReason(
            f"{theirs} is not valid yet, it is {today} here: set this machine's clock; {_LATER}", slow=True
        )
    if error.verify_code == _EXPIRED:
        return DisconnectReason(
            f"{theirs} has expired, it is {today} here: renew it on the broker, or set this clock; {_LATER}", slow=True
        )
    if error.verify_code in (_OTHER_HOST, _OTHER_IP):
        return DisconnectReason(
            f"{theirs} is for another host: address the broker by a name in the certificate, or make a new one with "
            f"{address.host} in its subjectAltName",
            final=True,
        )
    return DisconnectReason(f"{theirs} is not trusted: {error.verify_message}; {advice.authority}", final=True)


def _wrong_port(address: BrokerAddress) -> str:
    return f"does this port speak TLS? write mqtt://{address}, or give the TLS port, which is 8883 by custom"


def connection_refused(code: int, name: str, address: BrokerAddress, client_id: str) -> DisconnectReason:
    """Explain a CONNACK with a failure code.  code, name: as MQTT 5 defines them."""
    if code in _LOGIN_REFUSALS:
        return DisconnectReason(f"not authorised by {address}: {_LOGIN_REFUSALS[code]}", final=True)
    if code == _CLIENT_ID_REFUSED:
        return DisconnectReason(f"{address} does not accept the client id {client_id!r}", final=True)
    return DisconnectReason(f"refused by {address}: {name}")


def subscription_refused(pattern: str, address: BrokerAddress) -> DisconnectReason:
    """Explain a SUBACK with a failure code."""
    return DisconnectReason(f"not authorised by {address}: may not subscribe to {pattern}", final=True)


def packets_too_small(packet_bytes: int, least_bytes: int, address: BrokerAddress) -> DisconnectReason:
    """Explain that the broker's limit is below the smallest chunk."""
    text = f"{address} takes packets of at most {packet_bytes} bytes; raise its limit to {least_bytes} or more"
    return DisconnectReason(text, final=True)


def message_too_long(size_bytes: int, least_bytes: int, address: BrokerAddress) -> str:
    """Explain that the broker refuses messages of the smallest chunk's length."""
    return (
        f"{address} takes no message of {size_bytes} bytes, and states no limit; raise its limit to {least_bytes} or "
        "more (mosquitto: message_size_limit)"
    )


def smaller_chunks(size_bytes: int, chunk_bytes: int) -> str:
    """Explain smaller chunks.  size_bytes: the length of a message that the broker refused."""
    return (
        f"takes no message of {size_bytes} bytes, and states no limit: chunks of {chunk_bytes} bytes from now on; with "
        "a higher limit (mosquitto: message_size_limit) there are fewer"
    )


def connection_lost(name: str, address: BrokerAddress, *, accepted: bool) -> DisconnectReason:
    """Explain a connection that broke.  name: the client library's word for it; accepted: CONNECT had succeeded."""
    if name == "Keep alive timeout":
        return DisconnectReason(f"nothing heard from {address} within the keep-alive time")
    if not accepted:
        hint = "" if address.tls else f" if it speaks TLS, write mqtts://{address}"
        return DisconnectReason(f"{address} closed the connection at once (is it an MQTT broker?{hint})")
    return DisconnectReason("broker closed the connection", unexplained=True)


def closed_soon_again(client_id: str) -> DisconnectReason:
    """Explain that the broker closes one connection after the other without a reason, soon after it was made.

    With MQTT 3.1.1, and on some MQTT 5 brokers, a client is not notified when another one takes its id.
    """
    return DisconnectReason(
        f"broker closes each connection soon after it was made: probably another client is connected as {client_id!r}",
        taken_over=True,
    )


def closed_by_broker(code: int, name: str, client_id: str) -> DisconnectReason:
    """Explain a DISCONNECT that the broker sent."""
    if code == SESSION_TAKEN_OVER:
        return DisconnectReason(
            f"broker closed the connection: another client connected as {client_id!r}", taken_over=True
        )
    return DisconnectReason(
        f"broker closed the connection: {name}" if code >= _FIRST_FAILURE else "broker closed the connection"
    )

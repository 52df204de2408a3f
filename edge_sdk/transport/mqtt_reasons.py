"""Why an MQTT link ended, in words for the person who has to mend it."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

from edge_sdk.transport.mqtt_url import BrokerAddress

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
class Ending:
    """The end of one connection; `final` where trying again cannot help."""

    reason: str
    final: bool = False


def failed(error: Exception, address: BrokerAddress, timeout_s: float) -> Ending:
    """What an exception from the network stack means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Ending(f"the TLS certificate of {address} is not trusted: {error.verify_message}", final=True)
    if isinstance(error, ssl.SSLError):
        fault = getattr(error, "reason", None) or error
        return Ending(f"no TLS with {address}: {fault} (does this port speak TLS?)")
    if isinstance(error, socket.gaierror):
        return Ending(f"host name {address.host} cannot be resolved")
    if isinstance(error, ConnectionRefusedError):
        return Ending(f"connection refused by {address} (is the broker running?)")
    if isinstance(error, TimeoutError):
        return Ending(f"no answer from {address} within {timeout_s:g} s")
    if isinstance(error, ConnectionError):
        hint = " (does this port speak TLS?)" if address.tls else ""
        return Ending(f"{address} closed the connection while it was being made{hint}")
    if isinstance(error, OSError):
        return Ending(f"{address} cannot be reached: {error.strerror or error}")
    return Ending(f"the connection with {address} failed: {error!r}")


def refused(code: int, name: str, address: BrokerAddress, client_id: str) -> Ending:
    """What a CONNACK with a failure code means; codes as in MQTT 5, names as in its table."""
    if code in _LOGIN_REFUSALS:
        return Ending(f"not authorised by {address}: {_LOGIN_REFUSALS[code]}", final=True)
    if code == _CLIENT_ID_REFUSED:
        return Ending(f"{address} does not accept the client id {client_id!r}", final=True)
    return Ending(f"refused by {address}: {name}")


def subscription_refused(pattern: str, address: BrokerAddress) -> Ending:
    """What a SUBACK with a failure code means."""
    return Ending(f"not authorised by {address}: may not subscribe to {pattern}", final=True)


def packets_too_small(packet_bytes: int, least_bytes: int, address: BrokerAddress) -> Ending:
    """What a limit below the smallest chunk means."""
    text = f"{address} takes packets of at most {packet_bytes} bytes; raise its limit to {least_bytes} or more"
    return Ending(text, final=True)


def lost(name: str, address: BrokerAddress, *, accepted: bool) -> Ending:
    """What a connection that broke off means; `name` as the client library calls it."""
    if name == "Keep alive timeout":
        return Ending(f"nothing heard from {address} within the keep-alive time")
    if not accepted:
        hint = "" if address.tls else ", and one without TLS"
        return Ending(f"{address} closed the connection at once (is it an MQTT broker{hint}?)")
    return Ending("broker closed the connection")


def dismissed(code: int, name: str, client_id: str) -> Ending:
    """What a DISCONNECT sent by the broker means."""
    if code == SESSION_TAKEN_OVER:
        return Ending(f"broker closed the connection: another client connected as {client_id!r}")
    return Ending(f"broker closed the connection: {name}" if code >= _FIRST_FAILURE else "broker closed the connection")

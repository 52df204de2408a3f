"""Broker addresses as URLs: `mqtt://[user[:password]@]HOST[:PORT]`, or `mqtts://` for TLS.

The password for the URL's user may come from the environment instead (PASSWORD_VARIABLE).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from edge_sdk.errors import UsageError

PASSWORD_VARIABLE = "EDGE_SDK_BROKER_PASSWORD"  # noqa: S105  # the name of a variable
"""The environment variable with the password of a URL that has a user name and no password."""
_DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A parsed broker URL; as text it is HOST:PORT, without the credentials."""

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_broker_url(url: str) -> BrokerAddress:
    """Parse a broker URL.

    Raises UsageError, in one line that never shows the password, for an invalid broker URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _bad(url, str(error)) from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise _bad(url, "it does not start with mqtt:// or mqtts://")
    if not parts.hostname or re.search(r"\s", url):
        raise _bad(url, "it names no host")
    if port == 0:
        raise _bad(url, "port 0 cannot be connected to")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _bad(url, "nothing may follow the port")
    username, password = _credentials(parts)
    if password is not None and not username:
        raise _bad(url, "it has a password without a user name")
    if username and password is None:
        password = os.environ.get(PASSWORD_VARIABLE)
    return BrokerAddress(
        parts.hostname, port or _DEFAULT_PORTS[parts.scheme], parts.scheme == "mqtts", username, password
    )


def without_password(url: str) -> str:
    """Return a broker's URL without its password, for display and files.

    It still connects if PASSWORD_VARIABLE is set.  Other texts, such as `memory`, are returned unchanged.
    """
    return re.sub(r"(//[^:/@]*)(:.*)?@", r"\1@", url)


def _credentials(parts: SplitResult) -> tuple[str | None, str | None]:
    return tuple(None if text is None else unquote(text) for text in (parts.username, parts.password))  # type: ignore[return-value] # two in, two out


def _bad(url: str, why: str) -> UsageError:
    shown = re.sub(r"//.*@", "//***@", url)
    return UsageError(f"broker URL {shown!r} is not usable: {why}; write mqtt://[user[:password]@]HOST[:PORT]")

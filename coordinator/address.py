"""Where a page or metrics are served: HOST:PORT as a user writes it, and the socket for it."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from contextlib import closing, suppress
from dataclasses import dataclass

from edge_sdk.errors import UsageError

LOOPBACK = "127.0.0.1"
NEAR = 50
"""How many ports above one in use to try."""
_MOST_PORT = 65535


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address of this machine."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def shown_host(self) -> str:
        """The host as written in a URL."""
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_address(text: str, option: str, usual_port: int) -> ListenAddress:
    """Read HOST:PORT, :PORT, PORT or [IPV6]:PORT.

    Raises UsageError that names the option and gives an address with the usual port as an example.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not port.isascii() or not port.isdigit() or int(port) > _MOST_PORT:
        raise UsageError(f"{option} {text}: expected HOST:PORT, such as {LOOPBACK}:{usual_port}")
    return ListenAddress(host, int(port))


def bind(address: ListenAddress, option: str) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.  Raises UsageError that names the fault."""
    shown = f"{option} {address.shown_host}:{address.port}"
    try:
        return _listening(address.host, address.port)
    except socket.gaierror:
        raise UsageError(f"{shown}: {address.host} is not an address of this machine; try {LOOPBACK}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            free = _free_near(address)
            raise UsageError(
                f"{shown}: port {address.port} is in use; port {free} is free: {option} {address.shown_host}:{free}"
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"{shown}: {address.host} is not an address of this machine; try {LOOPBACK}") from None
        raise UsageError(f"{shown}: cannot be used ({error.strerror}); try a port above 1023") from None


def _listening(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    found = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # allows a port whose last connections are in TIME_WAIT
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(where)
        found.listen(128)
    except OSError:
        found.close()
        raise
    return found


def _free_near(address: ListenAddress) -> int:
    """Return a free port, near the one that is in use if possible."""
    ports = [*range(address.port + 1, min(address.port + NEAR, _MOST_PORT) + 1), 0]
    return next((found for port in ports if (found := _if_free(address.host, port))), 0)


def _if_free(host: str, port: int) -> int:
    """Return the port (for 0: any free one), or 0 if it is in use."""
    with suppress(OSError), closing(_listening(host, port)) as probe:
        return int(probe.getsockname()[1])
    return 0

"""A broker as a child process, on loopback by default: mosquitto if it is installed, amqtt otherwise.

docs/adr/0002-embedded-broker.md explains the choice of these two, and their limits.
"""

from __future__ import annotations

import argparse
import errno
import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, get_args

from edge_sdk.errors import MissingExtra, RunFailed, TransportError, UsageError

Kind = Literal["auto", "amqtt", "mosquitto"]

HOST = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104  # only where a user asks for it
DEFAULT_PORT = 1883
_START_S = 20.0
_STOP_S = 3.0
_POLL_S = 0.01
_END_WITH_PARENT = 'exec 3<&0; (cat <&3 >/dev/null; kill $$) & exec "$0" -c "$1" 3<&-'
"""A shell script that becomes mosquitto; its background process ends it when standard input closes."""

MOSQUITTO_CONF = Path(__file__).with_name("mosquitto.conf")
"""The mosquitto settings for any federation; listeners and access are added to it."""
_LISTENER = """
listener {port} {host}
allow_anonymous true
persistence false
log_dest stderr
log_type error
"""


class EmbeddedBroker:
    """A broker that lives as long as the `with` block, or from `start` to `stop`, and dies with this process.

    With `port` 0 it takes a free port.  bind: the IPv4 address of this machine that it listens on.
    Nothing is stored: a restarted broker has no sessions and no retained messages.
    """

    def __init__(self, kind: Kind = "auto", port: int = 0, bind: str = HOST) -> None:
        if kind not in get_args(Kind):
            raise UsageError(f"unknown embedded broker {kind!r}; choose one of {', '.join(get_args(Kind))}")
        self.kind = _resolve(kind)
        self.port, self.bind = port, bind
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        return f"mqtt://{self.here}:{self.port}"

    @property
    def here(self) -> str:
        """The address for clients on this machine."""
        return HOST if self.bind == EVERYWHERE else self.bind

    @property
    def version(self) -> str:
        """The version of the broker's software."""
        if self.kind == "amqtt":
            return importlib.metadata.version("amqtt")
        shown = subprocess.run([_mosquitto(), "-h"], capture_output=True, text=True, check=False)  # noqa: S603  found on PATH by us
        found = re.search(r"version ([\w.]+)", shown.stdout)
        return found[1] if found else "unknown"

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise TransportError("the embedded broker is not running; enter its `with` block first")
        return self._process.pid

    def start(self) -> EmbeddedBroker:
        """Start the broker and wait until it accepts connections.

        Raises UsageError if the port is taken, TransportError if the broker does not start.
        """
        self.port = _free_port(self.bind, self.port)
        try:
            with tempfile.TemporaryDirectory(prefix="edge-sdk-broker-") as folder:  # read only at the start
                errors = Path(folder) / "errors.txt"
                with errors.open("wb") as sink:
                    self._process = subprocess.Popen(  # noqa: S603  our own interpreter, or mosquitto from PATH
                        self._command(Path(folder)),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        stderr=sink,
                        start_new_session=True,  # Ctrl-C must not reach the broker: this process needs it to finish
                    )
                self._await_connections(self._process, errors)
        except BaseException:
            self.stop()
            raise
        return self

    def check(self) -> None:
        """Raise RunFailed if the broker has ended; nothing restarts it."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            raise RunFailed(
                f"the embedded broker ({self.kind}) {how}; continue with --resume, which starts another one"
            )

    def wait(self) -> int:
        """Wait until the broker process ends; returns its exit code."""
        return 0 if self._process is None else self._process.wait()

    def stop(self) -> None:
        """Stop the broker; a second call is a no-op."""
        process, self._process = self._process, None
        if process is not None:
            _end(process)

    def __enter__(self) -> EmbeddedBroker:  # noqa: PYI034  Self is not in Python 3.10
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self, folder: Path) -> list[str]:
        if self.kind == "amqtt":
            return [
                sys.executable,
                "-m",
                "coordinator.broker.amqtt_child",
                "--port",
                str(self.port),
                "--bind",
                self.bind,
            ]
        conf = folder / "mosquitto.conf"
        settings = MOSQUITTO_CONF.read_text(encoding="utf-8") + _LISTENER.format(port=self.port, host=self.bind)
        conf.write_text(settings, encoding="utf-8")
        return ["/bin/sh", "-c", _END_WITH_PARENT, _mosquitto(), str(conf)]

    def _await_connections(self, process: subprocess.Popen[bytes], errors: Path) -> None:
        deadline_s = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < deadline_s:
            with suppress(OSError), socket.create_connection((self.here, self.port), timeout=_START_S):
                return
            time.sleep(_POLL_S)
        said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = said[-1] if said else "it printed nothing"
        raise TransportError(f"the embedded broker ({self.kind}) did not come up at {self.bind}:{self.port}: {last}")


def command(args: argparse.Namespace) -> int:
    """Run `edge-sdk broker`; returns the exit code."""
    serve(args.port, bind=args.bind, everybody=args.open)
    return 0


def serve(port: int = DEFAULT_PORT, kind: Kind = "auto", bind: str = HOST, *, everybody: bool = False) -> None:
    """Run a broker in the foreground until Ctrl-C, for `edge-sdk broker`.

    everybody: whether other machines may reach it although it asks for no password.  Raises UsageError if only `bind`
    lets them.
    """
    beyond_this_machine = bind != "localhost" and not bind.startswith("127.")
    if beyond_this_machine and not everybody:
        raise UsageError(
            f"--bind {bind}: this broker has no password and no TLS, so anyone who reaches the address could read and "
            "write everything; add --open in a network that you trust, or set up a broker as in docs/how-to/tls.md"
        )
    with suppress(KeyboardInterrupt), EmbeddedBroker(kind, port, bind) as broker:
        sys.stdout.write(f"{broker.kind} {broker.version} at {broker.url} (Ctrl-C ends it)\n")
        if beyond_this_machine:
            sys.stdout.write(_for_others(broker))
        sys.stdout.flush()
        raise TransportError(f"the embedded broker ({broker.kind}) ended with exit code {broker.wait()}; start again")


def _for_others(broker: EmbeddedBroker) -> str:
    """Commands to type on another machine, and a warning about access without a password."""
    address = own_address() if broker.bind == EVERYWHERE else broker.bind
    url = f"mqtt://{address}:{broker.port}"
    return (
        f"on another machine, check the way here: edge-sdk doctor --broker {url}\n"
        f"a device there:   edge-sdk device --broker {url} --federation NAME --app my_app:make --id DEVICE\n"
        f"a lab's board:    edge-sdk lab-device --broker {url} --number 0\n"
        f"the coordinator:  edge-sdk coordinator FILE.toml --broker {url}\n"
        "warning: no password and no TLS: anyone who reaches this address can read and write everything, and stop your "
        "runs; use it in a network that you trust, let a firewall keep others out, or set up docs/how-to/tls.md\n"
    )


def own_address() -> str:
    """The IPv4 address by which other machines most likely reach this one; found without sending a packet."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe, suppress(OSError):
        probe.connect(
            ("192.0.2.1", 9)
        )  # a documentation address (RFC 5737): connecting a UDP socket only looks up the route
        return str(probe.getsockname()[0])
    return socket.gethostname()


def check_bind(bind: str) -> None:
    """Raise UsageError unless a broker of this machine can listen on an address, IPv4 or IPv6."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(bind, 0, type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.bind(where)
    except (OSError, UnicodeError):
        raise UsageError(f"--bind {bind}: this machine has {_addresses()}; take one, or 0.0.0.0 for all") from None


def _addresses() -> str:
    return ", ".join(dict.fromkeys((HOST, own_address())))


def _resolve(kind: Kind) -> Literal["amqtt", "mosquitto"]:
    """The broker to start.  Raises UsageError or MissingExtra if it is not installed."""
    if kind != "amqtt" and os.name == "posix" and shutil.which("mosquitto"):
        return "mosquitto"
    if kind == "mosquitto":
        raise UsageError("mosquitto is not on PATH; install it, or take the embedded broker 'amqtt'")
    if importlib.util.find_spec("amqtt") is None:
        raise MissingExtra("amqtt", "coordinator", "the embedded broker")
    return "amqtt"


def _mosquitto() -> str:
    found = shutil.which("mosquitto")
    if found is None:
        raise UsageError("mosquitto is no longer on PATH; put it back, or take the embedded broker 'amqtt'")
    return found


def _free_port(bind: str, port: int) -> int:
    """The port itself, or any free one for 0.  Raises UsageError if it cannot be bound."""
    with closing(socket.socket()) as probe:
        if os.name == "posix":  # allows a port whose last connections are in TIME_WAIT
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
        except socket.gaierror:
            raise UsageError(
                f"--bind {bind}: not an address; this machine has {_addresses()}, or take 0.0.0.0"
            ) from None
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) == errno.EADDRNOTAVAIL:
                raise UsageError(
                    f"--bind {bind}: this machine has {_addresses()}; take one, or 0.0.0.0 for all"
                ) from None
            raise UsageError(f"port {port} of {bind} cannot be used: {error}; choose another with --port") from None
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child by closing its standard input; kill it if it does not end within _STOP_S seconds."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

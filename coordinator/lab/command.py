"""The commands `edge-sdk lab init`, `serve`, `claim`, `revoke` and `restored`."""

from __future__ import annotations

import argparse
import csv
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from coordinator.broker.embedded import check_bind
from coordinator.lab import broker_settings, owner
from coordinator.lab.broker_settings import CONF, DESK
from coordinator.lab.desk import SUBSCRIPTION, EnrolmentDesk
from edge_sdk.errors import StoreError, TransportError, UsageError
from edge_sdk.identity.folder import AUTHORITY, CERTIFICATE, TLS_KEY
from edge_sdk.transport.base import Connected, Disconnected, Incoming
from edge_sdk.transport.mqtt.tls import OF_LAB, TlsFiles
from edge_sdk.transport.mqtt.transport import MqttTransport

POLL_S = 0.5
START_S, STOP_S = 20.0, 3.0


def command(args: argparse.Namespace) -> int:
    """Run the action of `edge-sdk lab` that was asked for; returns the exit code."""
    return ACTIONS[args.action](args)


def init_command(args: argparse.Namespace) -> int:
    """Make the folder of a lab, whose broker this machine serves."""
    hosts = args.host or [socket.gethostname()]
    owner.check_hosts([*hosts, args.bind])
    check_bind(args.bind)
    owner.make_lab(args.lab, hosts, args.port, args.bind, encrypts=args.encrypt)
    how = "; frames are encrypted between devices and coordinator" if args.encrypt else ""
    _say(f"{args.lab}: a lab at mqtts://{hosts[0]}:{args.port}, for {', '.join(hosts)}{how}")
    advice = broker_settings.version_advice()
    if advice:
        _say(f"note: {advice}")
    typed = shlex.quote(str(args.lab))
    _say(f"start the broker and the desk:  edge-sdk lab serve {typed}")
    _say(f"issue a claim for each device:  edge-sdk lab claim --lab {typed} device-01 device-02")
    _say(f"keep a copy of {args.lab} where nobody else reads it: whoever has it can enrol devices")
    return 0


def claim_command(args: argparse.Namespace) -> int:
    """Issue claims."""
    devices = [*args.devices, *(_devices_in(args.csv) if args.csv else ())]
    if not devices:
        raise UsageError("name the devices to claim, or give --csv FILE with their names in its first column")
    files = owner.issue_claims(args.lab, devices, args.out)
    broker_settings.reload_broker(args.lab)
    for path in files:
        _say(str(path))
    _say("copy each file to its board, and there: edge-sdk enroll --claim FILE")
    return 0


def _devices_in(path: Path) -> list[str]:
    """Return the names in the first column of a CSV file; a heading `device` is left out."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            names = [row[0].strip() for row in csv.reader(file) if row and row[0].strip()]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as CSV: {error}") from None
    return names[1:] if names and names[0].lower() in ("device", "id", "name") else names


def lab_revoke_command(args: argparse.Namespace) -> int:
    """Revoke devices."""
    for device in args.devices:
        _say(owner.revoke_device(args.lab, device))
    if not broker_settings.reload_broker(args.lab):
        _say("the broker is not running here: where it runs, let it read its settings again (kill -HUP its process)")
    return 0


def restored_command(args: argparse.Namespace) -> int:
    """Go on with a lab whose folder came back from a backup."""
    owner.go_on_after_backup(args.lab)
    _say(f"{args.lab}: start the coordinators again; devices that enrolled after the backup need a new claim")
    return 0


def serve_command(args: argparse.Namespace) -> int:
    """Run the broker of a lab and the desk that enrols boards, until Ctrl-C or SIGTERM, which end the broker, too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    desk, url = EnrolmentDesk(args.lab), owner.broker_of(args.lab)
    with suppress(KeyboardInterrupt), _broker(args.lab, wanted=not args.no_broker) as process:
        files = TlsFiles(args.lab / AUTHORITY, args.lab / DESK / CERTIFICATE, args.lab / DESK / TLS_KEY, OF_LAB)
        transport = MqttTransport(_local(url), DESK, tls=files, clean=True, seed=secrets.randbits(32))
        transport.connect((SUBSCRIPTION,))
        try:
            _serve(desk, transport, process, url)
        finally:
            transport.close()
    return 0


def _local(url: str) -> str:
    """Return the URL of the broker as this machine reaches it, by a name that its certificate has."""
    return f"mqtts://localhost:{url.rpartition(':')[2]}"


def _serve(desk: EnrolmentDesk, transport: MqttTransport, process: subprocess.Popen[bytes] | None, url: str) -> None:
    while True:
        if process is not None and process.poll() is not None:
            raise TransportError(f"mosquitto ended with exit code {process.returncode}; start again")
        event = transport.poll(POLL_S)
        if isinstance(event, Connected):
            _say(f"the lab is open at {url} (Ctrl-C ends it)")
        elif isinstance(event, Disconnected):
            _say(f"broker: {event.reason}")
            if event.final:
                raise TransportError(f"broker: {event.reason}")
        elif isinstance(event, Incoming):
            _answer(desk, transport, event)


def _answer(desk: EnrolmentDesk, transport: MqttTransport, event: Incoming) -> None:
    event.acknowledge()
    try:
        answer = desk.answer(event.topic, event.frame)
    except (StoreError, UsageError) as error:
        _say(f"{error}; the board will ask again")
        return
    if answer is not None:
        topic, message, line = answer
        transport.send(topic, message)
        _say(line)


@contextmanager
def _broker(lab: Path, *, wanted: bool) -> Iterator[subprocess.Popen[bytes] | None]:
    """Run mosquitto with the lab's settings while the `with` block runs, if it is wanted here."""
    if not wanted:
        yield None
        return
    running = broker_settings.running_broker(lab)
    if running is not None:
        _say(f"mosquitto runs already with {lab / CONF} (process {running}); it goes on when this ends")
        yield None
        return
    program = shutil.which("mosquitto")
    if program is None:
        raise UsageError(f"mosquitto is not on PATH: install {broker_settings.ADVISED}, or give --no-broker")
    with subprocess.Popen([program, "-c", str(lab / CONF)], start_new_session=True) as process:  # noqa: S603
        try:
            _await_port(lab, process)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_port(lab: Path, process: subprocess.Popen[bytes]) -> None:
    port = int(owner.broker_of(lab).rpartition(":")[2])
    end_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end_s:
        with suppress(OSError), socket.create_connection(("localhost", port), timeout=1.0):
            return
        time.sleep(0.02)
    raise TransportError(f"mosquitto did not come up at port {port}; what it printed says why")


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "init": init_command,
    "serve": serve_command,
    "claim": claim_command,
    "revoke": lab_revoke_command,
    "restored": restored_command,
}
"""The function of each action."""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()

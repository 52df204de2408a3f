"""The commands `edge-sdk lab init`, `serve`, `broker`, `claim`, `revoke`, `renew`, `rotate`, `restored`, `backup`..."""

from __future__ import annotations

import argparse
import csv
import secrets
import shlex
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from coordinator.broker.embedded import check_bind
from coordinator.lab import broker_settings, keeper, owner
from coordinator.lab.backup import backup_command, restore_command
from coordinator.lab.broker_settings import DESK
from coordinator.lab.desk import SUBSCRIPTION, EnrolmentDesk
from coordinator.lab.keeper import Keeper, tell_owner
from coordinator.lab.retained import clear_retained
from coordinator.systemd import SystemdNotifier
from edge_sdk.errors import StoreError, TransportError, UsageError
from edge_sdk.identity import key_files
from edge_sdk.identity.folder import AUTHORITY, CERTIFICATE, TLS_KEY
from edge_sdk.identity.registry import check_lab
from edge_sdk.transport.base import Connected, Disconnected, Incoming
from edge_sdk.transport.mqtt.tls import OF_LAB, TlsFiles
from edge_sdk.transport.mqtt.transport import MqttTransport

POLL_S = 0.5


def command(args: argparse.Namespace) -> int:
    """Run the chosen action of `edge-sdk lab`; returns the exit code."""
    return ACTIONS[args.action](args)


def init_command(args: argparse.Namespace) -> int:
    """Make the folder of a lab with its broker on this machine."""
    hosts = args.host or [socket.gethostname()]
    owner.check_hosts([*hosts, args.bind])
    check_bind(args.bind)
    owner.make_lab(args.lab, hosts, args.port, args.bind, encrypts=args.encrypt)
    how = "; frames are encrypted between devices and coordinator" if args.encrypt else ""
    tell_owner(f"{args.lab}: a lab at mqtts://{hosts[0]}:{args.port}, for {', '.join(hosts)}{how}")
    advice = broker_settings.version_advice()
    if advice:
        tell_owner(f"note: {advice}")
    typed = shlex.quote(str(args.lab))
    tell_owner(f"start the broker and the desk:  edge-sdk lab serve {typed}")
    tell_owner(f"issue a claim for each device:  edge-sdk lab claim --lab {typed} device-01 device-02")
    tell_owner(f"keep a copy of {args.lab} where only you can read it: anyone who has it can enrol devices")
    return 0


def claim_command(args: argparse.Namespace) -> int:
    """Issue claims."""
    devices = [*args.devices, *(_devices_in(args.csv) if args.csv else ())]
    if not devices:
        raise UsageError("name the devices to claim, or give --csv FILE with their names in its first column")
    files = owner.issue_claims(args.lab, devices, args.out)
    broker_settings.reload_broker(args.lab)
    for path in files:
        tell_owner(str(path))
    tell_owner("copy each file to its board, and there: edge-sdk enroll --claim FILE")
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
    """Revoke devices, and clear their retained messages on the broker."""
    for device in args.devices:
        tell_owner(owner.revoke_device(args.lab, device))
    if not broker_settings.reload_broker(args.lab):
        fault = "the broker is not running here: where it runs, reload its settings (kill -HUP its process)"
        tell_owner(fault)
        return 0
    cleared = clear_retained(args.lab, args.devices)
    if cleared:
        tell_owner(f"cleared {cleared} of their retained messages on the broker")
    return 0


def renew_command(args: argparse.Namespace) -> int:
    """Renew the TLS keys and certificates of broker, coordinator, operator and desk."""
    owner.renew_lab(args.lab, args.host or ())
    tell_owner(f"{args.lab}: broker, coordinator, operator and desk have new TLS keys and certificates")
    if broker_settings.reload_broker(args.lab):
        tell_owner("the broker uses them from now on; connections last, and the next ones use the new certificates")
    else:
        tell_owner("the broker is not running here: where it runs, reload its settings (kill -HUP its process)")
    return 0


def rotate_command(args: argparse.Namespace) -> int:
    """Give the coordinator a new signing key."""
    owner.rotate_signing_key(args.lab)
    tell_owner(f"{args.lab}: the coordinator has a new signing key, introduced by the one before")
    tell_owner("start it again with --resume: devices follow automatically, also those that come back later")
    tell_owner(f"copy {args.lab / 'operator'} again to wherever operators use it")
    return 0


def restored_command(args: argparse.Namespace) -> int:
    """Continue with a lab whose folder was restored from a backup."""
    owner.go_on_after_backup(args.lab)
    tell_owner(f"{args.lab}: restart the coordinators; devices that enrolled after the backup need a new claim")
    return 0


def broker_command(args: argparse.Namespace) -> int:
    """Run the broker of a lab, and restart it whenever it ends, until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    check_lab(args.lab)
    with suppress(KeyboardInterrupt):
        keeper.keep_running(args.lab)
    return 0


def serve_command(args: argparse.Namespace) -> int:
    """Run the desk that enrols boards, and the broker as a separate process, until Ctrl-C or SIGTERM, which end both.

    If the desk crashes, the broker keeps running.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    desk, url = EnrolmentDesk(args.lab), owner.broker_of(args.lab)
    files = TlsFiles(args.lab / AUTHORITY, args.lab / DESK / CERTIFICATE, args.lab / DESK / TLS_KEY, OF_LAB)
    transport = MqttTransport(owner.local_broker(args.lab), DESK, tls=files, clean=True, seed=secrets.randbits(32))
    broker = None
    # two desks have one client id: each would end the other's connection
    with key_files.used_alone(args.lab, "desk", f"{args.lab}: another process runs this lab's desk"):
        try:
            broker = None if args.no_broker else Keeper(args.lab)
            transport.connect((SUBSCRIPTION,))
            try:
                _serve(desk, transport, broker, url)
            finally:
                transport.close()
        except KeyboardInterrupt:
            if broker is not None:
                broker.end()
    return 0


def _serve(desk: EnrolmentDesk, transport: MqttTransport, broker: Keeper | None, url: str) -> NoReturn:
    notifier = SystemdNotifier()
    notifier.ready()
    while True:
        notifier.alive()
        if broker is not None:
            broker.watch()
        event = transport.poll(POLL_S)
        if isinstance(event, Connected):
            tell_owner(f"the lab is open at {url} (Ctrl-C ends it)")
        elif isinstance(event, Disconnected):
            tell_owner(f"broker: {event.reason}")
            if event.final:
                raise TransportError(f"broker: {event.reason}")
        elif isinstance(event, Incoming):
            _answer(desk, transport, event)


def _answer(desk: EnrolmentDesk, transport: MqttTransport, event: Incoming) -> None:
    event.acknowledge()
    try:
        answer = desk.answer(event.topic, event.frame)
    except (StoreError, UsageError) as error:
        tell_owner(f"{error}; the board will ask again")
        return
    if answer is not None:
        topic, message, line = answer
        transport.send(topic, message)
        tell_owner(line)


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "init": init_command,
    "serve": serve_command,
    "broker": broker_command,
    "claim": claim_command,
    "revoke": lab_revoke_command,
    "renew": renew_command,
    "rotate": rotate_command,
    "restored": restored_command,
    "backup": backup_command,
    "restore": restore_command,
}
"""The function of each action."""

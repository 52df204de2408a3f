"""The settings of a lab's mosquitto: TLS with certificates on both sides, and access rules for canonical topics."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from coordinator.broker.embedded import MOSQUITTO_CONF
from edge_sdk.identity import key_files
from edge_sdk.identity.claims import CLAIMS_ROOT
from edge_sdk.identity.folder import COORDINATOR_FOLDER, OPERATOR_FOLDER
from edge_sdk.identity.registry import Registry
from edge_sdk.protocol import topics

DESK = "desk"
"""The user name of the program that enrols boards."""
SWEEPER = "lab.sweeper"
"""The user name of the client that clears retained messages; device names cannot have a dot."""
STAFF = (COORDINATOR_FOLDER, OPERATOR_FOLDER, DESK)
"""The user names that no device may have."""
CONF, ACCESS, PID = "mosquitto.conf", "mosquitto.acl", "mosquitto.pid"
BROKER_CERTIFICATE, BROKER_KEY, REVOKED = "broker.pem", "broker.key", "revoked.pem"
ADVISED = "mosquitto 2.0.23, 2.1.2 or newer"
_LEAST = {(2, 0): 23, (2, 1): 2}
"""The oldest advised release of each series."""
_SETTINGS = """
# Each client shows a certificate of the lab; its name is the user name and the client id, so that no client can take
# the place of another.
listener {port} {bind}
cafile {lab}/ca.pem
certfile {lab}/broker.pem
keyfile {lab}/broker.key
crlfile {lab}/revoked.pem
require_certificate true
use_identity_as_username true
use_username_as_clientid true
tls_version tlsv1.2
allow_anonymous false
acl_file {lab}/mosquitto.acl

# Limits: a message of 256 KiB, and what waits for a client that is away.
max_packet_size 262144
max_queued_bytes 268435456
persistent_client_expiration 7d
max_keepalive 600

persistence false
pid_file {lab}/mosquitto.pid
user {user}
"""


def write_settings(lab: Path, port: int, bind: str) -> None:
    """Write the broker's settings into the folder of a lab.

    A mosquitto started by root drops to the user who owns the lab, so that it can read the lab's key.
    """
    text = MOSQUITTO_CONF.read_text(encoding="utf-8")
    text += _SETTINGS.format(lab=lab.resolve(), port=port, bind=bind, user=getpass.getuser())
    key_files.write_whole(lab / CONF, text.encode())


def one_connection_each(lab: Path) -> bool:
    """Return whether the lab's broker gives each certificate one connection, by its present settings."""
    try:
        lines = (lab / CONF).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return ["use_username_as_clientid", "true"] in (line.split() for line in lines)


def write_access(lab: Path, registry: Registry) -> None:
    """Write the access rules for topics.

    A device publishes only on its own canonical topics in the federations that the lab serves.  Otherwise it could make
    the broker keep a retained message on any number of topics.
    A user's rules precede the patterns, so a claim opens nothing but its own topic.  A revoked device that is connected
    can publish nothing; it still hears that it is revoked, and cannot connect again.
    """
    lines = ["# Written by edge-sdk lab, which replaces it."]
    for role, permission, pattern in topics.ACCESS_RULES:
        if role != "device":
            lines += [f"user {role}", f"topic {permission} {pattern}"]
    lines += [f"user {DESK}", f"topic read {CLAIMS_ROOT}/+", f"topic write {CLAIMS_ROOT}/+/card"]
    lines += [f"user {SWEEPER}", f"topic readwrite {topics.ROOT}/+/up/#", f"topic readwrite {topics.ROOT}/+/st/+"]
    for user in sorted(registry.claims):
        lines += [f"user {user}", f"topic deny {topics.ROOT}/#"]
    for device in sorted(registry.revoked_devices):
        lines += [f"user {device}", f"topic deny {topics.ROOT}/+/up/#", f"topic deny {topics.ROOT}/+/st/#"]
    served = registry.federations
    for device in registry.admitted_devices if served else ():
        lines.append(f"user {device}")
        lines += [f"topic write {topic}" for name in served or () for topic in topics.device_topics(name, device)]
    for role, permission, pattern in topics.ACCESS_RULES:
        if role == "device":
            granted = permission if served is None else permission.replace("write", "")
            lines += [f"pattern {granted} {pattern}"] if granted else []
    lines += [f"pattern write {CLAIMS_ROOT}/%u", f"pattern read {CLAIMS_ROOT}/%u/card"]
    key_files.write_whole(lab / ACCESS, "\n".join(lines).encode() + b"\n")


def running_broker(lab: Path) -> int | None:
    """Return the process id of the mosquitto that runs here with this lab's settings; or None if none is found."""
    try:
        pid = int((lab / PID).read_text(encoding="ascii"))
        process = Path(f"/proc/{pid}")
        words = process.joinpath("cmdline").read_bytes().split(b"\0")
        started_in = process.joinpath("cwd").resolve()
        conf = (lab / CONF).resolve()
        ours = any(word and started_in.joinpath(os.fsdecode(word)).resolve() == conf for word in words)
    except (OSError, ValueError):
        return None
    return pid if ours and b"mosquitto" in words[0] else None


def reload_broker(lab: Path) -> bool:
    """Have the running mosquitto of this lab reload its settings; returns whether it was found here."""
    pid = running_broker(lab)
    try:
        if pid is not None:
            os.kill(pid, signal.SIGHUP)
    except OSError:
        return False
    return pid is not None


def version_advice() -> str:
    """Return advice about the mosquitto on this machine, or empty."""
    program = shutil.which("mosquitto")
    if program is None:
        return f"mosquitto is not on PATH here: install {ADVISED}"
    shown = subprocess.run([program, "-h"], capture_output=True, text=True, check=False)  # noqa: S603  found on PATH
    found = re.search(r"version (\d+)\.(\d+)\.(\d+)", shown.stdout)
    if found is None:
        return f"the version of mosquitto is unknown; {ADVISED} is advised"
    major, minor, patch = map(int, found.groups())
    if (major, minor) > max(_LEAST) or patch >= _LEAST.get((major, minor), 1 << 30):
        return ""
    return f"mosquitto {major}.{minor}.{patch} has known faults that can stop it: {ADVISED} is advised"

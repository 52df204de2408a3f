"""Tasks of a lab's owner: set it up, issue claims, revoke devices, and continue after a restored backup."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from coordinator.lab import broker_settings
from coordinator.lab.broker_settings import BROKER_CERTIFICATE, BROKER_KEY, REVOKED, STAFF
from edge_sdk.at_rest.files import make_folder
from edge_sdk.errors import UsageError
from edge_sdk.identity import key_files
from edge_sdk.identity.claims import Claim, claim_user, new_claim_secret
from edge_sdk.identity.folder import (
    ABOUT,
    AFTER_BACKUP,
    AUTHORITY,
    CERTIFICATE,
    COORDINATOR_FOLDER,
    OPERATOR_FOLDER,
    SEALING,
    SIGNING,
    STARTS,
    SUCCESSION,
    TLS_KEY,
    IdentityCard,
    crypto_keys,
    open_identity,
)
from edge_sdk.identity.registry import (
    REGISTRY,
    IssuedClaim,
    Registry,
    change_registry,
    check_lab,
    read_registry,
    with_closed_claims,
    with_revoked,
    write_registry,
)
from edge_sdk.identity.signatures import Role, with_successor
from edge_sdk.protocol.topics import is_id

SETTINGS, AUTHORITY_KEY, CLAIMS = "lab.json", "ca.key", "claims"
RENEWAL = "renewal.json"
"""The files of a renewal that is being carried out."""
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?:{_LABEL}\.)*(?![0-9]+$){_LABEL}")
"""A host name; a last part of digits only would be taken for an address."""
_MOST_HOST = 253
MOST_FEDERATIONS = 8
"""Maximum number of federations in which a lab's devices may publish; it bounds the broker's retained messages."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1")


class Issuer(Protocol):
    """The authority of a lab: `LabAuthority` in edge_sdk/identity/crypto_keys.py, which is imported lazily."""

    def issue_for_key(self, name: str, tls_key: bytes, hosts: Sequence[str] = ()) -> bytes:
        """Return a certificate for a private key that this machine holds."""

    def issue_for_request(self, name: str, request: bytes) -> bytes:
        """Return a certificate for a signing request."""

    def revocations(self, certificates: Iterable[bytes], number: int) -> bytes:
        """Return the list of revoked certificates."""


def make_lab(lab: Path, hosts: Sequence[str], port: int, bind: str, *, encrypts: bool = False) -> None:
    """Make the folder of a lab.  hosts: the names and addresses of the broker; devices use the first.

    encrypts: whether frames between devices and coordinators are encrypted.

    Raises UsageError for an invalid host name, or if the folder already holds a lab.
    """
    check_hosts([*hosts, bind])
    if (lab / REGISTRY).exists():
        raise UsageError(f"{lab} already holds a lab; name another folder, or claim devices for this one")
    if (lab / AUTHORITY_KEY).exists():
        raise UsageError(
            f"{lab} holds an incomplete lab, without {REGISTRY}; restore that from a backup, or remove the "
            "folder if the lab was never finished"
        )
    certificates = crypto_keys("a certificate")
    make_folder(lab, str(lab), private=True)
    authority, authority_key = certificates.new_authority(f"edge-sdk lab {hosts[0]}")
    key_files.write_whole(lab / AUTHORITY, authority)
    key_files.write_whole(lab / AUTHORITY_KEY, authority_key, key_files.PRIVATE)
    url = f"mqtts://{_in_url(hosts[0])}:{port}"
    key_files.write_whole(lab / SETTINGS, json.dumps({"broker": url, "hosts": list(hosts)}).encode() + b"\n")
    issuer = certificates.LabAuthority(authority, authority_key)
    _write_files(lab, _tls_pairs(issuer, hosts))
    coordinator = crypto_keys().new_signing_key()
    for name, key in ((COORDINATOR_FOLDER, coordinator), (OPERATOR_FOLDER, crypto_keys().new_signing_key())):
        public = coordinator.public.hex()
        about = IdentityCard(role=name, name=name, broker=url, coordinator=public, own=key.public.hex())
        if encrypts and name == COORDINATOR_FOLDER:
            sealing = _new_sealing_key(lab / name)
            about = dataclasses.replace(about, sealing=sealing, own_sealing=sealing)
        folder = lab / name
        key_files.write_whole(folder / SIGNING, key.to_pem(), key_files.PRIVATE)
        key_files.write_whole(folder / AUTHORITY, authority)
        key_files.write_whole(folder / ABOUT, about.to_json())
    broker_settings.write_settings(lab, port, bind)
    operator = open_identity(lab / OPERATOR_FOLDER, Role.OPERATOR)
    registry = Registry(operators={OPERATOR_FOLDER: operator.key.public.hex()}, federations=[])
    write_broker_files(lab, registry)
    write_registry(lab, registry)


def _tls_pairs(issuer: Issuer, hosts: Sequence[str]) -> dict[str, str]:
    """Make TLS keys and certificates of the staff, and of the broker for these hosts and for this machine.

    Returns the texts by their files in the lab's folder.
    """
    found, names = dict[str, str](), [*dict.fromkeys((*hosts, *LOOPBACK_HOSTS))]
    places = {name: (f"{name}/{TLS_KEY}", f"{name}/{CERTIFICATE}", ()) for name in STAFF}
    for name, (key, certificate, its_hosts) in {**places, "broker": (BROKER_KEY, BROKER_CERTIFICATE, names)}.items():
        tls_key = crypto_keys("a certificate").new_tls_key()
        found |= {key: tls_key.decode(), certificate: issuer.issue_for_key(name, tls_key, its_hosts).decode()}
    return found


def _write_files(lab: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        key_files.write_whole(
            lab / name, text.encode(), key_files.PRIVATE if name.endswith(".key") else key_files.PUBLIC
        )


def renew_lab(lab: Path, hosts: Sequence[str] = ()) -> None:
    """Give broker, coordinator, operator and desk new TLS keys and certificates of the same authority.

    hosts: names and addresses of the broker, if others than before.  The old certificates of the three clients are
    revoked.  Keys that sign frames stay, because devices know them.  Raises UsageError.
    """
    check_hosts(hosts)
    check_lab(lab)
    finish_renewal(lab)
    issuer, about = authority_of(lab), json.loads(key_files.read_part(lab / SETTINGS))
    named = list(hosts or about["hosts"])
    files = {**_tls_pairs(issuer, named), SETTINGS: json.dumps({**about, "hosts": named}) + "\n"}
    old = [key_files.read_part(lab / name / CERTIFICATE).decode() for name in STAFF]
    _carry_out(lab, files, old)


def rotate_signing_key(lab: Path) -> None:
    """Give the coordinator a new signing key, which the old one introduces to devices.

    Raises UsageError while a coordinator runs, because it would still sign with the old key.
    """
    check_lab(lab)
    finish_renewal(lab)
    folder, running = lab / COORDINATOR_FOLDER, f"{lab}: its coordinator is running; stop it (edge-sdk drain), rotate"
    with ExitStack() as locks:
        for lock in sorted(folder.glob(".serving*.lock")):
            text = f"{running}, and start it again with --resume"
            locks.enter_context(key_files.used_alone(folder, lock.name[1 : -len(".lock")], text))
        own, staff = open_identity(folder, Role.COORDINATOR), open_identity(lab / OPERATOR_FOLDER, Role.OPERATOR)
        key = crypto_keys().new_signing_key()
        public, card = key.public.hex(), dataclasses.replace
        files = {
            f"{COORDINATOR_FOLDER}/{SUCCESSION}": with_successor(own.succession, own.key, key.public).hex(),
            f"{COORDINATOR_FOLDER}/{SIGNING}": key.to_pem().decode(),
            f"{COORDINATOR_FOLDER}/{ABOUT}": card(own.about, coordinator=public, own=public).to_json().decode(),
            f"{OPERATOR_FOLDER}/{ABOUT}": card(staff.about, coordinator=public).to_json().decode(),
        }
        _carry_out(lab, files, [])


def _carry_out(lab: Path, files: Mapping[str, str], revoked: Sequence[str]) -> None:
    plan = json.dumps({"files": files, "revoked": revoked})
    key_files.write_whole(lab / RENEWAL, plan.encode(), key_files.PRIVATE)  # from here on it will be finished
    finish_renewal(lab)


def finish_renewal(lab: Path) -> None:
    """Carry out a renewal that was begun, if there is one: a power cut leaves none of its files new, or all of them."""

    def renew(registry: Registry) -> tuple[Registry, None]:
        if not (lab / RENEWAL).exists():  # another process has finished it meanwhile
            return registry, None
        plan = json.loads(key_files.read_secret(lab / RENEWAL))
        _write_files(lab, plan["files"])
        after = dataclasses.replace(registry, revoked=[*dict.fromkeys((*registry.revoked, *plan["revoked"]))])
        write_broker_files(lab, after)
        return after, None

    if (lab / RENEWAL).exists():
        change_registry(lab, renew)
        (lab / RENEWAL).unlink(missing_ok=True)


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise UsageError for hosts that are neither a valid host name nor an address."""
    for host in hosts:
        if not (_is_address(host) or (len(host) <= _MOST_HOST and _HOST.fullmatch(host))):
            raise UsageError(
                f"host {host!r} is neither a name nor an address: write it alone, such as lab.local or 192.0.2.7, "
                "without mqtts:// and without a port"
            )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _new_sealing_key(folder: Path) -> str:
    """Make the coordinator's key for encryption; returns its public key in hexadecimal digits."""
    key = crypto_keys("encryption").new_exchange_key()
    key_files.write_whole(folder / SEALING, key.to_pem(), key_files.PRIVATE)
    public: bytes = key.public
    return public.hex()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def write_broker_files(lab: Path, registry: Registry) -> None:
    """Write the registry's files for the broker: access rules and the list of revoked certificates."""
    issuer = authority_of(lab)
    revoked = [each.encode() for each in registry.revoked]
    try:
        listed = issuer.revocations(revoked, len(revoked) + 1)
    except ValueError:
        raise UsageError(
            f"{lab / REGISTRY} is damaged: a revoked certificate cannot be read; restore it from a backup"
        ) from None
    key_files.write_whole(lab / REVOKED, listed)
    broker_settings.write_access(lab, registry)


def authority_of(lab: Path) -> Issuer:
    """Return the authority of a lab.  Raises UsageError if its key cannot be read, or if others can read it, too."""
    certificate = key_files.read_part(lab / AUTHORITY)
    issuer: Issuer = crypto_keys("a certificate").LabAuthority(certificate, key_files.read_secret(lab / AUTHORITY_KEY))
    return issuer


def local_broker(lab: Path) -> str:
    """Return the URL of the broker for this machine, by a name in its certificate."""
    return f"mqtts://localhost:{broker_of(lab).rpartition(':')[2]}"


def serve_federation(lab: Path, federation: str) -> None:
    """Let devices publish in a federation from now on; only the newest federations are kept."""

    def admit(registry: Registry) -> tuple[Registry, bool]:
        before = registry.federations or []
        newest = [*(name for name in before if name != federation), federation][-MOST_FEDERATIONS:]
        if newest == before:
            return registry, False
        after = dataclasses.replace(registry, federations=newest)
        broker_settings.write_access(lab, after)
        return after, True

    if change_registry(lab, admit):
        broker_settings.reload_broker(lab)


def broker_of(lab: Path) -> str:
    """Return the URL of the lab's broker.  Raises UsageError if the folder is not a lab."""
    return open_identity(lab / COORDINATOR_FOLDER, Role.COORDINATOR).broker


def check_devices(devices: Sequence[str]) -> None:
    """Raise UsageError for invalid and for repeated device names."""
    for device in devices:
        if not is_id(device):
            raise UsageError(f"device {device!r}: use a-z, 0-9 and -, at most 36 of them")
        if device in STAFF:
            raise UsageError(f"device {device!r}: this name is reserved for the lab; choose another one")
    twice = sorted({device for device in devices if devices.count(device) > 1})
    if twice:
        raise UsageError(f"device {twice[0]!r} is named twice")


def issue_claims(lab: Path, devices: Sequence[str], folder: Path | None = None) -> list[Path]:
    """Write a claim for each device into a folder (default: `claims` in the lab).  Returns the files.

    A device's earlier claims are replaced, and no longer work.
    """
    check_devices(devices)
    check_lab(lab)
    folder = folder or lab / CLAIMS
    own = open_identity(lab / COORDINATOR_FOLDER, Role.COORDINATOR)
    certificates, issuer = crypto_keys("a certificate"), authority_of(lab)
    authority = key_files.read_part(lab / AUTHORITY).decode()
    make_folder(folder, f"--out {folder}", private=True)  # before any claim is recorded

    def add(registry: Registry) -> tuple[Registry, list[Claim]]:
        claims, made = registry.claims, list[Claim]()
        for device in devices:
            number = 1 + sum(each.device == device for each in claims.values())
            claims = with_closed_claims(claims, device, "replaced")
            user, secret, tls_key = claim_user(device, number), new_claim_secret(), certificates.new_tls_key()
            claims[user] = IssuedClaim(device=device, secret=secret)
            made.append(
                Claim(
                    device=device,
                    user=user,
                    secret=secret,
                    broker=own.broker,
                    authority=authority,
                    certificate=issuer.issue_for_key(user, tls_key).decode(),
                    tls_key=tls_key.decode(),
                    coordinator=own.about.coordinator,
                    sealing=own.about.sealing,
                )
            )
        after = dataclasses.replace(registry, claims=claims)
        write_broker_files(lab, after)
        return after, made

    made = change_registry(lab, add)
    files = []
    for claim in made:
        path = folder / f"{claim.device}.claim"
        key_files.write_whole(path, claim.to_json(), key_files.PRIVATE)
        files.append(path)
    return files


def revoke_device(lab: Path, device: str) -> str:
    """Revoke a device and its open claims; returns a line about it.  Raises UsageError for an unknown device."""

    def revoke(registry: Registry) -> tuple[Registry, str]:
        after = with_revoked(registry, device)
        write_broker_files(lab, after)
        done = "is revoked" if device in after.devices else "was not enrolled; its claim no longer works"
        return after, f"{device} {done}"

    return change_registry(lab, revoke)


def go_on_after_backup(lab: Path) -> None:
    """Raise the counters of a lab restored from a backup beyond any start that the backup missed."""
    read_registry(lab)
    for name in (COORDINATOR_FOLDER, OPERATOR_FOLDER):
        path = lab / name / STARTS
        key_files.raise_counter(path, key_files.read_counter(path) + AFTER_BACKUP)

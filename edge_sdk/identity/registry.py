"""The registry of a lab, `registry.json`: its devices and their public keys, its operators, and its claims.

Several programs use it at the same time: the commands of the lab and its desk change it, coordinators read it.  Each
change replaces the whole file, under a lock.  It holds no private key; it holds the secrets of claims, and so only its
owner reads it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from edge_sdk.errors import UsageError
from edge_sdk.identity import key_files
from edge_sdk.identity.signatures import key_id
from edge_sdk.protocol.entry_guard import digested_json, undigested_json
from edge_sdk.protocol.topics import is_id

REGISTRY = "registry.json"
FORMAT = 1
KEY_BYTES = 32
"""The length of a public key, for signatures and for encryption alike."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolledDevice:
    """A device with keys of its own."""

    public: str
    """The public key of its signatures, in hexadecimal digits."""
    certificate: str
    """Its certificate in PEM form."""
    sealing: str = ""
    """Its public key for encryption, in hexadecimal digits, or empty without one."""
    revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedClaim:
    """A permission to enrol one device once."""

    device: str
    secret: str
    """The key of its messages, in hexadecimal digits."""
    state: str = "open"
    """open, used, replaced by a newer claim, or revoked."""
    public: str = ""
    """The public key that was enrolled with it, if any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The contents of the file."""

    devices: dict[str, EnrolledDevice] = field(default_factory=dict)
    claims: dict[str, IssuedClaim] = field(default_factory=dict)
    """Claims by the user name with which their holders connect to the broker."""
    operators: dict[str, str] = field(default_factory=dict)
    """The public key of each operator, in hexadecimal digits."""
    revoked: list[str] = field(default_factory=list)
    """The certificates that the broker must refuse, in PEM form."""
    federations: list[str] | None = None
    """The federations that this lab's coordinators have served, newest last; devices may publish only in these.  None
    in older labs, whose devices may publish in any."""
    version: int = FORMAT

    def device_keys(self) -> dict[bytes, tuple[str, bytes]]:
        """Return device and public key of all enrolled devices that are not revoked, by key id."""
        publics = ((name, bytes.fromhex(each.public)) for name, each in self.devices.items() if not each.revoked)
        return {key_id(public): (name, public) for name, public in publics}

    def sealing_keys(self) -> dict[str, bytes]:
        """Return each device's public key for encryption, also of revoked ones, whose refusals are encrypted."""
        return {name: bytes.fromhex(each.sealing) for name, each in self.devices.items() if each.sealing}

    def operator_keys(self) -> dict[bytes, bytes]:
        """Return the public keys of operators by key id."""
        return {key_id(public): public for public in map(bytes.fromhex, self.operators.values())}

    @property
    def admitted_devices(self) -> list[str]:
        """The devices that may publish: enrolled or with a claim, and not revoked."""
        return sorted({*self.devices, *(each.device for each in self.claims.values())} - self.revoked_devices)

    @property
    def revoked_devices(self) -> frozenset[str]:
        """The devices that may no longer take part."""
        return frozenset(name for name, each in self.devices.items() if each.revoked)


def with_revoked(registry: Registry, device: str) -> Registry:
    """Return a registry in which a device and its open claims are revoked.  Raises UsageError for an unknown device."""
    found = registry.devices.get(device)
    if found is None and not any(each.device == device for each in registry.claims.values()):
        known = ", ".join(sorted(registry.devices)[:8]) or "none"
        raise UsageError(f"no device {device} has a claim or is enrolled; enrolled are {known}")
    after = replace(registry, claims=with_closed_claims(registry.claims, device, "revoked"))
    if found is None or found.revoked:
        return after
    devices = {**registry.devices, device: replace(found, revoked=True)}
    return replace(after, devices=devices, revoked=[*registry.revoked, found.certificate])


def with_closed_claims(claims: Mapping[str, IssuedClaim], device: str, state: str) -> dict[str, IssuedClaim]:
    """Return claims in which the open ones of a device have this state."""
    return {
        user: replace(each, state=state) if each.device == device and each.state == "open" else each
        for user, each in claims.items()
    }


def check_lab(lab: Path) -> None:
    """Raise UsageError unless a folder holds a lab."""
    if not (lab / REGISTRY).exists():
        name = shlex.quote(str(lab))
        raise UsageError(f"{lab} is not a lab: it lacks {REGISTRY}; edge-sdk lab init {name} makes one")


def read_registry(lab: Path) -> Registry:
    """Read the registry of a lab's folder.  Raises UsageError if it is missing, damaged or open to others."""
    check_lab(lab)
    path = lab / REGISTRY
    try:
        return _from_plain(undigested_json(key_files.read_secret(path)))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{path} is damaged, or of another version of edge-sdk: restore it from a backup") from None


def _from_plain(plain: dict[str, Any]) -> Registry:
    plain = {"federations": None, **plain}
    if plain["version"] != FORMAT or set(plain) != {each.name for each in fields(Registry)}:
        raise ValueError("version")
    served = plain["federations"]
    if served is not None and not all(map(is_id, served)):
        raise ValueError("federation")
    devices = {name: EnrolledDevice(**each) for name, each in plain["devices"].items()}
    claims = {name: IssuedClaim(**each) for name, each in plain["claims"].items()}
    found = Registry(
        devices=devices,
        claims=claims,
        operators=dict(plain["operators"]),
        revoked=list(plain["revoked"]),
        federations=None if served is None else list(served),
    )
    keys = [each.public for each in devices.values()] + list(found.operators.values())
    keys += [each.sealing for each in devices.values() if each.sealing]
    if any(len(bytes.fromhex(key)) != KEY_BYTES for key in keys):
        raise ValueError("key")
    return found


def write_registry(lab: Path, registry: Registry) -> None:
    """Replace the registry, durably.  Raises StoreError."""
    plain = asdict(registry)
    if registry.federations is None:
        del plain["federations"]  # which an edge-sdk from before does not know
    key_files.write_whole(lab / REGISTRY, digested_json(plain), key_files.PRIVATE)


def change_registry(lab: Path, change: Callable[[Registry], tuple[Registry, T]]) -> T:
    """Change the registry while no other program does; returns what `change` returns beside the new one."""
    check_lab(lab)  # a lock would be left in a folder that is none
    with key_files.locked(lab):
        before = read_registry(lab)
        after, result = change(before)
        if after != before:
            write_registry(lab, after)
    return result


class RegistryReader:
    """The registry of a lab as another program may change it."""

    def __init__(self, lab: Path) -> None:
        self._lab = lab
        self._mark = self._found()
        self.registry = read_registry(lab)

    def refresh(self) -> bool:
        """Read the file again if it was replaced, and return whether it was.  A missing file changes nothing."""
        mark = self._found()
        if mark is None or mark == self._mark:
            return False
        self.registry, self._mark = read_registry(self._lab), mark
        return True

    def _found(self) -> tuple[int, int, int] | None:
        try:
            found = (self._lab / REGISTRY).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

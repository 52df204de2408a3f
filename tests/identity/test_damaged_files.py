"""A bit that changed in a file of an identity or a lab is told in one line, or changes nothing."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import labs
import pytest
from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509 import load_pem_x509_certificate

from coordinator.lab import owner
from coordinator.lab.desk import EnrolmentDesk
from edge_sdk.device.link.security import SeenStarts
from edge_sdk.errors import UsageError
from edge_sdk.identity import key_files
from edge_sdk.identity.claims import read_claim
from edge_sdk.identity.crypto_keys import fault_of
from edge_sdk.identity.folder import ABOUT, AUTHORITY, CERTIFICATE, SEALING, SIGNING, STARTS, TLS_KEY, open_identity
from edge_sdk.identity.registry import REGISTRY, read_registry, write_registry
from edge_sdk.identity.signatures import Role
from edge_sdk.protocol.entry_guard import DIGEST, digested_json, undigested_json
from edge_sdk.transport.mqtt.tls import tls_context
from edge_sdk.transport.mqtt.url import parse_broker_url

SEEN_CAMERAS = Path("seen") / "cameras"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab that encrypts, with a device that takes part, a revoked one, and an open claim."""
    lab = labs.made(tmp_path_factory.mktemp("lab"), encrypts=True)
    folder, _ = labs.enrolled(lab, "device-07", "device-08")
    owner.revoke_device(lab, "device-08")
    owner.issue_claims(lab, ["device-09"])
    key_files.raise_counter(folder / STARTS, 12)
    SeenStarts(folder / SEEN_CAMERAS).check(12)
    return lab


def tbs(path: Path) -> bytes:
    """What is signed in a certificate."""
    return load_pem_x509_certificate(path.read_bytes()).tbs_certificate_bytes


def identity_of(folder: Path, role: Role) -> object:
    """All that the files of an identity decide."""
    own = open_identity(folder, role)
    tls_context(labs.files_of(folder), parse_broker_url(own.broker))
    exchange = own.exchange_key.public if own.exchange_key else b""
    counters = key_files.read_counter(folder / STARTS), SeenStarts(folder / SEEN_CAMERAS).newest
    return own.about, own.key.public, exchange, tbs(own.certificate), tbs(own.authority), counters


def device_of(lab: Path) -> object:
    return identity_of(lab.parent / "device-07", Role.DEVICE)


def coordinator_of(lab: Path) -> object:
    return identity_of(lab / "coordinator", Role.COORDINATOR)


def operator_of(lab: Path) -> object:
    return identity_of(lab / "operator", Role.OPERATOR)


def desk_of(lab: Path) -> object:
    EnrolmentDesk(lab)
    owner.write_broker_files(lab, read_registry(lab))
    return read_registry(lab), tbs(lab / AUTHORITY)


def claim_of(lab: Path) -> object:
    return read_claim(lab / "claims" / "device-09.claim")


def _read_or_told(read: Callable[[Path], object], lab: Path) -> tuple[object, str]:
    try:
        return read(lab), ""
    except UsageError as error:
        return None, str(error)


IDENTITY = (ABOUT, SIGNING, TLS_KEY, CERTIFICATE, AUTHORITY)
FILES = [
    *((device_of, Path("..") / "device-07" / name) for name in (*IDENTITY, SEALING, STARTS, SEEN_CAMERAS)),
    *((coordinator_of, Path("coordinator") / name) for name in (*IDENTITY, SEALING)),
    *((operator_of, Path("operator") / name) for name in IDENTITY),
    *((desk_of, Path(name)) for name in (REGISTRY, AUTHORITY, owner.AUTHORITY_KEY)),
    (claim_of, Path("claims") / "device-09.claim"),
]


@pytest.mark.parametrize(("read", "file"), FILES, ids=lambda value: str(value) if isinstance(value, Path) else "")
@pytest.mark.parametrize("flips", [200, pytest.param(10**6, marks=pytest.mark.long)])
def test_a_bit_that_changed_is_one_line_or_changes_nothing(
    lab: Path, read: Callable[[Path], object], file: Path, flips: int
) -> None:
    """Keys are drawn anew each time, and the places by a seed; the long test takes every bit."""
    path, chance = lab / file, random.Random(f"18 {file}")
    whole, before = path.read_bytes(), read(lab)
    try:
        for place in chance.sample(range(8 * len(whole)), min(flips, 8 * len(whole))):
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << place % 8
            path.write_bytes(damaged)
            found, told = _read_or_told(read, lab)
            assert "\n" not in told
            assert told or found == before, f"bit {place % 8} of byte {place // 8}"
    finally:
        path.write_bytes(whole)


def test_files_without_a_digest_are_read(lab: Path, tmp_path: Path) -> None:
    """A lab and an identity in which nothing has been written since their edge-sdk was upgraded."""
    folder = Path(shutil.copytree(lab.parent / "device-07", tmp_path / "device-07"))
    before = identity_of(folder, Role.DEVICE)
    text = (folder / ABOUT).read_text(encoding="utf-8")
    (folder / ABOUT).write_text(text.replace(f'"{DIGEST}"', '"unknown"'), encoding="utf-8")
    with pytest.raises(UsageError, match="damaged or was edited"):
        open_identity(folder, Role.DEVICE)
    plain = text.rpartition(",")[0]
    (folder / ABOUT).write_text(f"{plain}}}", encoding="utf-8")
    (folder / STARTS).write_text("12\n")
    assert identity_of(folder, Role.DEVICE) == before


def test_a_registry_with_something_unknown_is_refused(lab: Path, tmp_path: Path) -> None:
    """Else a bit in a name of the file would hide what stands under it."""
    write_registry(tmp_path, read_registry(lab))
    assert read_registry(tmp_path) == read_registry(lab)
    plain = undigested_json((tmp_path / REGISTRY).read_bytes())
    (tmp_path / REGISTRY).write_bytes(digested_json({**plain, "more": 1}))
    with pytest.raises(UsageError, match="is damaged"):
        read_registry(tmp_path)


def test_a_damaged_certificate_in_a_registry_without_a_digest_is_one_line(lab: Path, tmp_path: Path) -> None:
    there = Path(shutil.copytree(lab, tmp_path / "lab"))
    plain = undigested_json((there / REGISTRY).read_bytes())
    (certificate,) = plain["revoked"]
    plain["revoked"] = [certificate.replace("M", "N")]
    key_files.write_whole(there / REGISTRY, json.dumps(plain).encode(), key_files.PRIVATE)
    with pytest.raises(UsageError, match=r"registry\.json is damaged: a revoked certificate cannot be read"):
        owner.write_broker_files(there, read_registry(there))


def test_a_certificate_of_which_the_library_warns_is_damaged(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of one whose serial number a bit made negative: the owner reads one line, not the library's warning, too."""
    warned = partial(warnings.warn, "a negative serial number", CryptographyDeprecationWarning, 1)
    load = load_pem_x509_certificate
    monkeypatch.setattr(x509, "load_pem_x509_certificate", lambda pem: (warned(), load(pem))[1])
    with pytest.raises(UsageError, match=r"ca\.pem is damaged; copy it back"):
        open_identity(lab.parent / "device-07", Role.DEVICE)


def test_a_damaged_key_is_named(lab: Path) -> None:
    folder = lab.parent / "device-07"
    certificate, authority = (folder / CERTIFICATE).read_bytes(), (folder / AUTHORITY).read_bytes()
    assert "tls.key beside it is damaged" in fault_of(certificate, b"x", "device-07", authority)

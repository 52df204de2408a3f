"""Keys, signatures, counters and identity folders; what is wrong with one is told in a line that shows no key."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import labs
import pytest

from coordinator.lab.broker_settings import CONF, one_connection_each, write_settings
from coordinator.serving.intake.signatures import LabSecurity, newer
from edge_sdk.device.link.security import SeenStarts
from edge_sdk.errors import InUse, RemoteProtocolError, UsageError
from edge_sdk.identity import key_files
from edge_sdk.identity.crypto_keys import is_genuine, new_signing_key, read_signing_key
from edge_sdk.identity.folder import CERTIFICATE, SIGNING, TLS_KEY, open_identity
from edge_sdk.identity.registry import EnrolledDevice, Registry, with_revoked
from edge_sdk.identity.signatures import FrameSigner, Role, key_id, verifier
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import Bye

BYE = Bye(federation="cameras", device="device-07", reason="done")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labs.made(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def folder(lab: Path, tmp_path: Path) -> Path:
    """The identity folder of device-07, to be damaged."""
    if not (lab.parent / "device-07").exists():
        labs.enrolled(lab, "device-07", "device-08")
    return Path(shutil.copytree(lab.parent / "device-07", tmp_path / "device-07"))


def test_a_signature_is_of_one_role_and_one_key() -> None:
    key = new_signing_key()
    signer = FrameSigner(key, Role.DEVICE, start=3)
    frame = codec.encode(BYE, signer.stamp(), signer.sign)
    known = {key_id(key.public): key.public}
    found = codec.decode(frame, verify=verifier(Role.DEVICE, known, is_genuine))
    assert (found.message, found.stamp.boot_epoch, found.stamp.sequence) == (BYE, 3, 1)
    assert codec.decode(codec.encode(BYE, signer.stamp(), signer.sign)).stamp.sequence == 2
    for role, keys in ((Role.COORDINATOR, known), (Role.OPERATOR, known), (Role.DEVICE, {})):
        with pytest.raises(RemoteProtocolError) as refused:
            codec.decode(frame, verify=verifier(role, keys, is_genuine))
        assert refused.value.kind == "signature"


def test_an_enrolled_device_cannot_speak_for_another_one(lab: Path, folder: Path) -> None:
    """Its own signature is genuine; the frame came on the topic of the other device, and names it."""
    security, other = LabSecurity(lab), "device-08"
    signer = open_identity(folder, Role.DEVICE).started()
    own = codec.encode(BYE, signer.stamp(), signer.sign)
    assert codec.decode(own, verify=security.of_device(BYE.device)).message == BYE
    for message in (BYE, replace(BYE, device=other)):
        frame = codec.encode(message, signer.stamp(), signer.sign)
        with pytest.raises(RemoteProtocolError) as refused:
            codec.decode(frame, verify=security.of_device(other))
        assert refused.value.kind == "signature"


def test_the_key_of_a_revoked_device_is_no_longer_listed() -> None:
    keys = {f"device-0{number}": bytes([number]) * 32 for number in range(3)}
    registry = Registry(
        devices={
            name: EnrolledDevice(public=key.hex(), certificate="", sealing=key.hex()) for name, key in keys.items()
        }
    )
    left = with_revoked(registry, "device-01")
    del keys["device-01"]
    assert dict(left.device_keys().values()) == keys
    assert left.revoked_devices == {"device-01"}
    assert "device-01" in left.sealing_keys()  # its refusal is encrypted for it


@pytest.mark.parametrize(
    ("epoch", "sequence", "key", "found"),
    [
        (3, 7, 1, False),
        (3, 8, 1, True),
        (3, 6, 1, False),
        (4, 0, 1, True),
        (2, 9, 1, False),
        (2, 9, 2, True),  # another key counts on its own
    ],
)
def test_a_frame_is_newer_if_it_was_made_later_with_the_same_key(
    epoch: int, sequence: int, key: int, *, found: bool
) -> None:
    last = codec.Stamp(3, 7, bytes([1]) * 16)
    assert newer(codec.Stamp(epoch, sequence, bytes([key]) * 16), last) is found
    assert newer(last, None)


def test_every_bit_of_a_signed_frame_counts() -> None:
    key = new_signing_key()
    signer = FrameSigner(key, Role.DEVICE, start=1)
    frame = codec.encode(BYE, signer.stamp(), signer.sign)
    verify = verifier(Role.DEVICE, {key_id(key.public): key.public}, is_genuine)
    for place in range(8 * len(frame)):
        altered = bytearray(frame)
        altered[place // 8] ^= 1 << place % 8
        with pytest.raises(RemoteProtocolError):
            codec.decode(bytes(altered), verify=verify)


def test_an_unsigned_frame_is_as_it_was() -> None:
    assert codec.encode(BYE)[4:8] == bytes([1, 0, 0, 0])
    assert codec.encode(BYE)[16:48] == bytes(32)


def test_a_key_survives_its_file(tmp_path: Path) -> None:
    key = new_signing_key()
    path = tmp_path / "signing.key"
    key_files.write_whole(path, key.to_pem(), key_files.PRIVATE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_signing_key(key_files.read_secret(path), path).public == key.public
    assert key.to_pem().decode() not in repr(key)


def test_counters_only_rise(tmp_path: Path) -> None:
    path = tmp_path / "starts"
    assert [key_files.raise_counter(path) for _ in range(3)] == [1, 2, 3]
    assert key_files.raise_counter(path, least=10) == 10
    assert key_files.raise_counter(path, least=5) == 11


def test_a_coordinator_from_before_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    SeenStarts(tmp_path / "seen").check(7)
    again = SeenStarts(tmp_path / "seen")
    again.check(7)
    with pytest.raises(RemoteProtocolError) as refused:
        again.check(6)
    assert refused.value.kind == "replayed"
    assert "edge-sdk lab restored" in str(refused.value)


def test_an_identity_opens(folder: Path) -> None:
    own = open_identity(folder, Role.DEVICE)
    assert own.name == "device-07"
    assert [own.started().start, own.started().start] == [1, 2]


def damage_other_device(folder: Path, lab: Path) -> None:
    shutil.copy(lab.parent / "device-08" / CERTIFICATE, folder / CERTIFICATE)


def damage_other_key(folder: Path, lab: Path) -> None:
    shutil.copy(lab.parent / "device-08" / TLS_KEY, folder / TLS_KEY)


def damage_other_signing(folder: Path, lab: Path) -> None:
    shutil.copy(lab.parent / "device-08" / SIGNING, folder / SIGNING)


def damage_signing(folder: Path, _lab: Path) -> None:
    (folder / SIGNING).write_bytes((folder / SIGNING).read_bytes()[:60])


def damage_open_to_others(folder: Path, _lab: Path) -> None:
    (folder / SIGNING).chmod(0o644)


def damage_open_tls(folder: Path, _lab: Path) -> None:
    (folder / TLS_KEY).chmod(0o640)


def damage_about(folder: Path, _lab: Path) -> None:
    (folder / "identity.json").write_text(json.dumps({"name": "device-07"}))


def damage_counter(folder: Path, _lab: Path) -> None:
    (folder / "starts").write_text("x")


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (damage_other_device, "device-08"),
        (damage_other_key, "tls.key"),
        (damage_signing, "signing.key"),
        (damage_other_signing, "signing.key does not belong to"),
        (damage_open_to_others, "chmod 600"),
        (damage_open_tls, "chmod 600"),
        (damage_about, "identity.json"),
        (damage_counter, "starts"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_line(folder: Path, lab: Path, damage: object, word: str) -> None:
    secret = (folder / SIGNING).read_text().splitlines()[1]
    damage(folder, lab)  # type: ignore[operator]
    with pytest.raises(UsageError) as told:
        open_identity(folder, Role.DEVICE).started()
    assert word in str(told.value)
    assert "\n" not in str(told.value)
    assert secret not in str(told.value)


@pytest.mark.parametrize("role", [Role.COORDINATOR, Role.OPERATOR])
def test_a_key_of_somebody_else_signs_nothing(lab: Path, tmp_path: Path, role: Role) -> None:
    folder = Path(shutil.copytree(lab / role.value, tmp_path / role.value))
    other = Role.OPERATOR if role is Role.COORDINATOR else Role.COORDINATOR
    shutil.copy(lab / other.value / SIGNING, folder / SIGNING)
    with pytest.raises(UsageError, match=r"signing\.key does not belong to .*identity\.json: restore both"):
        open_identity(folder, role)


@pytest.mark.parametrize(
    ("part", "role", "said"),
    [
        ("coordinator", Role.DEVICE, "of a coordinator, expected that of a device; edge-sdk enroll"),
        ("operator", Role.COORDINATOR, "of an operator, expected that of a coordinator; restore"),
        ("coordinator", Role.OPERATOR, "of a coordinator, expected that of an operator; give the folder operator"),
    ],
)
def test_an_identity_has_one_role(lab: Path, part: str, role: Role, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_identity(lab / part, role)


def test_a_folder_that_another_process_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_files, "LOCK_S", 0.01)
    with key_files.locked(tmp_path), pytest.raises(InUse) as found, key_files.locked(tmp_path):
        pass
    assert str(tmp_path) in str(found.value)
    assert "state folder" not in str(found.value)


def test_a_federation_has_one_coordinator_with_a_lab(lab: Path) -> None:
    alone = partial(LabSecurity(lab).serving_alone, one_connection=False)
    with alone("cameras"):
        with pytest.raises(UsageError, match="another coordinator of 'cameras' is running"):
            alone("cameras").__enter__()
        with alone("doors"):
            pass
    with alone("cameras"):
        pass


def test_a_broker_with_one_connection_for_each_certificate_has_one_coordinator(lab: Path) -> None:
    alone = LabSecurity(lab).serving_alone
    with alone("cameras", one_connection=True):
        with alone("doors", one_connection=False):
            pass
        with pytest.raises(UsageError, match="make a lab for each federation"):
            alone("doors", one_connection=True).__enter__()
    with alone("doors", one_connection=True):
        pass


def test_the_settings_say_whether_a_certificate_has_one_connection(tmp_path: Path) -> None:
    file = tmp_path / CONF
    assert not one_connection_each(tmp_path)
    write_settings(tmp_path, 8883, "")
    assert one_connection_each(tmp_path)
    file.write_text(file.read_text(encoding="utf-8").replace("clientid true", "clientid false"), encoding="utf-8")
    assert not one_connection_each(tmp_path)

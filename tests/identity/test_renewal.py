"""`edge-sdk lab renew`: new TLS keys for broker, coordinator, operator and desk, while a federation goes on."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
from pathlib import Path

import fleets
import labs
import pytest
from test_secure_lab import PATIENCE_S, lab_of

from coordinator.lab import broker_settings, owner
from coordinator.serving.intake.signatures import LabSecurity
from edge_sdk.device.link.security import DeviceSecurity
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.identity import key_files
from edge_sdk.identity.crypto_keys import new_signing_key
from edge_sdk.identity.folder import ABOUT, CERTIFICATE, SIGNING, TLS_KEY, Identity, open_identity
from edge_sdk.identity.registry import read_registry
from edge_sdk.identity.signatures import FrameSigner, Role, with_successor
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS
from edge_sdk.protocol.messages import CoordinatorStatus
from edge_sdk.transport.base import Connected, Disconnected
from edge_sdk.transport.mqtt.tls import TlsFiles
from edge_sdk.transport.mqtt.transport import MqttTransport


def test_tls_keys_change_and_signing_keys_do_not(tmp_path: Path) -> None:
    lab = labs.made(tmp_path)
    folders = [lab / name for name in broker_settings.STAFF]
    before = {path: path.read_bytes() for path in lab.rglob("*") if path.is_file()}
    owner.renew_lab(lab, ["new.local", "192.0.2.7"])
    changed = {path.relative_to(lab).as_posix() for path, content in before.items() if path.read_bytes() != content}
    pairs = {(folder / name).relative_to(lab).as_posix() for folder in folders for name in (TLS_KEY, CERTIFICATE)}
    assert changed == pairs | {"broker.key", "broker.pem", "revoked.pem", "lab.json", "registry.json"}
    assert (lab / "coordinator" / SIGNING).read_bytes() == before[lab / "coordinator" / SIGNING]
    for name, role in (("coordinator", Role.COORDINATOR), ("operator", Role.OPERATOR)):
        assert open_identity(lab / name, role).name == name
    assert len(read_registry(lab).revoked) == 3
    owner.renew_lab(lab)
    assert b"new.local" in (lab / "lab.json").read_bytes()


def killed_at(lab: Path, write: int) -> bool:
    """Renew in another process, which is killed as it replaces its n-th file; returns whether it came to that."""
    child = os.fork()
    if not child:
        left, replace = iter(range(write)), Path.replace

        def replaced(self: Path, target: Path) -> Path:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return replace(self, target)

        Path.replace = replaced  # type: ignore[method-assign]  # of this process
        owner.renew_lab(lab, ["new.local"])
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_renewal_that_is_killed_changes_all_files_or_none(tmp_path: Path) -> None:
    lab, write, outcomes = labs.made(tmp_path), 0, list[int]()
    copy = tmp_path / "copy"
    while True:
        shutil.copytree(lab, copy)
        killed = killed_at(copy, write)
        owner.finish_renewal(copy)
        for name, role in (("coordinator", Role.COORDINATOR), ("operator", Role.OPERATOR)):
            assert open_identity(copy / name, role).name == name
        pairs = [(copy / name / CERTIFICATE, copy / name / TLS_KEY) for name in broker_settings.STAFF]
        for certificate, key in [*pairs, (copy / "broker.pem", copy / "broker.key")]:
            ssl.create_default_context().load_cert_chain(certificate, key)  # it refuses those of two pairs
        names = [name.relative_to(lab) for name in lab.rglob("*") if name.suffix in {".key", ".pem"}]
        changed = [name for name in names if (copy / name).read_bytes() != (lab / name).read_bytes()]
        assert len(read_registry(copy).revoked) == (3 if changed else 0)
        assert (b"new.local" in (copy / "lab.json").read_bytes()) == bool(changed)
        outcomes.append(len(changed))
        shutil.rmtree(copy)
        if not killed:
            break
        write += 1
    assert outcomes == [0] + [9] * (len(outcomes) - 1)  # eight files of pairs, and the list of the revoked ones
    assert len(outcomes) > 9


def test_devices_follow_the_coordinators_new_signing_key(tmp_path: Path, pictures: Path) -> None:
    """Also a device that was away for two changes, and one that a thief of no key offers another one."""
    fleet = fleets.built(pictures, devices=2, rounds=1)
    folders = labs.enrolled(labs.made(tmp_path), *fleet.federation.roster)
    lab, before = tmp_path / "lab", [(folder / ABOUT).read_bytes() for folder in folders]
    assert fleets.Run(fleet, secured=tmp_path).finished().result.completed
    owner.rotate_signing_key(lab)
    owner.rotate_signing_key(lab)
    chain = open_identity(lab / "coordinator", Role.COORDINATOR).succession
    assert fleets.Run(fleet, secured=tmp_path).finished().result.refused_frames == {}
    now = open_identity(lab / "operator", Role.OPERATOR).coordinator_key
    assert all(open_identity(folder, Role.DEVICE).coordinator_key == now for folder in folders)
    key_files.write_whole(folders[0] / ABOUT, before[0])
    old = open_identity(folders[0], Role.DEVICE)
    assert old.believing(chain[:-1] + bytes([chain[-1] ^ 1])).coordinator_key not in {now, old.coordinator_key}
    assert old.believing(with_successor(b"", new_signing_key(), new_signing_key().public)) is None
    assert old.believing(chain[128:]) is None  # it does not know the key that signed this
    assert old.believing(chain).coordinator_key == now


def test_a_status_that_the_new_key_did_not_sign_is_not_followed(tmp_path: Path) -> None:
    (folder,) = labs.enrolled(lab := labs.made(tmp_path), "a")
    before, (old, card) = (folder / ABOUT).read_bytes(), open_both(lab, folder)
    owner.rotate_signing_key(lab)
    new = open_identity(lab / "coordinator", Role.COORDINATOR)
    status = CoordinatorStatus(federation="f", state="ready", epoch=1, succession=new.succession)
    device, forger = DeviceSecurity(card, "f"), FrameSigner(new_signing_key(), Role.COORDINATOR, 9)
    for signer in (forger, FrameSigner(new.key, Role.COORDINATOR, 0)):
        device._seen.newest = 1
        with pytest.raises(RemoteProtocolError):
            device.opened(codec.encode(status, signer.stamp(), signer.sign), CONTROL_LIMITS)
    assert (folder / ABOUT).read_bytes() == before
    for key in (old.key, new.key):  # both are believed until the new one was used
        signer = FrameSigner(key, Role.COORDINATOR, 9)
        assert device.opened(codec.encode(status, signer.stamp(), signer.sign), CONTROL_LIMITS)
    signer = FrameSigner(old.key, Role.COORDINATOR, 9)
    with pytest.raises(RemoteProtocolError, match="unknown key"):
        device.opened(codec.encode(status, signer.stamp(), signer.sign), CONTROL_LIMITS)


def open_both(lab: Path, folder: Path) -> tuple[Identity, Identity]:
    return open_identity(lab / "coordinator", Role.COORDINATOR), open_identity(folder, Role.DEVICE)


def test_a_running_coordinator_keeps_its_key(tmp_path: Path) -> None:
    lab = labs.made(tmp_path)
    with LabSecurity(lab).serving_alone("f", one_connection=True):
        assert "its coordinator is running; stop it" in labs.edge_sdk(tmp_path, "lab", "rotate", "lab", code=2)
    assert "devices follow automatically" in labs.edge_sdk(tmp_path, "lab", "rotate", "lab")


def test_a_host_that_is_none_changes_nothing(tmp_path: Path) -> None:
    lab = labs.made(tmp_path)
    before = {path: path.read_bytes() for path in lab.rglob("*") if path.is_file()}
    assert "is neither a name nor an address" in labs.edge_sdk(tmp_path, "lab", "renew", "lab", "--host", "a b", code=2)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.broker
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_federation_goes_on_over_a_renewal_and_old_certificates_are_out(tmp_path: Path, pictures: Path) -> None:
    with lab_of(tmp_path, pictures, rounds=100_000, quorum=1) as run:
        run.start_all()
        first = run.devices[0]
        run.until(lambda: "round 2," in run.said(first), "round 2")
        lab = tmp_path / "lab"
        stolen = {name: (lab / "operator" / name).read_bytes() for name in (TLS_KEY, CERTIFICATE)}
        for name, content in stolen.items():
            key_files.write_whole(tmp_path / "stolen" / name, content, key_files.PRIVATE)
        said = labs.edge_sdk(tmp_path, "lab", "renew", "lab")
        assert "connections last" in said
        rounds = run.said(first).count("round")
        run.until(lambda: run.said(first).count("round") > rounds + 2, "rounds after the renewal")
        assert all(process.poll() is None for process in run.running.values())
        operator = ("--identity", "lab/operator", "--federation", "tiny", "--timeout", "60")
        assert first in labs.edge_sdk(tmp_path, "devices", *operator)
        files = TlsFiles(lab / "ca.pem", tmp_path / "stolen" / CERTIFICATE, tmp_path / "stolen" / TLS_KEY)
        transport = MqttTransport(owner.local_broker(lab), "operator", tls=files, clean=True, seed=1)
        transport.connect(("edge/#",))
        found = [transport.poll(0.5) for _ in range(6)]
        transport.close()
        assert not any(isinstance(event, Connected) for event in found)
        assert any(isinstance(event, Disconnected) for event in found)
        assert "stops" in labs.edge_sdk(tmp_path, "drain", *operator)
        assert run.running.pop("coordinator").wait(PATIENCE_S) == 0

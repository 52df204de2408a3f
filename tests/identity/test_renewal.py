"""`edge-sdk lab renew`: new TLS keys for broker, coordinator, operator and desk, while a federation goes on."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
from pathlib import Path

import labs
import pytest
from test_secure_lab import PATIENCE_S, lab_of

from coordinator.lab import broker_settings, owner
from edge_sdk.identity import key_files
from edge_sdk.identity.folder import CERTIFICATE, SIGNING, TLS_KEY, open_identity
from edge_sdk.identity.registry import read_registry
from edge_sdk.identity.signatures import Role
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

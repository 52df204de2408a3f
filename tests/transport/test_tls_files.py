"""CA, certificate and key files: what is wrong with one is said in a line, before anything is sent."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import Authority

from edge_sdk.errors import UsageError
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles, tls_context
from edge_sdk.transport.mqtt.transport import MqttTransport
from edge_sdk.transport.mqtt.url import parse_broker_url

LAB = parse_broker_url("mqtts://lab")


@pytest.fixture
def bad(tmp_path: Path, lab: Authority) -> Callable[[str], Path]:
    """A file that something is wrong with."""

    def make(fault: str) -> Path:
        path = tmp_path / f"{fault}.pem"
        if fault == "folder":
            path.mkdir()
        elif fault == "text":
            path.write_text("härmlos", encoding="utf-8")
        elif fault == "garbled":
            path.write_text(lab.ca.read_text().replace("M", "?"))
        elif fault == "garbled key":
            key = lab.issue(name="x").key.read_text().splitlines()
            path.write_text("\n".join([key[0], key[1][::-1], *key[2:]]))
        return path

    return make


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("missing", "CA certificate {} cannot be read: No such file"),
        ("folder", "CA certificate {} cannot be read: Is a dir"),
        ("text", "{} holds no CA certificate"),
        ("garbled", "CA certificate in {} is damaged"),
    ],
)
def test_a_bad_authority_file(bad: Callable[[str], Path], fault: str, text: str) -> None:
    path = bad(fault)
    with pytest.raises(UsageError, match=re.escape(text.format(path))):
        tls_context(TlsFiles(ca=path), LAB)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("missing", "certificate {} cannot be read"),
        ("text", "{} holds no certificate"),
        ("garbled", "certificate in {} is damaged"),
    ],
)
def test_a_bad_certificate_file(bad: Callable[[str], Path], lab: Authority, fault: str, text: str) -> None:
    path = bad(fault)
    with pytest.raises(UsageError, match=re.escape(text.format(path))):
        tls_context(TlsFiles(certificate=path, key=lab.issue(name="a").key), LAB)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("missing", "private key {} cannot be read"),
        ("text", "{} holds no private key"),
        ("garbled key", "private key in {} is damaged"),
    ],
)
def test_a_bad_key_file(bad: Callable[[str], Path], lab: Authority, fault: str, text: str) -> None:
    path = bad(fault)
    with pytest.raises(UsageError, match=re.escape(text.format(path))):
        tls_context(TlsFiles(certificate=lab.issue(name="a").certificate, key=path), LAB)


def test_a_key_of_another_certificate(lab: Authority) -> None:
    one, two = lab.issue(name="one"), lab.issue(name="two")
    with pytest.raises(UsageError, match=f"in {two.key} does not belong to .* in {one.certificate};"):
        tls_context(TlsFiles(certificate=one.certificate, key=two.key), LAB)


def test_a_key_without_certificate_and_a_certificate_without_key(lab: Authority) -> None:
    pair = lab.issue(name="a")
    with pytest.raises(UsageError, match=r"private key .*; add --cert"):
        tls_context(TlsFiles(key=pair.key), LAB)
    with pytest.raises(UsageError, match=f"{pair.certificate} holds no private key"):
        tls_context(TlsFiles(certificate=pair.certificate), LAB)


def test_one_file_may_hold_both(lab: Authority, tmp_path: Path) -> None:
    pair, both = lab.issue(name="a"), tmp_path / "both.pem"
    both.write_text(pair.key.read_text() + pair.certificate.read_text())
    assert tls_context(TlsFiles(certificate=str(both)), LAB) is not None


def test_a_key_with_a_pass_phrase_asks_nobody(lab: Authority, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    pair, locked = lab.issue(name="a"), tmp_path / "locked.key"
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(UsageError, match=r"pass phrase.*openssl pkey -in"):
        tls_context(TlsFiles(certificate=pair.certificate, key=locked), LAB)


def test_files_for_a_broker_without_tls(lab: Authority) -> None:
    with pytest.raises(UsageError, match="write mqtts://lab:1883"):
        MqttTransport("mqtt://lab", "a", tls=lab.files(), seed=1)
    assert tls_context(NO_FILES, parse_broker_url("mqtt://lab")) is None


def test_what_is_always_on(lab: Authority) -> None:
    for files in (NO_FILES, lab.files()):
        context = tls_context(files, LAB)
        assert context is not None
        assert context.check_hostname
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    "command",
    [
        ["device", "--federation", "f", "--app", "my_app:make"],
        ["coordinator", "federation.toml"],
        ["doctor"],
    ],
)
def test_on_the_command_line_a_bad_file_is_one_line_and_exit_code_2(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(
        "import numpy as np, edge_sdk as e\n"
        "def make():\n"
        "    part = e.Samples(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]))\n"
        "    return e.App(model=e.NumpyModel(2, (1, 1, 2), seed=1), data=e.LocalData(train=part))\n"
    )
    (tmp_path / "federation.toml").write_text(
        '[federation]\nname = "f"\nmethod = "local"\nclasses = 2\nrounds = 1\ndevices = 1\n'
    )
    given = ["--broker", "mqtts://127.0.0.1:9", "--ca", "nowhere.pem"]
    line = [sys.executable, "-m", "edge_sdk.cli", *command, *given]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert re.match(r"edge-sdk: .*nowhere\.pem.*no such file", done.stderr.lower())
    assert done.stderr.count("\n") == 1

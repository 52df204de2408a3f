"""Certificates that end soon: said long before, on both sides, and renewed while the federation goes on."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
import time
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from certificates import NOW, Authority, mosquitto

from edge_sdk.transport.base import Connected, Disconnected, LinkNotice
from edge_sdk.transport.mqtt.tls import DAY_S, CertificateWatch, TlsFiles, ends_s, file_ends_s
from edge_sdk.transport.mqtt.transport import MqttTransport


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.mark.parametrize("days", [-3, 1, 20_000])
def test_the_end_is_read_from_the_certificate(authority: Authority, days: int) -> None:
    """After 2049 certificates write their dates in another form."""
    pair = authority.issue("localhost", valid_from=-5, valid_until=days)
    wanted = int(NOW.timestamp()) + days * 86_400
    assert file_ends_s(pair.certificate) == pytest.approx(wanted, abs=1.0)


def test_a_chain_ends_with_its_first_certificate_to_end(authority: Authority, tmp_path: Path) -> None:
    pairs = [authority.issue("a", valid_until=days) for days in (9, 4, 7)]
    chain = tmp_path / "chain.pem"
    chain.write_bytes(b"".join(pair.certificate.read_bytes() for pair in pairs))
    assert file_ends_s(chain) == pytest.approx(NOW.timestamp() + 4 * DAY_S, abs=1.0)


def test_what_is_no_certificate_ends_nothing(authority: Authority, tmp_path: Path) -> None:
    whole = ssl.PEM_cert_to_DER_cert(authority.issue("a").certificate.read_text())
    for length in range(0, len(whole), 7):
        with suppress(ValueError):
            ends_s(whole[:length])
    (tmp_path / "x.pem").write_text("-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n")
    assert file_ends_s(tmp_path / "x.pem") is None
    assert file_ends_s(tmp_path / "none.pem") is None


def test_each_threshold_is_said_once(authority: Authority) -> None:
    pair = authority.issue("dev", valid_until=40)
    wall_s, said = NOW.timestamp(), list[tuple[int, str]]()
    watch = CertificateWatch(TlsFiles(None, pair.certificate, pair.key), lambda: wall_s)
    for hour in range(24 * 42):
        wall_s = NOW.timestamp() + hour * 3600.0 + 1.0
        said += [(hour // 24, line) for line in watch.lines(hour * 3600.0, None)]
    assert [day for day, _ in said] == [10, 26, 33, 37, 38, 39, 40]
    assert said[0][1].startswith(
        f"the certificate in {pair.certificate} ends in 30 days, at {(NOW + timedelta(days=40)):%Y-%m-%d}"
    )
    assert "has ended at" in said[-1][1]
    assert watch.first_end_s == file_ends_s(pair.certificate)
    renewed = authority.issue("dev", valid_until=100)
    shutil.copy(renewed.certificate, pair.certificate)
    assert list(watch.lines(1e9, None)) == []


@pytest.mark.broker
def test_broker_and_files_are_renewed_while_the_link_lives(authority: Authority, tmp_path: Path) -> None:
    """mosquitto reads its certificate again at SIGHUP; a client reads its files at its next connection."""
    served, own = authority.issue("127.0.0.1", valid_until=5), authority.issue(name="dev-a", valid_until=2)
    settings = (
        f"certfile {served.certificate}\nkeyfile {served.key}\ncafile {authority.ca}\nrequire_certificate true\n"
        f"allow_anonymous true\npid_file {tmp_path / 'pid'}\n"
    )
    notes, links, breaks = list[str](), 0, 0
    with mosquitto(tmp_path, settings) as port:
        transport = MqttTransport(f"mqtts://127.0.0.1:{port}", "dev-a", tls=authority.files(own), seed=1)

        def look() -> bool:
            nonlocal links, breaks
            event = transport.poll(0.1)
            links += isinstance(event, Connected)
            breaks += isinstance(event, Disconnected)
            if isinstance(event, LinkNotice):
                notes.append(event.text)
            return len(notes) >= 2 and links >= 1

        with closing(transport):
            transport.connect(("a/#",))
            for _ in range(200):
                if look():
                    break
            assert notes[0].startswith("the broker's certificate ends in 5 days")
            assert notes[1].startswith(f"the certificate in {own.certificate} ends in 2 days")
            for pair, name in ((served, ["127.0.0.1"]), (own, [])):
                new = authority.issue(*name, name=None if name else "dev-a", valid_until=90)
                shutil.copy(new.certificate, pair.certificate)
                shutil.copy(new.key, pair.key)
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGHUP)
            time.sleep(0.5)
            look()
            assert breaks == 0
            second = MqttTransport(f"mqtts://127.0.0.1:{port}", "dev-b", tls=authority.files(own), seed=2)
            with closing(second):
                second.connect(("a/#",))
                found = [second.poll(0.2) for _ in range(15)]
            assert any(isinstance(event, Connected) for event in found)
            assert not any(isinstance(event, LinkNotice) for event in found)


@pytest.mark.broker
def test_two_authorities_are_trusted_while_one_replaces_the_other(authority: Authority, tmp_path: Path) -> None:
    """Both certificates in the file of --ca: the broker's may be of either, and so may the client's."""
    later = Authority(tmp_path / "later")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.ca.read_bytes() + later.ca.read_bytes())
    for of_broker, of_client in ((authority, authority), (authority, later), (later, authority), (later, later)):
        served, own = of_broker.issue("127.0.0.1"), of_client.issue(name="dev-a")
        settings = f"certfile {served.certificate}\nkeyfile {served.key}\ncafile {both}\nrequire_certificate true\n"
        with mosquitto(tmp_path, settings + "allow_anonymous true\n") as port:
            files = TlsFiles(both, own.certificate, own.key)
            with closing(MqttTransport(f"mqtts://127.0.0.1:{port}", "dev-a", tls=files, seed=1)) as transport:
                transport.connect(("a/#",))
                assert isinstance(transport.poll(10.0), Connected)

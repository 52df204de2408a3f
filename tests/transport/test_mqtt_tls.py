"""TLS, with real certificates: what is refused, on which side, in what words, and how often it is tried again."""

from __future__ import annotations

import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from certificates import Authority, Pair, mosquitto
from links import cut
from scripted import ScriptedBroker
from suite import LinkFactory, TransportSuite, frames, until

from edge_sdk.transport.base import Connected, Disconnected, Transport
from edge_sdk.transport.mqtt import retry, tls
from edge_sdk.transport.mqtt.hidden_limits import HiddenLimits
from edge_sdk.transport.mqtt.reasons import DisconnectReason
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles
from edge_sdk.transport.mqtt.transport import MqttTransport

# --- two brokers that speak TLS


Serve = Callable[..., AbstractContextManager[str]]


@contextmanager
def _scripted(
    _folder: Path, pair: Pair, clients: Path | None = None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[str]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.maximum_version = newest
    if clients is not None:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    with ScriptedBroker({}, context) as fake:
        yield fake.url.replace("mqtt:", "mqtts:")


@contextmanager
def _mosquitto(
    folder: Path, pair: Pair, clients: Path | None = None, newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[str]:
    del newest  # mosquitto sets only the oldest
    settings = f"certfile {pair.certificate}\nkeyfile {pair.key}\nallow_anonymous true\n"
    if clients is not None:
        settings += f"cafile {clients}\nrequire_certificate true\n"
    with mosquitto(folder, settings) as port:
        yield f"mqtts://127.0.0.1:{port}"


@pytest.fixture(params=["scripted", "mosquitto"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Serve:
    """A way to start a broker with a certificate, and the authority that its clients must be of."""
    start = {"scripted": _scripted, "mosquitto": _mosquitto}[request.param]
    return lambda pair, **options: start(tmp_path, pair, **options)


@pytest.fixture
def strict(serve: Serve, lab: Authority) -> Serve:
    """A way to start a broker that demands a certificate of its authority."""
    return partial(serve, lab.issue("127.0.0.1"), clients=lab.ca)


@pytest.fixture(scope="module")
def strangers(lab: Authority, rogue: Authority) -> dict[str, TlsFiles]:
    """Clients that trust the broker, and that it should not let in."""
    return {
        "nobody": lab.files(),
        "rogue": replace(rogue.files(rogue.issue(name="dev-a")), ca=lab.ca),
        "expired": lab.files(lab.issue(name="dev-a", valid_from=-2, valid_until=-1)),
        "early": lab.files(lab.issue(name="dev-a", valid_from=1, valid_until=2)),
    }


def told(transport: MqttTransport) -> Disconnected:
    event = until(transport, Disconnected, 5.0)
    assert isinstance(event, Disconnected)
    return event


ATTEMPTS = 10


@contextmanager
def told_by(url: str, files: TlsFiles = NO_FILES) -> Iterator[Disconnected]:
    """What a client of a broker hears first."""
    transport = MqttTransport(url, "a", tls=files, seed=1)
    with closing(transport):
        transport.connect(["t/a"])
        yield told(transport)


@pytest.mark.broker
def test_both_sides_show_certificates(serve: Serve, lab: Authority) -> None:
    with serve(lab.issue("127.0.0.1"), clients=lab.ca) as url:
        transport = MqttTransport(url, "a", tls=lab.files(lab.issue(name="dev-a")), seed=1)
        with closing(transport):
            transport.connect(["t/a"])
            assert transport.poll(5.0) == Connected()


@pytest.mark.broker
@pytest.mark.parametrize(
    ("host", "days", "expected"),
    [
        ("127.0.0.2", (-1, 1), Disconnected("is for another host", final=True)),
        ("127.0.0.1", (-2, -1), Disconnected("has expired, it is {} here: renew it")),
        ("127.0.0.1", (1, 2), Disconnected("is not valid yet, it is {} here: set this machine's clock")),
    ],
)
def test_a_certificate_of_the_broker_that_is_wrong(
    serve: Serve, lab: Authority, host: str, days: tuple[int, int], expected: Disconnected
) -> None:
    with serve(lab.issue(host, valid_from=days[0], valid_until=days[1])) as url, told_by(url, lab.files()) as event:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        assert f"certificate of {url[8:]} " in event.reason
        assert expected.reason.format(today) in event.reason
        assert event.final is expected.final


@pytest.mark.broker
def test_a_broker_of_another_authority(serve: Serve, lab: Authority, rogue: Authority) -> None:
    with serve(rogue.issue("127.0.0.1")) as url:
        for files in (lab.files(), NO_FILES):
            with told_by(url, files) as event:
                assert event.reason.startswith(f"the TLS certificate of {url[8:]} is not trusted: ")
                assert "--ca FILE" in event.reason
                assert event.final


@pytest.mark.broker
@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("who", "expected"),
    [
        ("nobody", Disconnected("demands a certificate of this client", final=True)),
        ("rogue", Disconnected("the authority of our certificate", final=True)),
        ("expired", Disconnected("our certificate has expired: renew it")),
        ("early", Disconnected("our certificate is not valid")),
    ],
)
def test_a_certificate_of_ours_that_is_refused(
    strict: Serve, strangers: dict[str, TlsFiles], newest: ssl.TLSVersion, who: str, expected: Disconnected
) -> None:
    """In TLS 1.3 the broker refuses after the handshake: where its reset overtakes its reason, another try hears it."""
    with strict(newest=newest) as url:
        for _ in range(ATTEMPTS):
            with told_by(url, strangers[who]) as event:
                assert event.reason.startswith(url[8:])
            if expected.reason in event.reason:
                break
        assert expected.reason in event.reason
        assert event.final is expected.final


@pytest.mark.broker
def test_a_client_without_tls_at_a_port_with(serve: Serve, lab: Authority) -> None:
    with serve(lab.issue("127.0.0.1")) as url, told_by(url.replace("mqtts:", "mqtt:")) as event:
        assert event.reason.endswith(f"if it speaks TLS, write {url})")


# --- no storm, and what heals


def attempts(pair: Pair, files: TlsFiles, within_s: float) -> int:
    """How often a client comes back to a broker with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with ScriptedBroker({}, context) as fake:
        transport = MqttTransport(fake.url.replace("mqtt:", "mqtts:"), "a", tls=files, seed=1)
        transport.connect([])
        told(transport)
        assert transport.poll(within_s) is None
        transport.close()
        return fake.connections


def test_what_time_cannot_heal_is_tried_once_and_a_wrong_date_after_half_a_minute(
    lab: Authority, rogue: Authority
) -> None:
    early = lab.issue("127.0.0.1", valid_from=1, valid_until=2)
    assert attempts(rogue.issue("127.0.0.1"), lab.files(), 0.6) == 1
    assert attempts(lab.issue("127.0.0.2"), lab.files(), 0.6) == 1
    assert attempts(early, lab.files(), 0.6) == 1
    later = retry.ConnectionResult(DisconnectReason("expired", slow=True))
    assert (retry.Retry(1, HiddenLimits()).decide(later).pause_s or 0.0) >= 30.0


def test_certificates_are_read_again_for_each_connection(
    lab: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_SLOW_PAUSE_S", (0.05, 0.1))
    ours = Pair(tmp_path / "device.pem", tmp_path / "device.key")

    def install(pair: Pair) -> None:
        shutil.copy(pair.certificate, ours.certificate), shutil.copy(pair.key, ours.key)

    install(lab.issue(name="dev-a", valid_from=-2, valid_until=-1))
    with _scripted(tmp_path, lab.issue("127.0.0.1"), clients=lab.ca) as url:
        monkeypatch.chdir(tmp_path)
        files = lab.files(Pair(Path(ours.certificate.name), Path(ours.key.name)))
        transport = MqttTransport(url, "dev-a", tls=files, seed=1)
        monkeypatch.chdir(tmp_path.parent)
        transport.connect([])
        assert "has expired" in told(transport).reason
        ours.key.unlink()  # in the middle of being replaced
        assert f"key {ours.key} cannot" in told(transport).reason
        install(lab.issue(name="dev-a"))
        until(transport, Connected)
        transport.close()


def test_a_peer_that_stays_silent_does_not_hold_us(lab: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        transport = MqttTransport(f"mqtts://127.0.0.1:{deaf.getsockname()[1]}", "a", tls=lab.files(), seed=1)
        transport.connect([])
        assert told(transport).reason.startswith("no answer from 127.0.0.1")
        transport.close()


def test_the_name_of_the_broker_is_sent(lab: Authority) -> None:
    names: list[str | None] = []
    pair = lab.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with ScriptedBroker({}, context) as fake:
        transport = MqttTransport(
            fake.url.replace("mqtt://127.0.0.1", "mqtts://localhost"), "a", tls=lab.files(), seed=1
        )
        transport.connect([])
        until(transport, Connected)
        transport.close()
    assert names == ["localhost"]


# --- the whole contract


@pytest.mark.broker
class TestMutualTls(TransportSuite):
    """Over mosquitto, both sides with certificates."""

    @pytest.fixture
    def link(self, tmp_path: Path, lab: Authority) -> Iterator[LinkFactory]:
        opened: list[MqttTransport] = []
        seeds = count()
        ours = lab.issue(name="all")
        with _mosquitto(tmp_path, lab.issue("127.0.0.1"), clients=lab.ca) as url:

            def make(client_id: str) -> MqttTransport:
                opened.append(MqttTransport(url, client_id, tls=lab.files(ours), seed=next(seeds)))
                return opened[-1]

            yield make
            for transport in opened:
                transport.close()

    def sever(self, transport: Transport) -> None:
        assert isinstance(transport, MqttTransport)
        cut(transport)

    def test_a_large_frame_that_arrives_in_many_records(self, link: LinkFactory) -> None:
        sender, receiver = self.up(link, "a"), self.up(link, "b", "t/b")
        sender.send("t/b", bytes(range(200)) * 1500)
        assert frames(receiver, 1) == [("t/b", bytes(range(200)) * 1500)]

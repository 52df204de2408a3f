"""The embedded broker: it comes up, says who it is, serves a fleet, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from suite import frames, until

from coordinator.broker import embedded
from coordinator.broker.embedded import EmbeddedBroker, serve
from edge_sdk.errors import MissingExtra, TransportError, UsageError
from edge_sdk.transport.base import Connected, Incoming, Will
from edge_sdk.transport.mqtt.transport import MqttTransport

pytestmark = pytest.mark.broker


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def ends(port: int, within_s: float = 5.0) -> bool:
    end_s = time.monotonic() + within_s
    while listens(port) and time.monotonic() < end_s:
        time.sleep(0.02)
    return not listens(port)


def test_it_says_who_and_where_it_is_and_stops(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_STOP_S", 60.0)
    assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
    assert broker.version[0].isdigit()
    assert listens(broker.port)
    os.kill(broker.pid, 0)
    process = broker._process
    broker.stop()
    assert process is not None
    assert process.returncode == 0  # nothing had to kill it
    assert not listens(broker.port)
    with pytest.raises(TransportError, match="not running"):
        _ = broker.pid
    broker.stop()


def test_it_listens_on_loopback_only(broker: EmbeddedBroker) -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.2", broker.port))  # would be taken if the broker listened everywhere


def test_a_port_in_use_is_the_users_error(broker: EmbeddedBroker) -> None:
    with pytest.raises(UsageError, match=f"port {broker.port} of 127.0.0.1 cannot be used"):
        EmbeddedBroker("amqtt", broker.port).start()


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_is_none(port: int) -> None:
    with pytest.raises(UsageError, match="choose another with --port"):
        EmbeddedBroker("amqtt", port).start()


def test_an_unknown_kind() -> None:
    with pytest.raises(UsageError, match="auto, amqtt, mosquitto"):
        EmbeddedBroker("hivemq")  # type: ignore[arg-type]


def test_auto_takes_amqtt_without_mosquitto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert EmbeddedBroker().kind == "amqtt"
    with pytest.raises(UsageError, match=r"mosquitto .*on PATH"):
        EmbeddedBroker("mosquitto")


def test_neither_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'edge-sdk\[coordinator\]'"):
        EmbeddedBroker()


def test_a_broker_that_does_not_come_up(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [sys.executable, "-c", "raise SystemExit('no room')"]
    monkeypatch.setattr(EmbeddedBroker, "_command", lambda *_: broken)
    with pytest.raises(TransportError, match=r"127\.0\.0\.1:\d+: no room"):
        EmbeddedBroker("amqtt").start()


@pytest.mark.processes
def test_it_dies_with_its_parent_and_leaves_no_files(broker: EmbeddedBroker, tmp_path: Path) -> None:
    script = f"from coordinator.broker.embedded import EmbeddedBroker as B; b = B({broker.kind!r}).start(); print(b.port, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert listens(port)
        parent.kill()
    assert ends(port)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_serving_in_the_foreground_until_interrupted(broker: EmbeddedBroker, free_port: int) -> None:
    script = f"from coordinator.broker.embedded import serve; serve({free_port}, {broker.kind!r})"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith(f"{broker.kind} {broker.version} at mqtt://127.0.0.1:{free_port} ")
        assert listens(free_port)
        server.send_signal(signal.SIGINT)
        assert server.wait(5) == 0
    assert not listens(free_port)


def test_a_foreground_broker_that_ends_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedBroker, "wait", lambda _: 7)
    with pytest.raises(TransportError, match=r"amqtt.*exit code 7"):
        serve(0, "amqtt")


def test_a_fleet_joins_at_once_and_every_device_is_served(broker: EmbeddedBroker) -> None:
    """amqtt as it comes loses clients that connect while others subscribe."""
    names = [f"d{n}" for n in range(60)]
    with ExitStack() as leaving:
        hub = MqttTransport(broker.url, "hub", seed=0)
        leaving.callback(hub.close)
        hub.connect(["f/st/+"])
        until(hub, Connected)
        fleet = {name: MqttTransport(broker.url, name, seed=n) for n, name in enumerate(names)}
        for name, device in fleet.items():
            leaving.callback(device.close)
            device.connect([f"f/dn/{name}/+", "f/coord"], Will(f"f/st/{name}", b"lost"))
        for name, device in fleet.items():
            until(device, Connected, timeout_s=8.0)
            device.send(f"f/st/{name}", b"here", retain=True)
        assert sorted(frames(hub, 60)) == sorted((f"f/st/{name}", b"here") for name in names)
        for name in names:
            hub.send(f"f/dn/{name}/task", name.encode())
        for name, device in fleet.items():
            assert frames(device, 1) == [(f"f/dn/{name}/task", name.encode())]


def test_connecting_brings_no_retained_frames_of_other_clients(broker: EmbeddedBroker) -> None:
    """amqtt as it comes sends a connecting client what all others have subscribed to."""
    hub = MqttTransport(broker.url, "hub", seed=0)
    with closing(hub):
        hub.connect(["f/st/+"])
        until(hub, Connected)
        hub.send("f/st/a", b"here", retain=True)
        until(hub, Incoming)
        with closing(socket.create_connection(("127.0.0.1", broker.port))) as raw:
            raw.settimeout(0.3)
            raw.sendall(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01x")
            assert raw.recv(100) == b"\x20\x02\x00\x00"
            with pytest.raises(TimeoutError):
                raw.recv(100)


def test_mqtt_5_is_refused_by_amqtt_in_words() -> None:
    """amqtt as it comes falls silent when a CONNECT of MQTT 5 has properties."""
    with (
        EmbeddedBroker("amqtt") as broker,
        closing(socket.create_connection(("127.0.0.1", broker.port), timeout=3)) as raw,
    ):
        raw.sendall(b"\x10\x13\x00\x04MQTT\x05\x02\x00\x3c\x05\x11\x00\x00\x0e\x10\x00\x01x")
        assert raw.recv(100) == b"\x20\x02\x00\x01"
        assert raw.recv(100) == b""


@pytest.mark.parametrize("size", [3, 300, 20_000])
def test_any_length_of_connect_is_understood(broker: EmbeddedBroker, size: int) -> None:
    transport = MqttTransport(broker.url, "me", seed=0)
    with closing(transport):
        transport.connect(["f/x"], Will("f/st/me", bytes(size)))
        assert until(transport, Connected, timeout_s=3.0) == Connected()


def test_other_machines_are_told_what_to_type_and_what_is_missing(
    free_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reached = []

    def wait(broker: EmbeddedBroker) -> int:
        address = embedded.own_address()
        with closing(socket.create_connection((address, broker.port), timeout=5)):
            reached.append(f"mqtt://{address}:{broker.port}")
        raise KeyboardInterrupt

    monkeypatch.setattr(EmbeddedBroker, "wait", wait)
    serve(free_port, "amqtt", "0.0.0.0", everybody=True)  # what is tested
    said = capsys.readouterr().out
    (url,) = reached
    assert f"edge-sdk device --broker {url}" in said
    assert "no password" in said
    assert "tls.md" in said


def test_a_broker_that_asks_for_no_password_is_not_opened_to_others_by_mistake(free_port: int) -> None:
    with pytest.raises(UsageError, match="--open"):
        serve(free_port, "amqtt", "0.0.0.0")  # what is tested


def test_a_broker_for_this_machine_alone_says_nothing_of_others(
    free_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(EmbeddedBroker, "wait", lambda _: 7)
    with pytest.raises(TransportError):
        serve(free_port, "amqtt")
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("bind", ["192.0.2.7", "no such address"])
def test_an_address_that_this_machine_lacks_is_the_users_error(bind: str) -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1"):
        EmbeddedBroker("amqtt", bind=bind).start()

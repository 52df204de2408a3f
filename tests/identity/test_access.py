"""A lab's broker: what each device can publish and hear, judged by what is delivered, not by what is acknowledged."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import labs
import numpy as np
import paho.mqtt.client as mqtt
import pytest

import edge_sdk
from coordinator.lab import broker_settings, owner
from coordinator.lab.retained import clear_retained
from edge_sdk.errors import EdgeError
from edge_sdk.identity.claims import read_claim
from edge_sdk.protocol import topics

pytestmark = pytest.mark.broker

FORMS = (
    "fl/v1/f/up/{shard}/{own}/hello",
    "fl/v1/f/up/{shard}/{own}/upd",
    "fl/v1/f/st/{own}",
    "fl/v1/f/up/{other_shard}/{other}/hello",
    "fl/v1/f/up/{other_shard}/{other}/upd",
    "fl/v1/f/up/{shard}/{own}-/hello",
    "fl/v1/f/st/{other}",
    "fl/v1/f/dn/{other}/task",
    "fl/v1/f/dn/{own}/task",
    "fl/v1/f/coord",
    "fl/v1/f/ctl",
    "fl/v1/f/ans/operator",
    "fl/claim/claim.{other}.1",
    "$SYS/broker/{other}",
)
MAY_PUBLISH = FORMS[:3]
FILTERS = (
    "fl/v1/f/dn/{own}/+",
    "fl/v1/f/coord",
    "fl/v1/f/dn/{other}/+",
    "fl/v1/f/dn/+/+",
    "fl/v1/f/up/+/{other}/+",
    "fl/v1/f/up/#",
    "fl/v1/f/st/+",
    "fl/v1/f/ctl",
    "fl/v1/f/ans/+",
    "fl/claim/+/card",
    "fl/claim/#",
    "$share/g/fl/v1/f/#",
    "#",
    "+/+/+/+/+/+",
)
HEARS = ("fl/v1/f/dn/{own}/", "fl/v1/f/coord", "fl/v1/f/st/{own}")


class Client:
    """One connection with the certificate of an identity folder."""

    def __init__(self, folder: Path, port: int, client_id: str, version: int, will: str | None = None) -> None:
        self.name, self.heard = folder.name, list[tuple[str, bytes]]()
        self.up, self.lost, self.granted, self.refused = False, 0, 0, list[bool]()
        files = labs.files_of(folder)
        context = ssl.create_default_context(cafile=str(files.ca))
        context.load_cert_chain(str(files.certificate), str(files.key))
        self.client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=version, reconnect_on_failure=False
        )
        self.client.tls_set_context(context)
        if will is not None:
            self.client.will_set(will, b"will", 1, retain=True)
        self.client.max_inflight_messages_set(1000)
        self.client.on_connect = lambda *_: setattr(self, "up", True)
        self.client.on_disconnect = lambda *_: setattr(self, "lost", self.lost + 1)
        self.client.on_subscribe = lambda *_: setattr(self, "granted", self.granted + 1)
        self.client.on_publish = lambda _c, _u, _mid, code, _p: self.refused.append(code.is_failure)
        self.client.on_message = lambda _c, _u, message: self.heard.append((message.topic, bytes(message.payload)))
        self.client.connect("localhost", port, 60)
        self.client.loop_start()

    def drop(self) -> None:
        """Break the connection, so that the broker publishes the will."""
        found = self.client.socket()
        if found is not None:
            found.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@contextlib.contextmanager
def mosquitto(lab: Path, port: int) -> Iterator[None]:
    program = shutil.which("mosquitto")
    if program is None:
        pytest.skip("mosquitto is not on PATH")
    with subprocess.Popen([program, "-c", str(lab / broker_settings.CONF)], stderr=subprocess.DEVNULL) as process:
        try:
            end_s = time.monotonic() + labs.PATIENCE_S
            while time.monotonic() < end_s:
                with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1.0):
                    break
                time.sleep(0.01)
            yield
        finally:
            process.terminate()


def filled(form: str, own: str, other: str) -> str:
    return form.format(own=own, other=other, shard=topics.shard(own), other_shard=topics.shard(other))


@pytest.mark.parametrize("devices", [3, pytest.param(20, marks=pytest.mark.long)])
@pytest.mark.parametrize("version", [mqtt.MQTTv311, mqtt.MQTTv5])
def test_no_device_reaches_the_topics_of_another(tmp_path: Path, version: int, devices: int) -> None:
    port = labs.free_port()
    lab = labs.made(tmp_path, port)
    folders = labs.enrolled(lab, *(f"device-{n:02}" for n in range(devices)))
    with mosquitto(lab, port), contextlib.ExitStack() as opened:
        coordinator = Client(lab / "coordinator", port, "c", version)
        others = {one.name: two.name for one, two in zip(folders, [*folders[1:], folders[0]], strict=True)}
        clients = [  # each asks for the client id of another, and leaves a will on its topic
            Client(folder, port, others[folder.name], version, topics.device_status("f", others[folder.name]))
            for folder in folders
        ]
        for each in (coordinator, *clients):
            opened.callback(each.close)
        labs.until(lambda: all(each.up for each in (coordinator, *clients)))
        coordinator.client.subscribe("#", 1)
        for each in clients:
            for form in FILTERS:
                each.client.subscribe(filled(form, each.name, others[each.name]), 1)
        labs.until(lambda: coordinator.granted == 1 and all(each.granted == len(FILTERS) for each in clients))
        for each in clients:
            for form in FORMS:
                topic = filled(form, each.name, others[each.name])
                each.client.publish(topic, each.name.encode(), 1)
            each.client.publish(f"fl/v1/f/up/{topics.shard(each.name)}/{each.name}/bye", b"end", 1)
        labs.until(lambda: sum(payload == b"end" for _, payload in coordinator.heard) == devices)
        for each in clients:
            for form in (*FORMS, "fl/v1/f/up/{other_shard}/{other}/log"):
                coordinator.client.publish(filled(form, each.name, others[each.name]), b"down", 1)
            coordinator.client.publish(f"fl/v1/f/dn/{each.name}/rcpt", b"end", 1)
        labs.until(lambda: all((f"fl/v1/f/dn/{each.name}/rcpt", b"end") in each.heard for each in clients))
        assert [each.lost for each in clients] == [0] * devices  # nobody took another's client id
        for each in clients:
            each.drop()
        labs.until(lambda: all(each.lost for each in clients))
        coordinator.client.publish("fl/v1/f/dn/x/rcpt", b"last", 1)
        labs.until(lambda: ("fl/v1/f/dn/x/rcpt", b"last") in coordinator.heard)
        may = {(filled(form, name, others[name]), name.encode()) for name in others for form in MAY_PUBLISH}
        found = {(topic, payload) for topic, payload in coordinator.heard if payload not in (b"end", b"down", b"last")}
        assert found == may
        for each in clients:
            own = tuple(form.format(own=each.name) for form in HEARS)
            assert [topic for topic, _ in each.heard if not topic.startswith(own)] == []


def test_a_claim_opens_one_topic_and_a_revoked_device_none(tmp_path: Path) -> None:
    port = labs.free_port()
    lab = labs.made(tmp_path, port)
    (device,) = labs.enrolled(lab, "device-01")
    claim = read_claim(owner.issue_claims(lab, ["device-02"])[0])
    folder = tmp_path / "claim"
    folder.mkdir()
    (folder / "ca.pem").write_text(claim.authority)
    (folder / "tls.pem").write_text(claim.certificate)
    (folder / "tls.key").write_text(claim.tls_key)
    shutil.copy(lab / "ca.pem", lab / "desk")
    with mosquitto(lab, port), contextlib.ExitStack() as opened:
        coordinator, desk = (Client(lab / name, port, name, mqtt.MQTTv5) for name in ("coordinator", "desk"))
        holder, board = Client(folder, port, "x", mqtt.MQTTv5), Client(device, port, "y", mqtt.MQTTv5)
        for each in (coordinator, desk, holder, board):
            opened.callback(each.close)
        labs.until(lambda: all(each.up for each in (coordinator, desk, holder, board)))
        coordinator.client.subscribe("fl/v1/#", 1)
        desk.client.subscribe("fl/claim/+", 1)
        labs.until(lambda: coordinator.granted and desk.granted)
        user, own = claim.user, f"fl/v1/f/up/{topics.shard('device-01')}/device-01/hello"
        for topic in (f"fl/v1/f/up/0/{user}/hello", f"fl/v1/f/st/{user}", own, "fl/claim/claim.device-01.1"):
            holder.client.publish(topic, b"no", 1)
        holder.client.publish(f"fl/claim/{user}", b"yes", 1)
        board.client.publish(own, b"before", 1)
        labs.until(lambda: desk.heard and coordinator.heard)
        assert desk.heard == [(f"fl/claim/{user}", b"yes")]
        assert coordinator.heard == [(own, b"before")]
        owner.revoke_device(lab, "device-01")
        labs.until(lambda: broker_settings.reload_broker(lab))
        while True not in board.refused:  # mosquitto reads its settings again a moment after the signal
            board.client.publish(own, b"early", 1)
            time.sleep(0.02)
        board.client.publish(own, b"after", 1)  # on the connection that is open
        board.client.publish(own, b"after", 1)
        labs.until(lambda: not board.client.want_write())
        coordinator.client.publish("fl/v1/f/dn/x/rcpt", b"last", 1)
        labs.until(lambda: ("fl/v1/f/dn/x/rcpt", b"last") in coordinator.heard)
        assert b"after" not in [payload for _, payload in coordinator.heard]
        again = Client(device, port, "z", mqtt.MQTTv5)
        opened.callback(again.close)
        labs.until(lambda: again.lost)
        assert again.up is False


def test_a_revoked_device_that_starts_again_is_told_to_enrol_again(tmp_path: Path) -> None:
    port = labs.free_port()
    lab = labs.made(tmp_path, port)
    (device,) = labs.enrolled(lab, "device-01")
    owner.revoke_device(lab, "device-01")
    samples = edge_sdk.Samples(np.zeros((4, 1, 8), np.float32), np.arange(4) % 2)
    data = edge_sdk.LocalData(train=samples, test=samples)
    model = edge_sdk.NumpyModel(2, (1, 1, 8), seed=0)
    agent = edge_sdk.Agent(identity=device, federation="f", model=model, data=data, state=tmp_path / "state")
    with mosquitto(lab, port), pytest.raises(EdgeError) as told:
        agent.run()
    assert "our certificate is revoked: ask the owner of the lab for a new claim, and enrol again" in str(told.value)


@pytest.mark.parametrize("revoked", [False, True])
def test_a_device_that_enrols_again_may_publish_and_its_former_keys_may_not(tmp_path: Path, revoked: bool) -> None:
    port = labs.free_port()
    lab = labs.made(tmp_path, port)
    (device,) = labs.enrolled(lab, "device-01")
    former = shutil.copytree(device, tmp_path / "former")
    if revoked:
        owner.revoke_device(lab, "device-01")
    with mosquitto(lab, port), contextlib.ExitStack() as opened:
        coordinator = Client(lab / "coordinator", port, "coordinator", mqtt.MQTTv5)
        opened.callback(coordinator.close)
        labs.until(lambda: coordinator.up)
        coordinator.client.subscribe("fl/v1/#", 1)
        labs.until(lambda: coordinator.granted)
        labs.enrolled(lab, "device-01")
        board = Client(device, port, "x", mqtt.MQTTv5)
        opened.callback(board.close)
        labs.until(lambda: board.up)
        board.client.publish(f"fl/v1/f/up/{topics.shard('device-01')}/device-01/hello", b"again", 1)
        labs.until(lambda: board.refused)
        assert board.refused == [False]
        with pytest.raises(ssl.SSLError):
            refused_at_once(former, port)
        labs.until(lambda: coordinator.heard)
        assert [payload for _, payload in coordinator.heard] == [b"again"]


def refused_at_once(folder: Path, port: int) -> None:
    """Connect with the certificate of an identity folder, and read what the broker says about it.

    With TLS 1.3 a client learns only then that its certificate is refused.
    """
    files = labs.files_of(folder)
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(str(files.certificate), str(files.key))
    with (
        socket.create_connection(("localhost", port), timeout=labs.PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as link,
    ):
        link.recv(1)


# -- what a broker keeps ------------------------------------------------------------------------------------------------


def rss_mib(lab: Path) -> float:
    pid = broker_settings.running_broker(lab)
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def flood(client: Client, wanted: Iterable[str]) -> None:
    """Publish 250 kB, retained, on each topic; a broker takes or drops all of it."""
    for topic in wanted:
        before = len(client.refused)
        client.client.publish(topic, os.urandom(250_000), 1, retain=True)
        labs.until(lambda before=before: len(client.refused) > before)


def test_what_a_device_leaves_on_the_broker_is_bounded_and_cleared_when_it_is_revoked(tmp_path: Path) -> None:
    """Before, each topic of its own invention kept 250 kB more, also after it was revoked."""
    port = labs.free_port()
    lab = labs.made(tmp_path, port)
    device, other = labs.enrolled(lab, "device-01", "device-02")
    with mosquitto(lab, port), contextlib.ExitStack() as opened:
        board, stays = (Client(each, port, "x", mqtt.MQTTv5) for each in (device, other))
        for each in (board, stays):
            opened.callback(each.close)
        labs.until(lambda: board.up and stays.up)
        before = rss_mib(lab)
        invented = [f"fl/v1/x{n}/up/{topics.shard('device-01')}/device-01/hello" for n in range(20)]
        invented += [f"fl/v1/f/up/{n}/device-01/upd" for n in range(17, 27)]
        invented += [f"fl/v1/f/up/{topics.shard('device-01')}/device-01/k{n}" for n in range(10)]
        flood(board, invented)
        assert board.refused == [True] * 40
        own = topics.device_topics("f", "device-01")
        flood(board, own * 3)
        assert board.refused[40:] == [False] * 24
        flood(stays, [topics.device_status("f", "device-02")])
        grown = rss_mib(lab) - before
        assert grown < 2 * len(own) * 0.25 + 2
        owner.revoke_device(lab, "device-01")
        labs.until(lambda: broker_settings.reload_broker(lab))
        assert clear_retained(lab, ["device-01"]) == len(own)
        assert clear_retained(lab, ["device-01"]) == 0
        assert clear_retained(lab, ["device-02"]) == 1  # nobody else's were cleared

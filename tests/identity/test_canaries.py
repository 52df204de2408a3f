"""What a real mosquitto learns of a run: it is searched for what the messages hold, on its wire, its disk and its log."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fleets
import labs
import paho.mqtt.client as mqtt
import pytest
from deployment import Deployment

from coordinator.lab.broker_settings import ACCESS, CONF
from coordinator.lab.owner import serve_federation
from edge_sdk.identity.folder import OPERATOR_FOLDER
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import Assign, Hello, Message, Upload

pytestmark = [pytest.mark.broker, pytest.mark.processes, pytest.mark.timeout(600)]  # a dozen processes

PATTERN_BYTES = 16
PATTERNS_OF_A_FRAME = 25


def canaries(messages: list[Message]) -> tuple[set[bytes], set[bytes]]:
    """Texts and digests of Hellos, and patterns of bytes within the tensors of uploads and Assigns."""
    texts, patterns = {b"capabilities", b"public_sha256"}, set[bytes]()
    for message in messages:
        if isinstance(message, Hello):
            texts |= {message.model.encode(), message.public_sha256 or b"capabilities"}
        elif isinstance(message, Upload | Assign):
            body = codec.encode(message)[codec.HEADER_BYTES :]
            inner = range(len(body) // 3, 3 * len(body) // 4, max(1, len(body) // 60))
            found = [body[at : at + PATTERN_BYTES] for at in inner[:PATTERNS_OF_A_FRAME]]
            patterns |= {each for each in found if message.round < 2 and len(set(each)) >= 12}
    return texts - {b""}, patterns


@contextmanager
def heard(lab: Path, port: int) -> Iterator[list[tuple[str, bytes]]]:
    """Everything that the broker carries while the `with` block runs."""
    sent: list[tuple[str, bytes]] = []
    ready: list[object] = []
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=OPERATOR_FOLDER)
    files = labs.files_of(lab / OPERATOR_FOLDER)
    client.tls_set(str(files.ca), str(files.certificate), str(files.key), tls_version=ssl.PROTOCOL_TLS_CLIENT)
    client.on_connect = lambda *_: client.subscribe("#", qos=1)
    client.on_subscribe = lambda *_: ready.append(1)
    client.on_message = lambda _client, _data, message: sent.append((message.topic, message.payload))
    client.connect("localhost", port)
    client.loop_start()
    try:
        labs.until(lambda: bool(ready))
        yield sent
    finally:
        client.disconnect()
        client.loop_stop()


def open_to_its_owner(lab: Path, folder: Path) -> None:
    """Let the operator hear everything, and the broker keep and log all that it can."""
    serve_federation(lab, "tiny")  # now, so that the coordinator does not write the rules again
    with (lab / ACCESS).open("a") as rules:
        rules.write(f"user {OPERATOR_FOLDER}\ntopic read #\n")
    settings = (lab / CONF).read_text().replace("persistence false", "persistence true")
    settings += (
        f"persistence_location {folder}/\nautosave_interval 1\nlog_type all\nlog_dest file {folder}/mosquitto.log\n"
    )
    (lab / CONF).write_text(settings)


@pytest.mark.parametrize("encrypts", [True, pytest.param(False, marks=pytest.mark.costly)])
def test_the_broker_learns_no_content(tmp_path: Path, pictures: Path, encrypts: bool) -> None:
    twin = fleets.Run(fleets.built(pictures, devices=2, rounds=2))
    messages = twin.tap()
    twin.finished()
    texts, patterns = canaries(messages)
    assert len(texts) + len(patterns) >= 100
    port, disk = labs.free_port(), tmp_path / "broker"
    disk.mkdir()
    lab = labs.made(tmp_path, port, encrypts=encrypts)
    labs.enrolled(lab, *twin.fleet.federation.roster)
    open_to_its_owner(lab, disk)
    tables = fleets.tables(pictures, "fedmd", devices=2, rounds=2)
    with (
        labs.serving(tmp_path, "lab", "serve", "lab"),
        heard(lab, port) as sent,
        Deployment(tmp_path, pictures, "", tables=tables, lab=lab) as run,
    ):
        run.start_all()
        summary = run.finish()
    assert summary["completed"] is True
    assert summary["refused_frames"] == {}
    files = [path.read_bytes() for path in disk.iterdir()]
    assert len(files) == 2
    carried = b"\n".join([*(payload for _, payload in sent), *files])
    found = {each for each in texts | patterns if each in carried}
    if encrypts:
        assert found == set()
        sizes = {len(payload) for _, payload in sent if codec.is_sealed(payload)}
        assert 1 <= len(sizes) <= 4
    else:
        assert found == texts | patterns

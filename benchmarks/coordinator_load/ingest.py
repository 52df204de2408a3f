"""Measures how fast a coordinator accepts uploads with durable receipts, compared with the broker's own rate.

The coordinator is a real process.  The load comes from processes of its own that speak for many devices each, over one
link each; between two rounds they send the same frames to a subscriber, again a process, that only counts.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any, cast

import numpy as np
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.common.proc import ProcessStatus, process_status
from coordinator.broker.embedded import EmbeddedBroker, Kind
from coordinator.config import to_toml
from edge_sdk.methods.fedmd import FedMD
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.knowledge import Payload, PublicLogits
from edge_sdk.protocol.messages import FederationSpec, Hello, Message, Upload, Welcome
from edge_sdk.protocol.public_batch import batch_digest, batch_indices
from edge_sdk.public_set.samples import PublicSet

NAME = "ingest"
ROWS, CLASSES = 1000, 10
LOADERS = 2
DEVICES = 400
ROUNDS = 8
PATIENCE_S = 40.0
FLOOD = "bench/flood"


@dataclass(frozen=True)
class Rates:
    """Frames a second, one value for each round, and the status of the coordinator's process."""

    broker: str
    frame_bytes: int
    taken_in: list[float]
    delivered: list[float]
    coordinator: ProcessStatus


def measure(kind: Kind, folder: Path) -> Rates:
    """Alternate between a round of uploads and a flood of frames to the counter."""
    _write_federation(folder)
    spawn = multiprocessing.get_context("spawn")
    barrier, told, stop = spawn.Barrier(LOADERS + 1), spawn.Queue(), spawn.Event()
    with EmbeddedBroker(kind) as broker:
        coordinator = _start_coordinator(folder, broker.url)
        helpers = [spawn.Process(target=_count, args=(broker.port, told, stop), daemon=True)]
        helpers += [spawn.Process(target=_load, args=(n, broker.port, folder, barrier, told)) for n in range(LOADERS)]
        for helper in helpers:
            helper.start()
        try:
            taken_in, delivered = _watch(barrier, told)
            status = process_status(coordinator.pid)
            label = f"{broker.kind} {broker.version}"
        finally:
            stop.set()
            coordinator.kill()
            coordinator.wait()
            for helper in helpers:
                helper.kill()
                helper.join()
    return Rates(label, _upload_bytes(), taken_in, delivered, status)


def _watch(barrier: Barrier, told: Any) -> tuple[list[float], list[float]]:
    """Return the frames a second into the coordinator and to the counter, for each round."""
    taken_in: list[float] = []
    delivered: list[float] = []
    for _ in range(ROUNDS):
        for rates, frames, sources in ((taken_in, DEVICES - LOADERS, LOADERS), (delivered, DEVICES, 1)):
            barrier.wait(PATIENCE_S)
            began_s = time.monotonic()
            ended_s = [told.get(timeout=PATIENCE_S) for _ in range(sources)]
            rates.append(frames / (max(ended_s) - began_s))
    return taken_in, delivered


# -- the coordinator ------------------------------------------------------------------------------------------------


def _ids() -> list[str]:
    return [f"d-{number:03d}" for number in range(DEVICES)]


def _write_federation(folder: Path) -> None:
    samples = np.random.default_rng(0).integers(0, 256, (ROWS, 4, 4)).astype(np.uint8)
    np.savez(folder / "public.npz", public=samples)
    tables = {
        "federation": {
            "name": NAME,
            "method": "fedmd",
            "rounds": ROUNDS + 1,
            "devices": DEVICES,
            "classes": CLASSES,
            "deadline_s": 600.0,
            "retry_s": 300.0,
            "roster": _ids(),
        },
        "method": {"public_batch": ROWS},
        "public": {"path": "public.npz"},
    }
    (folder / "federation.toml").write_text(to_toml(tables), encoding="utf-8")


def _start_coordinator(folder: Path, url: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "edge_sdk.cli", "coordinator", "federation.toml", "--broker", url]
    with (folder / "coordinator.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        )


# -- the load -------------------------------------------------------------------------------------------------------


class _Fleet:
    """Many devices behind one link."""

    def __init__(self, number: int, port: int, public: PublicSet) -> None:
        self.devices = _ids()[number::LOADERS]
        self._public = public
        self.spec: FederationSpec | None = None
        self.welcomed: set[str] = set()
        self.assigned: set[str] = set()
        self.receipts = 0
        self.ready = False
        self.client = link(port, f"fleet-{number}")
        self.client.on_message = self._take
        self.client.subscribe([(topics.device_subscriptions(NAME, device)[0], 1) for device in self.devices])
        self.client.subscribe(topics.coordinator_status(NAME), 1)

    def _take(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        device, kind = message.topic.split("/")[-2:]
        if kind == "coord":
            self.ready = True
        elif kind == "rcpt":
            self.receipts += 1
        elif kind == "task":
            self.assigned.add(device)
        elif self.spec is None:
            self.spec = cast("Welcome", codec.decode(bytes(message.payload)).message).spec
            self.welcomed.add(device)
        else:
            self.welcomed.add(device)

    def join(self) -> None:
        """Say hello once the coordinator is there, and wait until everybody is welcome."""
        until(lambda: self.ready)
        for device in self.devices:
            hello = Hello(
                federation=NAME,
                device=device,
                capabilities=tuple(sorted(FedMD().needs)),
                terms=tuple(sorted(FedMD().terms)),
                classes=CLASSES,
                samples=100,
                public_sha256=self._public.spec.sha256,
            )
            self.client.publish(topics.up(NAME, device, "hello"), _frame(hello), qos=1)
        until(lambda: len(self.welcomed) == len(self.devices))

    def uploads(self, round_: int) -> list[tuple[str, bytes]]:
        """Return the topic and frame of each device's upload."""
        spec = cast("FederationSpec", self.spec)
        batch = batch_digest(spec, batch_indices(spec, round_, 0, ROWS))
        return [(topics.up(NAME, device, "upd"), _upload(device, round_, batch)) for device in self.devices]


def _load(number: int, port: int, folder: Path, barrier: Barrier, told: Any) -> None:
    fleet = _Fleet(number, port, PublicSet.load(folder / "public.npz"))
    fleet.join()
    for round_ in range(ROUNDS):
        until(lambda: len(fleet.assigned) == len(fleet.devices))
        fleet.assigned.clear()
        uploads, fleet.receipts = fleet.uploads(round_), 0
        barrier.wait(PATIENCE_S)
        for topic, frame in uploads[1:]:
            fleet.client.publish(topic, frame, qos=0)
        until(lambda: fleet.receipts >= len(fleet.devices) - 1)
        told.put(time.monotonic())
        fleet.client.publish(*uploads[0], qos=0)  # apart: it closes the round, after which everybody is sent an Assign
        until(lambda: len(fleet.assigned) == len(fleet.devices))  # the coordinator is at rest again
        barrier.wait(PATIENCE_S)
        sent = [fleet.client.publish(FLOOD, frame, qos=0) for _, frame in uploads]
        until(lambda sent=sent: all(each.is_published() for each in sent))


def _count(port: int, told: Any, stop: Event) -> None:
    client = link(port, "counter")
    seen = 0

    def take(_client: Client, _data: object, _message: MQTTMessage) -> None:
        nonlocal seen
        seen += 1
        if seen % DEVICES == 0:
            told.put(time.monotonic())

    client.on_message = take
    client.subscribe(FLOOD, qos=1)
    stop.wait()


def link(port: int, name: str) -> Client:
    """Return a connected plain client with a large message window, in the MQTT version of both brokers."""
    client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv311)
    client.max_inflight_messages_set(100)
    client.connect("127.0.0.1", port)
    client.loop_start()
    until(client.is_connected)
    return client


def until(done: Callable[[], bool]) -> None:
    """Wait until `done` returns True.  Raises TimeoutError."""
    end_s = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > end_s:
            raise TimeoutError("the coordinator does not answer; see its log")
        time.sleep(0.001)


def _frame(message: Message) -> bytes:
    return codec.encode(message, Stamp(1, 1))


def _upload(device: str, round_: int, batch: bytes) -> bytes:
    values = np.random.default_rng([round_, int(device[2:])]).normal(0, 5, (ROWS, CLASSES)).astype(np.float32)
    knowledge: dict[str, Payload] = {"logits": PublicLogits(values=values, batch=batch)}
    return _frame(Upload(federation=NAME, device=device, round=round_, exchange=0, knowledge=knowledge, samples=100))


def _upload_bytes() -> int:
    return len(_upload(_ids()[0], 0, bytes(8)))

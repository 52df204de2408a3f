"""Measures what one flooding device costs the others: their receipt latency and the rounds a second.

    python -m benchmarks.coordinator_load.flood [--per-s 1400] [--seconds 6] [--pairs 5]

A coordinator and mosquitto are real processes.  Ten devices answer each Assign at once with a small upload; from a
process and a link of its own, one of them also repeats its first upload without pause.  Quiet and flooded stretches
take turns, so that other load on the machine falls on both.  In between, the same flood goes to a topic that nobody
reads (`unread`): what it costs falls to the broker and to the machine alone.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from paho.mqtt.client import Client, MQTTMessage

from benchmarks.coordinator_load.ingest import link, until
from coordinator.broker.embedded import EmbeddedBroker
from coordinator.config import to_toml
from edge_sdk.methods.local import Local
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits, Stamp
from edge_sdk.protocol.messages import Assign, Hello, Upload

NAME, DEVICES = "flood", 10
IDS = [f"d-{number}" for number in range(DEVICES)]
FLOODER = IDS[0]
UNREAD = "fl/v1/nobody/up/0/nobody/upd"
QUIET, ELSEWHERE, FLOODED = "quiet", "unread", "flooded"
THINK_S = 0.05
"""Seconds between an Assign and its upload."""
WIDE = Limits(2**24, 2**24)


@dataclass
class Stretch:
    """What happened in one stretch of time."""

    latency_s: list[float] = field(default_factory=list)
    rounds: set[int] = field(default_factory=set)
    busy: float = 0.0
    """The coordinator's share of a processor."""


class Fleet:
    """The ten devices behind one link."""

    def __init__(self, port: int) -> None:
        self.welcomed: set[str] = set()
        self.stretch = Stretch()
        self._sent_s: dict[tuple[str, int], float] = {}
        self._sequence = 0
        self.client = link(port, "fleet")
        self.client.on_message = self._take
        self.client.subscribe([(topics.device_subscriptions(NAME, device)[0], 1) for device in IDS])

    def join(self) -> None:
        """Say hello until everybody is welcome."""
        while len(self.welcomed) < DEVICES:
            for device in IDS:
                self._send(device, "hello", Hello(federation=NAME, device=device, classes=2, samples=9, **ABLE))
            time.sleep(1.0)

    def _send(self, device: str, kind: str, message: Hello | Upload) -> None:
        self._sequence += 1
        self.client.publish(topics.up(NAME, device, kind), codec.encode(message, Stamp(1, self._sequence)), qos=1)

    def _take(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        device, kind = message.topic.split("/")[-2:]
        if kind == "join":
            self.welcomed.add(device)
        elif kind == "task":
            assign = codec.decode(bytes(message.payload), WIDE).message
            assert isinstance(assign, Assign)
            if (device, assign.round) not in self._sent_s:
                self._sent_s[device, assign.round] = 0.0
                threading.Timer(THINK_S, self._upload, (device, assign.round)).start()
        elif kind == "rcpt":
            found = codec.decode(bytes(message.payload)).message
            begun_s = self._sent_s.get((device, getattr(found, "round", -1)), 0.0)
            if begun_s and device != FLOODER and getattr(found, "verdict", "") == "accepted":
                self.stretch.latency_s.append(time.monotonic() - begun_s)
                self.stretch.rounds.add(found.round)  # type: ignore[union-attr]  # a Receipt has one

    def _upload(self, device: str, round_: int) -> None:
        self._sent_s[device, round_] = time.monotonic()
        self._send(device, "upd", Upload(federation=NAME, device=device, round=round_, exchange=0, samples=9))


ABLE: dict[str, Any] = {"capabilities": tuple(sorted(Local().needs)), "terms": tuple(sorted(Local().terms))}


def flood(port: int, per_s: float, on: Event, read: Event, stop: Event) -> None:
    """Repeat the flooder's first upload while `on` is set; to a topic that nobody reads unless `read` is set."""
    client = link(port, "flooder")
    frame = codec.encode(Upload(federation=NAME, device=FLOODER, round=0, exchange=0, samples=9), Stamp(1, 1))
    due_s = time.monotonic()
    while not stop.is_set():
        if not on.is_set():
            time.sleep(0.02)
            due_s = time.monotonic()
            continue
        due_s = max(due_s + 10 / per_s, time.monotonic() - 1.0)
        topic = topics.up(NAME, FLOODER, "upd") if read.is_set() else UNREAD
        for _ in range(10):
            client.publish(topic, frame, qos=1)
        time.sleep(max(0.0, due_s - time.monotonic()))


def start_coordinator(folder: Path, url: str) -> subprocess.Popen[bytes]:
    """Start a coordinator whose run does not end before it is killed."""
    federation = {"name": NAME, "method": "local", "rounds": 10**6, "devices": DEVICES, "classes": 2}
    tables = {"federation": {**federation, "deadline_s": 600.0, "retry_s": 5.0}, "train": {"local_steps": 1}}
    (folder / "federation.toml").write_text(to_toml(tables), encoding="utf-8")
    command = [sys.executable, "-m", "edge_sdk.cli", "coordinator", "federation.toml", "--broker", url, "--out", "run"]
    with (folder / "coordinator.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def measure(per_s: float, seconds: float, pairs: int) -> dict[str, Any]:
    """Run quiet and flooded stretches in turn; returns the figures of each kind, and what the coordinator counted."""
    spawn = multiprocessing.get_context("spawn")
    on, read, stop = spawn.Event(), spawn.Event(), spawn.Event()
    found: dict[str, list[Stretch]] = {QUIET: [], ELSEWHERE: [], FLOODED: []}
    with tempfile.TemporaryDirectory() as name, EmbeddedBroker("mosquitto") as broker:
        coordinator = start_coordinator(Path(name), broker.url)
        flooder = spawn.Process(target=flood, args=(broker.port, per_s, on, read, stop), daemon=True)
        flooder.start()
        try:
            fleet = Fleet(broker.port)
            fleet.join()
            until(lambda: len(fleet.stretch.rounds) > 20)
            for _ in range(pairs):
                for kind, stretches in found.items():
                    for event, wanted in ((read, kind == FLOODED), (on, kind != QUIET)):
                        (event.set if wanted else event.clear)()
                    time.sleep(1.0)  # the change itself is in no figure
                    fleet.stretch = now = Stretch()
                    before_s = cpu_s(coordinator.pid)
                    time.sleep(seconds)
                    fleet.stretch, now.busy = Stretch(), (cpu_s(coordinator.pid) - before_s) / seconds
                    stretches.append(now)
            progress = json.loads((Path(name) / "run" / "progress.json").read_text(encoding="utf-8"))
        finally:
            stop.set()
            coordinator.kill()
            coordinator.wait()
            flooder.kill()
            flooder.join()
    figures = {kind: figure(stretches, seconds) for kind, stretches in found.items()}
    return {**figures, "flood_per_s": per_s, "refused_frames": progress["refused_frames"]}


def figure(stretches: list[Stretch], seconds: float) -> dict[str, float]:
    """The median over stretches of latency percentiles (ms) and of rounds a second."""
    percentiles = [np.percentile(each.latency_s, [50, 95]) * 1e3 for each in stretches if each.latency_s]
    p50, p95 = np.median(percentiles, axis=0) if percentiles else (float("nan"), float("nan"))
    rounds = float(np.median([len(each.rounds) / seconds for each in stretches]))
    busy = float(np.median([each.busy for each in stretches]))
    shown = {"p50_ms": p50, "p95_ms": p95, "rounds_per_s": rounds, "coordinator_busy": busy}
    return {name: round(float(value), 2) for name, value in shown.items()}


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has used (Linux)."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-s", type=float, default=1400.0, help="frames a second of the flood")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a stretch")
    parser.add_argument("--pairs", type=int, default=5, help="stretches of each kind")
    args = parser.parse_args()
    sys.stdout.write(json.dumps(measure(args.per_s, args.seconds, args.pairs), indent=1) + "\n")


if __name__ == "__main__":
    main()
